//! Weights whose products are computed in integers in the forward and the backward pass.

use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::primitives::Broadcast;
use tacit_core::transform::{Differentiable, apply};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};
use tacit_kernels::Orientation;

use crate::avals::axes::oriented;
use crate::avals::checks::{check_children, check_float, check_key, checked, decline_if};
use crate::families::linear::{Linear, Product};
use crate::families::packed::Packed;
use crate::format::int8::{Int8, Int8Array};
use crate::kernel::{self, Int8Rows, Layout, int8_product};
use crate::training::prepared::Prepared;
use crate::training::ste::{Ste, tangent_at};
use crate::views::repeated::Repeated;

/// A matrix of 8-bit codes whose products are of 8-bit integers in the forward and in the backward pass.
///
/// All three products of a training step round both sides to integers, with a scale for each row, and sum products of integers.
/// For `y = x W^T`, where `w` are the scales of the rows of `W`, and `s` those of the rows of `x`:
///
/// - `y` is `round(x) round(W)^T`, each row rounded by its largest magnitude, times the scales of both rows;
/// - the gradient of `x` is `round(dy w) codes(W)`: the scales of `W` lie along the sum, so they go into `dy` before its rows are rounded;
/// - that of `W` is `round((dy s)^T) codes(x)`, the columns of `dy` rounded over all rows.
///
/// The products `x W` round `x w` and `dy` instead, and `x` anew for the gradient of `W`. The backward pass reads the codes of `x` and
/// of `W`, a quarter of the bytes of floats. The gradient goes straight through both roundings, to the master of a [`Prepared`] weight
/// or whatever else has that of the codes. With [`stochastic`](Self::stochastic) `dy` is rounded at random, so that the mean of a
/// gradient is that of the codes. A row of `x` or `dy` with a NaN or an infinity gives NaN where a product of floats would.
///
/// Rows are those of the codes. Everything else is that of the weight in floats: what plain code reshapes first, and products
/// while the quantization of a `Prepared` weight is [switched off](Prepared::switched). The gradient of a gradient is an error.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::Int8Training;
/// use tacit_core::implicit;
/// use tacit_core::transform::grad;
///
/// let x = ops::full::<f32>(&[2, 32], Array::from_f32(127.0))?;
/// let mut gradient = grad(move |master: Array| -> tacit_core::Result<Array> {
///     let w = Int8Training::new(master)?;
///     implicit((&x, w), |(x, w)| x.matmul(w.t())?.sum(None))?.dense()
/// });
/// let gradient = gradient.call(ops::ones::<f32>(&[8, 32])?)?;
/// assert_eq!(gradient.array()?.as_slice::<f32>(), [254.0; 256]);
/// # Ok(())
/// # }
/// ```
///
/// It is what torchao calls mixed-precision training in int8. "Stable and low-precision training for large-scale vision-language models"
/// (Wortsman et al., 2023) keeps the gradient of the weights in floats. Where a machine multiplies bytes faster than floats, large
/// products gain.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Int8Training", family(Linear))]
pub struct Int8Training {
    /// The matrix: its codes by rows, or a master that is quantized to them.
    #[implicit(get)]
    inner: Value,
    /// The random key that gradients are rounded by: `u32[2]`.
    #[implicit(get)]
    key: Option<Array>,
    #[implicit(aux)]
    aval: Aval,
}

impl Int8Training {
    /// The products of `weight`: a matrix of floats, which is then the master of a [`Prepared`] one, or what has
    /// [`Int8`] codes by rows or columns, such as a `Prepared` or a [`TrainedCodes`](crate::TrainedCodes).
    ///
    /// # Errors
    ///
    /// `weight` is not float, or no matrix, or has other codes.
    pub fn new(weight: impl Into<Value>) -> Result<Self> {
        let inner = match weight.into() {
            Value::Dense(master) => Prepared::new(&master, Int8::default())?.into(),
            codes @ Value::Implicit(_) => codes,
        };
        let array = checked(Self { aval: inner.aval()?, inner, key: None })?;
        let codes = match array.inner.downcast::<Prepared>() {
            Some(prepared) => Weight::from_value(&prepared.convert()?)?,
            None => Weight::from_value(&array.inner)?,
        };
        match codes {
            Some(_) => Ok(array),
            None => Err(Error::invalid(
                format!("{} has no products of 8-bit integers", array.inner),
                "give a matrix of floats, or one in the format int8 or int8:columns",
            )),
        }
    }

