//! Quantization-aware low-rank adaptation: an adapter that is a change of the biases of a packed base.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops, stop_gradient};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};

use crate::adapters::as_merged;
use crate::adapters::factors;
use crate::adapters::lora::check_alpha;
use crate::avals::checks::{check_children, check_float, checked};
use crate::avals::dtypes::accumulator_dtype;
use crate::families::adapter::Adapter;
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Gain, Linear, Product};
use crate::families::packed::{Packed, Stored};
use crate::families::structural::stopped;
use crate::format::symmetric::SymmetricArray;
use crate::kernel::Summands;

/// A packed base whose biases are moved by `alpha / r * B A`, one number for each group of a row.
///
/// The base is in a format with biases, such as [`Affine`](crate::format::Affine) in groups of `g` elements; the factors are
/// `a: [r, in / g]`, which sees the sum of each group of input features, and `b: [out, r]`. The array is at any time what it
/// merges into: [`merged`](Self::merged) has the codes and scales of the base byte for byte, and products with it are
/// those that were trained with, bit for bit.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{AffineArray, QaLora, format::Affine};
/// use tacit_core::implicit;
///
/// let base = AffineArray::quantize(&ops::ones::<f32>(&[8, 64])?, Affine { bits: 4, group: 32 })?;
/// let w = QaLora::new(base, ops::ones::<f32>(&[4, 2])?, ops::ones::<f32>(&[8, 4])?, 1.0)?;
/// let x = ops::ones::<f32>(&[2, 64])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [128.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The method is that of `QA-LoRA` (Xu et al., 2023).
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.QaLora", family(Linear, Adapter, Cut))]
pub struct QaLora {
    /// The packed base. It is `[out, in]`, or `[in, out]` where it is transposed.
    #[implicit(get)]
    base: Value,
    /// The right factor, `[r, in / g]`.
    #[implicit(get)]
    a: Array,
    /// The left factor, `[out, r]`.
    #[implicit(get)]
    b: Array,
    /// The bits of an `f32`.
    #[implicit(aux)]
    alpha: u32,
    #[implicit(aux)]
    aval: Aval,
}

impl QaLora {
    /// A change of the biases of `base: [out, in]` by `alpha / r` times the product of `b: [out, r]` and `a: [r, in / g]`.
    ///
    /// A symmetric base gets [biases](crate::SymmetricArray::to_affine) for that.
    ///
    /// # Errors
    ///
    /// The base is not packed with biases, the factors are not float or do not fit it, or `alpha` is not finite.
    pub fn new(base: impl Into<Value>, a: Array, b: Array, alpha: f32) -> Result<Self> {
        let mut base = base.into();
        if let Some(symmetric) = base.downcast::<SymmetricArray>() {
            base = symmetric.to_affine()?.into();
        }
        checked(Self { aval: base.aval()?, base, a, b, alpha: alpha.to_bits() })
    }

    /// The factor `alpha / r` of the product of `b` and `a`.
    #[must_use]
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.alpha) / self.a.dim(0) as f32
    }

    /// The base with the moved biases, without a gradient.
    ///
    /// # Errors
    ///
    /// MLX refuses an op.
    pub fn merged(&self) -> Result<Value> {
        let (array, mut stored) = self.packed()?;
        let [left, right] = [&self.b, &self.a].map(stop_gradient);
        let change = self.scaled(&left?)?.matmul(right?.as_dtype(Dtype::Float32)?)?;
        if let Some(biases) = &mut stored.biases {
            let moved = biases.as_dtype(Dtype::Float32)?.add(change)?;
            *biases = stop_gradient(moved.as_dtype(biases.dtype())?)?;
        }
        stored.scales = stored.scales.as_ref().map(stopped).transpose()?;
        Ok(array.restored(stored).into())
    }

    fn scaled(&self, left: &Array) -> Result<Array> {
        Ok(left.as_dtype(Dtype::Float32)?.multiply(Array::from_f32(self.scale()))?)
    }

    fn packed(&self) -> Result<(&dyn Packed, Stored)> {
        let packed = self.base.family::<dyn Packed>();
        let packed = packed.map(|array| (array, array.stored()));
        packed.filter(|(_, stored)| stored.scheme.biased && stored.aval.shape.len() == 2).ok_or_else(|| {
            Error::invalid(
                format!("the base is {}, which has no biases to move", self.base),
                "give a matrix in the affine format, or adapt this one by a `Lora`",
            )
        })
    }

    /// The factors of the change of the matrix itself, as it is transposed.
    fn factors(&self, dtype: Dtype) -> Result<[Array; 2]> {
        let (_, stored) = self.packed()?;
        let left = self.scaled(&self.b)?.as_dtype(dtype)?;
        let right =
            ops::repeat_axis::<f32>(self.a.as_dtype(Dtype::Float32)?, stored.block as i32, 1)?.as_dtype(dtype)?;
        Ok(if stored.transposed { [right.t(), left.t()] } else { [left, right] })
    }
}

