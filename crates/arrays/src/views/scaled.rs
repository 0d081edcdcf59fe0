//! An array times or divided by a number.

use std::ops::Range;

use mlx_rs::{Array, Dtype};
use tacit_core::primitives::{AsType, Divide, Multiply, Negative, Sum};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, broadcast_source, handler, implicit};

use crate::avals::checks::check_made;
use crate::avals::dtypes::{castable, holds, wide, widely};
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Linear, dense_side};
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
    inner: Value,
    /// Without axes; `f32` where `inner` is of a half type.
    scale: Array,
    /// Whether the scalar is a divisor.
    #[implicit(aux)]
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
        if expected != found && Aval::new(&[], wide(aval.dtype)) != found {
            return Err(Error::invalid(
                format!("the scale is {found}, and that of {aval} is {expected}"),
                "give a scalar of the array's dtype",
            ));
        }
        Ok(Self { inner, scale: scale.as_dtype(wide(aval.dtype))?, divides: false, aval })
    }

    /// The array that is scaled.
    #[must_use]
    pub fn inner(&self) -> &Value {
        &self.inner
    }

    /// The scalar: a factor, or a divisor if [`divides`](Self::divides).
    #[must_use]
    pub fn scale(&self) -> &Array {
        &self.scale
    }

    /// Whether the array is divided by the scalar.
    #[must_use]
    pub fn divides(&self) -> bool {
        self.divides
    }

    /// The product or quotient as a view where there is something to view.
    pub(crate) fn of(inner: Value, scale: &Array, divides: bool) -> Result<Value> {
        if let Some(view) = inner.downcast::<Self>() {
            let both = if view.divides == divides { view.scale.multiply(scale)? } else { view.scale.divide(scale)? };
            return Self::of(view.inner.clone(), &both, view.divides);
        }
        match inner {
            Value::Dense(array) => {
                let scaled = |array: &Array| Ok(if divides { array.divide(scale)? } else { array.multiply(scale)? });
                Ok(widely(&array, scaled)?.into())
            }
            inner @ Value::Implicit(_) => Ok(Self { divides, ..Self::new(inner, scale)? }.into()),
        }
    }

    /// Another array with the same scalar.
    fn with(&self, inner: Value) -> Result<Value> {
        Self::of(inner, &self.scale, self.divides)
    }

    /// What plain code makes of `x` and the array behind the view, scaled.
    fn product(&self, x: &Array, f: fn(&Array, &Array) -> Result<Array>) -> Result<Value> {
        // What a small scalar brings back into the range of f16 may be beyond it before.
        let x = if self.aval.dtype == Dtype::Float16 { &x.as_dtype(Dtype::Float32)? } else { x };
        let product = self.with(implicit((x, &self.inner), |(x, w)| f(&x, &w))?)?;
        implicit(product, |product| product.as_dtype(self.aval.dtype))
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
        Self::of(cut(&self.inner, axis as i32, range)?, &self.scale, self.divides)
    }
}

impl View for Scaled {
    fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>> {
        step.around([&self.inner], |[inner]| self.with(inner))
    }
}

impl Linear for Scaled {
    fn right(&self, x: &Value) -> Result<Value> {
        self.product(dense_side(x)?, |x, w| Ok(x.matmul(w)?))
    }

    fn left(&self, x: &Value) -> Result<Value> {
        self.product(dense_side(x)?, |x, w| Ok(w.matmul(x)?))
    }
}

/// The scalar multiplies the sum.
#[handler]
pub(crate) fn scaled_sum(op: &Sum, w: &Scaled) -> Result<Value> {
    if w.aval.dtype == Dtype::Float16 {
        return Err(Error::decline("the sum may be beyond the range of f16 before it is scaled"));
    }
    w.with(implicit(&w.inner, |w| w.sum_axes(&op.axes, true))?)
}

/// The same array times the negated scalar.
#[handler]
pub(crate) fn scaled_negative(_op: &Negative, w: &Scaled) -> Result<Value> {
    Scaled::of(w.inner.clone(), &w.scale.negative()?, w.divides)
}

/// The cast of the product.
#[handler]
pub(crate) fn scaled_astype(op: &AsType, w: &Scaled) -> Result<Value> {
    if !castable(op.dtype) {
        return Err(Error::decline("only f32, bf16 and f16 are read as views"));
    }
    let own = w.aval.dtype;
    if holds(op.dtype, own) {
        return Cast::of(w.clone().into(), own, op.dtype);
    }
    // A product in a narrower type shows its rounding in a wider one.
    let inner = implicit(&w.inner, |w| w.as_dtype(Dtype::Float32))?;
    Cast::of(w.with(inner)?, own, op.dtype)
}

/// Any array times a scalar, as a [`Scaled`].
#[handler]
pub(crate) fn scale(_op: &Multiply, w: &dyn ImplicitArray, by: &Array) -> Result<Value> {
    Scaled::of(dyn_clone::clone_box(w).into(), &scalar(w, by)?, false)
}

/// Any array divided by a scalar, as a [`Scaled`].
#[handler]
pub(crate) fn unscale(_op: &Divide, w: &dyn ImplicitArray, by: &Array) -> Result<Value> {
    Scaled::of(dyn_clone::clone_box(w).into(), &scalar(w, by)?, true)
}

/// The number that the other factor repeats.
fn scalar(w: &dyn ImplicitArray, factor: &Array) -> Result<Array> {
    let dtype = w.aval()?.dtype;
    if !dtype.is_float() {
        return Err(Error::decline("only float arrays are scaled"));
    }
    let number = broadcast_source(factor)?;
    if number.size() != 1 {
        return Err(Error::decline("the other factor is not a scalar"));
    }
    Ok(number.reshape(&[])?.as_dtype(wide(dtype))?)
}