    /// The same with gradients that are rounded at random, by `key: u32[2]`.
    ///
    /// Numbers are drawn by the key and by the gradient that they round, so that the steps of a run differ by one key, and a run is
    /// the same again by the same key. Forward products round to the nearest.
    ///
    /// # Errors
    ///
    /// The key is another array.
    pub fn stochastic(self, key: &Array) -> Result<Self> {
        checked(Self { key: Some(key.clone()), ..self })
    }

    /// What `x` is multiplied with, unless by floats: an empty sum has nothing to round by.
    fn weight(&self, product: Product, x: &Value) -> Result<Option<Weight>> {
        if product == Product::Rows || x.aval()?.size() == 0 { Ok(None) } else { Weight::from_value(&self.inner) }
    }

    fn multiply(&self, weight: &Weight, product: Product, x: &Value) -> Result<Value> {
        // Where this declined, the smaller of both would be built, and nobody would round where that is this one.
        let x = &x.dense()?;
        if product == Product::Right {
            return Ok(weight.multiply(x, weight.orientation, self.key.as_ref())?.into());
        }
        decline_if(x.ndim() < 2, "the right side is a vector")?;
        // As the transpose of `x^T W^T`.
        let y = weight.multiply(&x.swap_axes(-1, -2)?, weight.orientation.transposed(), self.key.as_ref())?;
        Ok(y.swap_axes(-1, -2)?.into())
    }

    fn around(&self, inner: Value) -> Result<Value> {
        Ok(Self { aval: inner.aval()?, inner, key: self.key.clone() }.into())
    }
}

impl Materialize for Int8Training {
    fn materialize(&self) -> Result<Value> {
        self.inner.opened()
    }

    fn used_as(&self) -> Result<Option<Value>> {
        let Value::Implicit(inner) = &self.inner else { return Ok(None) };
        match inner.used_as()? {
            Some(used @ Value::Implicit(_)) => self.around(used).map(Some),
            used => Ok(used),
        }
    }

    fn check(&self) -> Result<()> {
        let inner = self.inner.aval()?;
        check_float("the matrix", &inner)?;
        if let Some(key) = &self.key {
            check_key("key to round by", key)?;
        }
        check_children("a matrix of 8-bit products", &self.aval, &[("its matrix", self.aval.clone(), inner)])
    }
}

impl Linear for Int8Training {
    fn rounds(&self) -> Option<&Value> {
        Some(&self.inner)
    }

    fn rounding_alike(&self, matrix: Value) -> Result<Value> {
        if Weight::from_value(&matrix)?.is_some() { self.around(matrix) } else { Ok(matrix) }
    }

    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        match self.weight(product, x)? {
            Some(weight) if x.aval()?.dtype == self.aval.dtype => self.multiply(&weight, product, x),
            _ => implicit((x, &self.inner), |(x, w)| product.apply(&x, &w)),
        }
    }

    /// Codes have no type of floats: the products are those of `x`.
    fn product_widely(&self, product: Product, x: &Value) -> Result<Value> {
        match self.weight(product, x)? {
            Some(weight) => self.multiply(&weight, product, x),
            None => Err(Error::decline("it is read in a wider type")),
        }
    }

    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        self.around(implicit(&self.inner, |w| w.transpose_axes(axes))?)
    }
}

