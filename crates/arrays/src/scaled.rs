//! An array times a number.

use mlx_rs::{Array, Dtype};
use tacit_core::op::{AsType, Divide, Moving, Multiply, Negative, Slice, Sum, TypedPrimitive};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, broadcast_source, handler, implicit};

use crate::cast::{Cast, castable, holds};
use crate::linear::{Gain, Linear, dense_side};
use crate::views::{built, ranges};

/// Any array times a scalar.
///
/// Every linear primitive passes through: the scalar multiplies its result, which is smaller, or the view that it
/// makes. `w * s` and `w / s` make one of any implicit `w` whose type has no such handler, so that the scalar does not
/// cost the fused handlers of `w`. The scalar gets a gradient.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::{Nf4Array, Scaled};
/// use tacit_core::implicit;
///
/// let w = Scaled::new(Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?, &Array::from_f32(0.5))?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit(|[x, w]: [Array; 2]| x.matmul(w.t()))([x.into(), w.into()])?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [16.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Scaled", family(Linear))]
pub struct Scaled {
    inner: Value,
    /// Without axes, of the dtype of `inner`.
    scale: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Scaled {
    /// `scale * inner`.
    ///
    /// # Errors
    ///
    /// `inner` is not float, or `scale` has axes or another dtype.
    pub fn new(inner: impl Into<Value>, scale: &Array) -> Result<Self> {
        let inner = inner.into();
        let (aval, found) = (inner.aval()?, Aval::from(scale));
        if !aval.dtype.is_float() {
            return Err(Error::invalid(format!("{aval} cannot be scaled"), "scale a float array"));
        }
        let expected = Aval::new(&[], aval.dtype);
        if expected != found {
            return Err(Error::invalid(
                format!("the scale is {found}, and that of {aval} is {expected}"),
                "give a scalar of the array's dtype",
            ));
        }
        Ok(Self { inner, scale: scale.clone(), aval })
    }

    /// The array that is scaled.
    #[must_use]
    pub fn inner(&self) -> &Value {
        &self.inner
    }

    /// The scalar.
    #[must_use]
    pub fn scale(&self) -> &Array {
        &self.scale
    }

    /// The product as a view where there is something to view.
    pub(crate) fn of(inner: Value, scale: &Array) -> Result<Value> {
        if let Some(view) = inner.downcast::<Self>() {
            return Self::of(view.inner.clone(), &view.scale.multiply(scale)?);
        }
        match inner {
            Value::Dense(array) => Ok(array.multiply(scale)?.into()),
            inner @ Value::Implicit(_) => Ok(Self::new(inner, scale)?.into()),
        }
    }
}

impl Materialize for Scaled {
    fn materialize(&self) -> Result<Value> {
        Self::of(built(&self.inner)?, &self.scale)
    }
}

impl Linear for Scaled {
    fn right(&self, x: &Value) -> Result<Value> {
        let product = implicit(|[x, w]: [Array; 2]| x.matmul(w))([dense_side(x)?.into(), self.inner.clone()])?;
        Self::of(product, &self.scale)
    }

    fn left(&self, x: &Value) -> Result<Value> {
        let product = implicit(|[x, w]: [Array; 2]| w.matmul(x))([dense_side(x)?.into(), self.inner.clone()])?;
        Self::of(product, &self.scale)
    }

    fn gain(&self) -> Gain {
        Gain::None
    }
}

/// Moved elements: the scalar multiplies them where they are.
#[handler]
pub fn scaled_moving(op: &Moving, w: &Scaled, rest: &[&Value], made: &[Aval]) -> Result<Vec<Value>> {
    if op.name() == Slice::NAME {
        ranges(&op.view()?, &made[0])?;
    }
    let operands: Vec<&Value> = std::iter::once(&w.inner).chain(rest.iter().copied()).collect();
    op.apply(&operands)?.into_iter().map(|result| Scaled::of(result, &w.scale)).collect()
}

/// The scalar multiplies the sum.
#[handler]
pub fn scaled_sum(op: &Sum, w: &Scaled) -> Result<Value> {
    Scaled::of(implicit(|w: Array| w.sum_axes(&op.axes, true))(w.inner.clone())?, &w.scale)
}

/// The same array times the negated scalar.
#[handler]
pub fn scaled_negative(_op: &Negative, w: &Scaled) -> Result<Value> {
    Scaled::of(w.inner.clone(), &w.scale.negative()?)
}

/// The cast of the product.
#[handler]
pub fn scaled_astype(op: &AsType, w: &Scaled) -> Result<Value> {
    if !castable(op.dtype) {
        return Err(Error::decline("only f32, bf16 and f16 are read as views"));
    }
    let own = w.aval.dtype;
    if holds(op.dtype, own) {
        return Cast::of(w.clone().into(), own, op.dtype);
    }
    // A product in a narrower type shows its rounding in a wider one.
    let inner = implicit(|w: Array| w.as_dtype(Dtype::Float32))(w.inner.clone())?;
    Cast::of(Scaled::of(inner, &w.scale.as_dtype(Dtype::Float32)?)?, own, op.dtype)
}

/// Any array times a scalar, as a [`Scaled`].
#[handler]
pub fn scale(_op: &Multiply, w: &dyn ImplicitArray, by: &Array) -> Result<Value> {
    Scaled::of(dyn_clone::clone_box(w).into(), &scalar(w, by)?)
}

/// Any array divided by a scalar, as a [`Scaled`].
#[handler]
pub fn unscale(_op: &Divide, w: &dyn ImplicitArray, by: &Array) -> Result<Value> {
    let by = scalar(w, by)?;
    Scaled::of(dyn_clone::clone_box(w).into(), &by.reciprocal()?)
}

/// The number that the other factor repeats.
fn scalar(w: &dyn ImplicitArray, factor: &Array) -> Result<Array> {
    let dtype = w.aval()?.dtype;
    if !dtype.is_float() || dtype == Dtype::Float16 {
        return Err(Error::decline("only f32 and bf16 arrays are scaled: a number beside an f16 one overflows"));
    }
    let number = broadcast_source(factor)?;
    if number.size() != 1 {
        return Err(Error::decline("the other factor is not a scalar"));
    }
    Ok(number.reshape(&[])?)
}
