//! Activations that are rounded to 8 bits.

use mlx_rs::{Array, Dtype};
use tacit_core::primitives::TypedPrimitive as _;
use tacit_core::store::serde;
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit, primitives};

use crate::avals::checks::{check_children, check_float, checked, decline_if};
use crate::avals::dtypes::check_castable;
use crate::families::linear::{Linear, Product};
use crate::kernel::rounded_to_int8;
use crate::training::ste::ste;

/// Which activations share a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(crate = "tacit_core::store::serde", rename_all = "lowercase")]
pub enum ActivationGranularity {
    /// The activations of a token, along the last axis, share a scale.
    #[default]
    Token,
    /// All of them.
    Tensor,
}

/// `x` rounded to the nearest of the 255 multiples of `absmax / 127`, with the gradient going straight through.
///
/// It is symmetric and dynamic: the largest magnitude is that of these activations. A token of zeros stays zero.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_arrays::{ActivationGranularity, int8_rounded};
///
/// let x = Array::from_slice(&[127f32, 0.4, -63.6], &[1, 3]);
/// assert_eq!(int8_rounded(&x, ActivationGranularity::Token)?.as_slice::<f32>(), [127.0, 0.0, -64.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// `x` is not float.
pub fn int8_rounded(x: &Array, granularity: ActivationGranularity) -> Result<Array> {
    let aval = Aval::from(x);
    if !aval.dtype.is_float() {
        return Err(Error::invalid(format!("{aval} is not rounded to 8 bits of activations"), "round a float array"));
    }
    if x.size() == 0 || aval.shape.is_empty() && granularity == ActivationGranularity::Token {
        return Ok(x.clone());
    }
    let rounded = |x: &Array| -> Result<Value> {
        let x = x.as_dtype(Dtype::Float32)?;
        let absmax = match granularity {
            ActivationGranularity::Token => x.abs()?.max_axis(-1, true)?,
            ActivationGranularity::Tensor => x.abs()?.max(None)?,
        };
        Ok(rounded_to_int8(&x, &absmax)?.as_dtype(aval.dtype)?.into())
    };
    ste(x, rounded)?.dense()
}

/// A matrix whose products round what it is multiplied with to 8 bits, as [`int8_rounded`] does.
///
/// So an unmodified module whose weight it is trains for, and computes as, a model of 8-bit activations; the inner array is
/// any value, such as a [`Prepared`](crate::Prepared) weight of 4 bits. Its products are those of matrices, of chosen matrices of a
/// stack, such as the experts of a mixture, and convolutions; everything else is that of the inner array, and so are the products
/// of what plain code reshapes first. Integer arithmetic is another matter: the products of
/// [`PackedArray::with_int8_activations`] are faster, and round the activations of each row in the same way.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::format::Affine;
/// use tacit_arrays::{Int8Inputs, Prepared, ActivationGranularity};
/// use tacit_core::implicit;
///
/// let w = Prepared::new(&ops::ones::<f32>(&[8, 32])?, Affine { bits: 4, group: 32 })?;
/// let w = Int8Inputs::new(w, ActivationGranularity::Token)?;
/// let x = ops::full::<f32>(&[2, 32], Array::from_f32(127.0))?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0 * 127.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// [`PackedArray::with_int8_activations`]: crate::format::PackedArray::with_int8_activations
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Int8Inputs", family(Linear))]
pub struct Int8Inputs {
    /// The matrix.
    #[implicit(get)]
    inner: Value,
    #[implicit(aux)]
    per: ActivationGranularity,
    #[implicit(aux)]
    aval: Aval,
}

impl Int8Inputs {
    /// `inner`, whose products round the activations.
    ///
    /// # Errors
    ///
    /// `inner` is not float.
    pub fn new(inner: impl Into<Value>, granularity: ActivationGranularity) -> Result<Self> {
        let inner = inner.into();
        let aval = inner.aval()?;
        checked(Self { inner, per: granularity, aval })
    }

    /// Which activations share a scale.
    #[must_use]
    pub fn granularity(&self) -> ActivationGranularity {
        self.per
    }

    fn mapped(&self, f: impl FnOnce(Array) -> Result<Array>) -> Result<Value> {
        Ok(Self::new(implicit(&self.inner, f)?, self.per)?.into())
    }
}

impl Materialize for Int8Inputs {
    fn materialize(&self) -> Result<Value> {
        self.inner.opened()
    }

    fn check(&self) -> Result<()> {
        let inner = self.inner.aval()?;
        check_float("the matrix", &inner)?;
        check_children("a matrix of 8-bit activations", &self.aval, &[("its matrix", self.aval.clone(), inner)])
    }
}

impl Linear for Int8Inputs {
    fn rounds(&self) -> Option<&Value> {
        Some(&self.inner)
    }

    fn rounding_alike(&self, matrix: Value) -> Result<Value> {
        // What is rounded a second time is another number.
        if matrix.downcast::<Self>().is_some() { Ok(matrix) } else { Ok(Self::new(matrix, self.per)?.into()) }
    }

    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        decline_if(product == Product::Rows, "rows are those of the matrix")?;
        // Where this declined, the smaller of both would be built, and nobody would round where that is this one.
        let x = &x.dense()?;
        // The tokens of `W x` are the columns of `x`.
        let columns = product == Product::Left && x.ndim() > 1;
        let tokens = if columns { &x.swap_axes(-1, -2)? } else { x };
        let rounded = int8_rounded(tokens, self.per)?;
        let x = if columns { rounded.swap_axes(-1, -2)? } else { rounded };
        implicit((x, &self.inner), |(x, w)| product.apply(&x, &w))
    }

    fn transposed(&self, axes: &[i32]) -> Result<Value> {
        self.mapped(|inner| Ok(inner.transpose_axes(axes)?))
    }

    fn cast(&self, dtype: Dtype) -> Result<Value> {
        check_castable(dtype)?;
        self.mapped(|inner| Ok(inner.as_dtype(dtype)?))
    }
}

/// Rows, slices and other shapes are those of the matrix, and multiply nothing. A transpose is that of [`Linear`].
#[handler]
pub(crate) fn int8_inputs_moving(
    op: &primitives::Moving,
    w: &Int8Inputs,
    rest: &[&Value],
    results: &[Aval],
) -> Result<Vec<Value>> {
    decline_if(op.name() == primitives::Transpose::NAME, "its products are those of a transposed matrix")?;
    let moved = op.apply(&[&[&w.inner], rest].concat())?;
    // MLX repeats matrices for a batch of what they multiply: their products are those of the matrices.
    let repeats = [primitives::Broadcast::NAME, primitives::BroadcastAxes::NAME].contains(&op.name());
    let matrix = w.aval.shape.last_chunk::<2>().filter(|matrix| repeats && results[0].shape.ends_with(*matrix));
    if matrix.is_none() {
        return Ok(moved);
    }
    moved.into_iter().map(|inner| Ok(Int8Inputs::new(inner, w.per)?.into())).collect()
}

/// Products that a matrix does not have by itself: those of chosen matrices of a stack, such as the experts of a mixture, and
/// convolutions, whose tokens are the channels at each place.
#[handler]
pub(crate) fn int8_inputs_product(
    op: &primitives::Product,
    x: &Array,
    w: &Int8Inputs,
    rest: &[&Value],
) -> Result<Vec<Value>> {
    let x = int8_rounded(x, w.per)?.into();
    op.apply(&[&[&x, &w.inner], rest].concat())
}