/// MLX repeats a matrix for a batch of what it multiplies: the products are those of the matrix.
#[handler]
pub(crate) fn int8_training_broadcast(
    _op: &Broadcast,
    w: &Int8Training,
    others: &[&Value],
    results: &[Aval],
) -> Result<Value> {
    decline_if(!others.is_empty(), "the other operands say how often")?;
    // One that is repeated already is repeated for another batch.
    let matrix = unrepeated(&w.inner);
    decline_if(!results[0].shape.ends_with(&matrix.aval()?.shape), "rows or columns of the matrix are repeated")?;
    w.around(Repeated::view(matrix.clone(), &results[0].shape)?)
}

fn unrepeated(value: &Value) -> &Value {
    value.downcast::<Repeated>().map_or(value, Repeated::inner)
}

/// A matrix of signed bytes with a scale for each row, as it is stored.
struct Weight {
    layout: Layout,
    codes: Array,
    /// What an integer is worth: `f32[n]`.
    scales: Array,
    /// What has the gradient, with its axes as they are here.
    master: Option<Array>,
    /// The orientation in which the logical matrix is multiplied from the left.
    orientation: Orientation,
}

impl Weight {
    fn from_value(value: &Value) -> Result<Option<Self>> {
        let value = unrepeated(value);
        let used = match value {
            Value::Implicit(array) => array.used_as()?,
            Value::Dense(_) => None,
        };
        let value = used.as_ref().unwrap_or(value);
        let straight = value.downcast::<Ste>();
        let Some(stored) = straight.map_or(value, Ste::inner).downcast::<Int8Array>().map(Packed::stored) else {
            return Ok(None);
        };
        let &[n, k] = &stored.shape()[..] else { return Ok(None) };
        let (layout, children) = stored.kernel(n)?;
        let [codes, scales] = &children[..] else { return Ok(None) };
        if stored.block != k as usize {
            return Ok(None);
        }
        let orientation = if stored.transposed { Orientation::Transposed } else { Orientation::Plain };
        let master = straight.map(|straight| oriented(straight.master(), orientation)).transpose()?;
        let (codes, scales) = (codes.clone(), scales.clone());
        Ok(Some(Self { layout, codes, scales, master, orientation }))
    }

    /// `x W^T` or `x W` of the stored matrix.
    fn multiply(&self, x: &Array, orientation: Orientation, key: Option<&Array>) -> Result<Array> {
        let products = Products {
            layout: self.layout,
            orientation,
            is_trained: self.master.is_some(),
            is_stochastic: key.is_some(),
        };
        // Every array is an argument, also what has no gradient: `vmap` maps arguments only.
        let inputs = [x, &self.codes, &self.scales].into_iter().chain(&self.master).chain(key);
        Ok(apply(&inputs.cloned().collect::<Vec<_>>(), products)?.swap_remove(0))
    }
}

/// A product with codes, of `x`, the codes and their scales, and what has the gradient of the codes and a random key where there are
/// such. It has the codes of `x` and their units for results as well, which the backward pass reads.
struct Products {
    layout: Layout,
    orientation: Orientation,
    is_trained: bool,
    is_stochastic: bool,
}

/// The place of what has the gradient of the codes.
const MASTER: usize = 3;

impl Products {
    /// The first three arguments: `x`, the codes and their scales.
    fn operands<'a>(&self, args: &'a [Array]) -> Result<[&'a Array; 3]> {
        match args {
            [x, codes, scales, rest @ ..]
                if rest.len() == usize::from(self.is_trained) + usize::from(self.is_stochastic) =>
            {
                Ok([x, codes, scales])
            }
            _ => Err(Error::invalid("a product in 8 bits has other operands", "give as many as before")),
        }
    }
}

