//! An array times or divided by a number.

use std::ops::Range;

use mlx_rs::{Array, Dtype};
use tacit_core::primitives::Sum;
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};

use crate::avals::checks::{check_made, decline_if};
use crate::avals::dtypes::{accumulator_dtype, check_castable, holds, in_accumulator_dtype, in_room};
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Linear, Product};
use crate::families::view::{Move, View};
use crate::views::cast::Cast;

/// Any array times a scalar, or divided by one.
///
/// Every linear primitive passes through: the scalar multiplies its result, which is smaller, or the view that it
/// makes. `w * s` and `w / s` make one of any implicit `w` whose type has no such handler, so that the scalar does not
/// cost the fused handlers of `w`. The scalar gets a gradient. It is kept in `f32` beside a half type, so that each element
/// is rounded once.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::{Nf4Array, Scaled};
/// use tacit_core::implicit;
///
/// let w = Scaled::new(Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?, &Array::from_f32(0.5))?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [16.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Scaled", family(Linear, Cut, View))]
pub struct Scaled {
    /// The array that is scaled.
    #[implicit(get)]
    inner: Value,
    /// The scalar: a factor, or a divisor if [`divides`](Self::divides). It has no axes, and is `f32` where `inner` is of a half
    /// type.
    #[implicit(get)]
    scale: Array,
    /// Whether the array is divided by the scalar.
    #[implicit(aux, get)]
    divides: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl Scaled {
    /// `scale * inner`.
    ///
    /// # Errors
    ///
    /// `inner` is not float, or `scale` has axes or a dtype that is neither the array's nor `f32` beside a half type.
    pub fn new(inner: impl Into<Value>, scale: &Array) -> Result<Self> {
        let inner = inner.into();
        let (aval, found) = (inner.aval()?, Aval::from(scale));
        if !aval.dtype.is_float() {
            return Err(Error::invalid(format!("{aval} cannot be scaled"), "scale a float array"));
        }
        let expected = Aval::new(&[], aval.dtype);
        if expected != found && Aval::new(&[], accumulator_dtype(aval.dtype)) != found {
            return Err(Error::invalid(
                format!("the scale is {found}, and that of {aval} is {expected}"),
                "give a scalar of the array's dtype",
            ));
        }
        Ok(Self { inner, scale: scale.as_dtype(accumulator_dtype(aval.dtype))?, divides: false, aval })
    }

    /// The product or quotient as a view where there is something to view.
    pub(crate) fn view(inner: Value, scale: &Array, divides: bool) -> Result<Value> {
        if let Some(view) = inner.downcast::<Self>() {
            let both = if view.divides == divides { view.scale.multiply(scale)? } else { view.scale.divide(scale)? };
            return Self::view(view.inner.clone(), &both, view.divides);
        }
        match inner {
            Value::Dense(array) => {
                let scaled = |array: &Array| Ok(if divides { array.divide(scale)? } else { array.multiply(scale)? });
                Ok(in_accumulator_dtype(&array, scaled)?.into())
            }
            inner @ Value::Implicit(_) => Ok(Self { divides, ..Self::new(inner, scale)? }.into()),
        }
    }

    fn with(&self, inner: Value) -> Result<Value> {
        Self::view(inner, &self.scale, self.divides)
    }
}

impl Materialize for Scaled {
    fn materialize(&self) -> Result<Value> {
        self.with(self.inner.opened()?)
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self { divides: self.divides, ..Self::new(&self.inner, &self.scale)? })
    }
}

impl Cut for Scaled {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        Self::view(cut(&self.inner, axis as i32, range)?, &self.scale, self.divides)
    }
}

impl View for Scaled {
    fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>> {
        step.around([&self.inner], |[inner]| self.with(inner))
    }
}

impl Linear for Scaled {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        let x = in_room(product.operand(x)?)?;
        let result = self.with(implicit((x, &self.inner), |(x, w)| product.apply(&x, &w))?)?;
        implicit(result, |result| result.as_dtype(self.aval.dtype))
    }

    fn cast(&self, dtype: Dtype) -> Result<Value> {
        let from = self.aval.dtype;
        check_castable(from)?;
        check_castable(dtype)?;
        if holds(dtype, from) {
            return Cast::view(self.clone().into(), from, dtype);
        }
        // A product in a narrower type shows its rounding in a wider one.
        let inner = implicit(&self.inner, |w| w.as_dtype(Dtype::Float32))?;
        Cast::view(self.with(inner)?, from, dtype)
    }
}

/// The scalar multiplies the sum.
#[handler]
pub(crate) fn scaled_sum(op: &Sum, w: &Scaled) -> Result<Value> {
    decline_if(w.aval.dtype == Dtype::Float16, "the sum may be beyond the range of f16 before it is scaled")?;
    w.with(implicit(&w.inner, |w| w.sum_axes(&op.axes, true))?)
}