impl Materialize for QaLora {
    fn materialize(&self) -> Result<Value> {
        as_merged::built(&self.merged()?.opened()?, self)
    }

    fn check(&self) -> Result<()> {
        let (_, stored) = self.packed()?;
        let (a, b) = (Aval::from(&self.a), Aval::from(&self.b));
        check_float("a", &a)?;
        check_float("b", &b)?;
        let shape = stored.shape();
        let groups = shape[1] / stored.block as i32;
        if (a.shape.as_slice(), b.shape.as_slice()) != (&[self.a.dim(0), groups], &[shape[0], self.a.dim(0)]) {
            return Err(Error::invalid(
                format!(
                    "a is {a} and b is {b}, which do not fit a base of {} in groups of {}",
                    stored.aval, stored.block
                ),
                "give a: [r, in / group] and b: [out, r] for a base [out, in]",
            ));
        }
        check_alpha(self.alpha)?;
        check_children("a QaLora", &self.aval, &[("its base", self.aval.clone(), stored.aval)])
    }
}

impl Cut for QaLora {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let (_, stored) = self.packed()?;
        let base = cut(&self.base, axis as i32, range.clone())?;
        let mut part = Self { aval: base.aval()?, base, ..self.clone() };
        let block = stored.block as i32;
        if factors::is_output(axis, stored.transposed) {
            part.b = factors::factor(&self.b, 0, &range)?;
        } else if range.start % block == 0 && range.end % block == 0 {
            part.a = factors::factor(&self.a, 1, &(range.start / block..range.end / block))?;
        } else {
            return Err(Error::invalid(
                format!("a QaLora of {} in groups of {block} is not cut inside a group", self.aval),
                format!("cut it along its inputs at multiples of {block}"),
            ));
        }
        Ok(part.into())
    }
}

impl Linear for QaLora {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        as_merged::straight_through(product, x, &self.merged()?, self)
    }

    fn gain(&self) -> Gain {
        Gain::Sum
    }

    fn transposed(&self, _axes: &[i32]) -> Result<Value> {
        let (base, aval) = factors::transposed(&self.base)?;
        Ok(Self { base, aval, ..self.clone() }.into())
    }
}

impl Adapter for QaLora {
    fn base(&self) -> &Value {
        &self.base
    }

    fn with_base(&self, base: Value) -> Result<Box<dyn ImplicitArray>> {
        Ok(Box::new(checked(Self { aval: base.aval()?, base, ..self.clone() })?))
    }

    fn trained(&self) -> &'static [&'static str] {
        &["a", "b"]
    }

    fn summands(&self, transposed: bool) -> Result<Option<Summands>> {
        as_merged::summands(&self.merged()?, transposed)
    }

    fn change(&self, product: Product, x: &Array) -> Result<Array> {
        product.of_factors(x, &self.factors(accumulator_dtype(self.aval.dtype))?)
    }

    fn lossless(&self) -> Result<Option<Value>> {
        Ok(Some(self.merged()?))
    }
}