impl Differentiable for Products {
    fn name(&self) -> &'static str {
        "int8_training"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        // MLX asks all that is behind results for tangents, which it then drops: the kernels have none.
        let fixed = self.operands(args)?.map(mlx_rs::stop_gradient);
        let [x, codes, scales] = fixed;
        let (x, codes, scales) = (&x?, &codes?, &scales?);
        let rows = Int8Rows::nearest(x, Orientation::Plain, None)?;
        let y = match self.orientation {
            Orientation::Transposed => int8_product(&rows, codes, Some(scales), x.dtype())?,
            Orientation::Plain => {
                let scaled = Int8Rows::nearest(x, Orientation::Plain, Some(scales))?;
                int8_product(&scaled, codes, None, x.dtype())?
            }
        };
        Ok(vec![y, rows.codes, rows.units])
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Result<Vec<Array>> {
        let [x, codes, scales] = self.operands(primals)?;
        let ([dy, ..], [_, x_codes, x_units]) = (cotangents, outputs) else {
            return Err(Error::invalid("a product in 8 bits has other results", "report this"));
        };
        let key = primals.last().filter(|_| self.is_stochastic);
        let (of_x, of_w) = key.map(|key| random::split(key, 2)).transpose()?.unzip();
        let rounded = |orientation, factors, key: Option<&Array>| match key {
            Some(key) => Int8Rows::drawn(dy, orientation, factors, key),
            None => Int8Rows::nearest(dy, orientation, factors),
        };
        let mut gradients = primals.iter().map(ops::zeros_like).collect::<Result<Vec<_>, _>>()?;
        gradients[0] = match self.orientation {
            Orientation::Transposed => {
                int8_product(&rounded(Orientation::Plain, Some(scales), of_x.as_ref())?, codes, None, x.dtype())?
            }
            Orientation::Plain => {
                int8_product(&rounded(Orientation::Plain, None, of_x.as_ref())?, codes, Some(scales), x.dtype())?
            }
        };
        if self.is_trained {
            // The codes have no derivative, and the gradient of `x` depends on them.
            gradients[0] = apply(&[gradients[0].clone(), primals[MASTER].clone()], FirstOrder)?.swap_remove(0);
            let rows = rounded(Orientation::Transposed, Some(x_units), of_w.as_ref())?;
            let gradient = int8_product(&rows, x_codes, None, primals[MASTER].dtype())?;
            gradients[MASTER] = oriented(&gradient, self.orientation.transposed())?;
        }
        Ok(gradients)
    }

    /// In floats: the products of the tangents with the codes, and of `x` as it was rounded with the tangent of the matrix.
    fn tangents(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>>> {
        Some(self.along(primals, tangents, argnums))
    }
}

/// The first argument, a gradient that depends on the second one and has no derivative.
struct FirstOrder;

impl Differentiable for FirstOrder {
    fn name(&self) -> &'static str {
        "int8_training"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![args[0].clone()])
    }

    fn backward(&self, _: &[Array], _: &[Array], _: &[Array]) -> Result<Vec<Array>> {
        Err(kernel::no_int8_derivative())
    }

    fn tangents(&self, _: &[Array], _: &[Array], _: &[usize]) -> Option<Result<Vec<Array>>> {
        Some(Err(kernel::no_int8_derivative()))
    }
}

impl Products {
    fn along(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Result<Vec<Array>> {
        let [x, codes, scales] = self.operands(primals)?;
        let rows = Int8Rows::nearest(x, Orientation::Plain, None)?;
        let of_x = tangent_at(0, tangents, argnums)
            .map(|tangent| kernel::matmul(&tangent, self.layout, &[codes.clone(), scales.clone()], self.orientation));
        let of_w = tangent_at(MASTER, tangents, argnums).filter(|_| self.is_trained).map(|tangent| -> Result<Array> {
            let rounded = rows.codes.as_dtype(Dtype::Float32)?.multiply(rows.units.expand_dims(-1)?)?;
            let product = rounded.as_dtype(x.dtype())?.matmul(oriented(&tangent, self.orientation)?)?;
            Ok(product.as_dtype(x.dtype())?)
        });
        let tangent = match (of_x.transpose()?, of_w.transpose()?) {
            (Some(of_x), Some(of_w)) => of_x.add(of_w)?,
            (Some(tangent), None) | (None, Some(tangent)) => tangent,
            (None, None) => ops::zeros_like(&self.forward(primals)?[0])?,
        };
        Ok(vec![tangent, ops::zeros_like(&rows.codes)?, ops::zeros_like(&rows.units)?])
    }
}
