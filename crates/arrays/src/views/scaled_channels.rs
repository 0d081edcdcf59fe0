//! An array times a vector along one of its axes.

use std::ops::Range;

use mlx_rs::{Array, ops};
use tacit_core::primitives::GatherMM;
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, implicit};

use crate::avals::axes::from_zero;
use crate::avals::checks::{check_float, check_made, decline_if};
use crate::avals::dtypes::{accumulator_dtype, in_accumulator_dtype, in_room};
use crate::families::cut::{Cut, cut};
use crate::families::linear::{Linear, Product, dense_operand};
use crate::families::view::{Move, View};

/// An array whose elements are multiplied by a factor for each position along one axis, `W D` or `D W` with a diagonal `D`.
///
/// A product that sums over the axis multiplies the other side in its place, and any other product its result: the array
/// itself is multiplied as it is stored. So codes may be those of a weight whose inputs were scaled, as
/// [`Awq`](crate::Awq) makes them.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::{Nf4Array, ScaledChannels};
/// use tacit_core::implicit;
///
/// let w = Nf4Array::quantize(&ops::ones::<f32>(&[8, 4])?, 32)?;
/// let w = ScaledChannels::new(w, &Array::from_slice(&[1f32, 2.0, 3.0, 4.0], &[4]), -1)?;
/// let x = ops::ones::<f32>(&[2, 4])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [10.0; 16]);
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.ScaledChannels", family(Linear, Cut, View))]
pub struct ScaledChannels {
    /// The array that is scaled.
    #[implicit(get)]
    inner: Value,
    /// The factors, `[k]`. They are `f32` where `inner` is of a half type.
    #[implicit(get)]
    factors: Array,
    /// The axis that they are along, counted from zero.
    #[implicit(aux, get)]
    axis: usize,
    #[implicit(aux)]
    aval: Aval,
}

impl ScaledChannels {
    /// `inner` times `factors: [k]` along an axis of `k`; a negative axis counts from the end.
    ///
    /// # Errors
    ///
    /// `inner` is not float, has no such axis, or one of another extent; the factors are not float.
    pub fn new(inner: impl Into<Value>, factors: &Array, axis: i32) -> Result<Self> {
        let inner = inner.into();
        let (aval, found) = (inner.aval()?, Aval::from(factors));
        check_float("what is scaled", &aval)?;
        let at = from_zero(axis, aval.shape.len()).filter(|&axis| found.shape == [aval.shape[axis]]);
        let Some(axis) = at.filter(|_| found.dtype.is_float()) else {
            return Err(Error::invalid(
                format!("the factors are {found}, and {aval} is scaled along axis {axis}"),
                "give a float vector with a factor for each position along an axis of the array",
            ));
        };
        Ok(Self { inner, factors: factors.as_dtype(accumulator_dtype(aval.dtype))?, axis, aval })
    }

    /// `inner` times the factors along an axis, as a view where there is something to view.
    fn view(inner: Value, factors: &Array, axis: usize) -> Result<Value> {
        let aval = inner.aval()?;
        match inner {
            // What is left of a view may have no element.
            _ if aval.shape.contains(&0) => Ok(ops::zeros_dtype(&aval.shape, aval.dtype)?.into()),
            Value::Dense(array) => Ok(times(&array, factors, array.ndim() - 1 - axis)?.into()),
            inner @ Value::Implicit(_) => Ok(Self::new(inner, factors, axis as i32)?.into()),
        }
    }
}

/// `array` times factors along the axis that so many axes are behind.
fn times(array: &Array, factors: &Array, behind: usize) -> Result<Array> {
    let shape: Vec<i32> = std::iter::once(-1).chain(std::iter::repeat_n(1, behind)).collect();
    let factors = factors.reshape(&shape)?;
    in_accumulator_dtype(array, |array| Ok(array.multiply(factors.as_dtype(accumulator_dtype(array.dtype()))?)?))
}

impl Materialize for ScaledChannels {
    fn materialize(&self) -> Result<Value> {
        Self::view(self.inner.opened()?, &self.factors, self.axis)
    }

    fn check(&self) -> Result<()> {
        let axis = self.axis.try_into().unwrap_or(i32::MAX);
        check_made(self, &Self::new(&self.inner, &self.factors, axis)?)
    }
}

impl Cut for ScaledChannels {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let inner = cut(&self.inner, axis as i32, range.clone())?;
        let factors = (&self.factors).into();
        let factors = if axis == self.axis { cut(&factors, 0, range)? } else { factors };
        Self::view(inner, &factors.dense()?, self.axis)
    }
}

impl Linear for ScaledChannels {
    fn product(&self, product: Product, x: &Value) -> Result<Value> {
        decline_if(product == Product::Rows, "rows are moved elements")?;
        let dtype = self.aval.dtype;
        let behind = self.aval.shape.len() - 1 - self.axis;
        let shared = usize::from(product != Product::Left);
        decline_if(behind > 1, "whole matrices are scaled")?;
        if behind == shared {
            // The axis is summed over: the other side is scaled in its place.
            let x = &in_room(product.operand(x)?)?;
            let axis = x.ndim().checked_sub(2 - shared);
            let behind = axis.map(|axis| x.ndim() - 1 - axis);
            let x = times(x, &self.factors, behind.ok_or_else(|| Error::decline("the right side is a vector"))?)?;
            return implicit((x, &self.inner), |(x, w)| Ok::<_, Error>(product.apply(&x, &w)?.as_dtype(dtype)?));
        }
        let result = implicit((x, &self.inner), |(x, w)| product.apply(&in_room(&x)?, &w))?;
        implicit((result, &self.factors), |(result, factors)| {
            Ok::<_, Error>(times(&result, &factors, behind)?.as_dtype(dtype)?)
        })
    }

    fn gather_mm(&self, _op: &GatherMM, x: &Value, left: &Array, right: &Array) -> Result<Value> {
        let behind = self.aval.shape.len() - 1 - self.axis;
        let x = &in_room(dense_operand(x)?)?;
        let chosen = |x: &Array| implicit((x, &self.inner), |(x, inner)| ops::gather_mm(x, inner, left, right, None));
        let result = match behind {
            0 => implicit((chosen(x)?, &self.factors), |(result, factors)| times(&result, &factors, 0)),
            1 => chosen(&times(x, &self.factors, 0)?),
            _ => Err(Error::decline("whole matrices are scaled")),
        };
        implicit(result?, |result| result.as_dtype(self.aval.dtype))
    }
}

impl View for ScaledChannels {
    fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>> {
        let axis = step.axis(self.axis)?;
        step.around([&self.inner], |[inner]| Self::view(inner, &self.factors, axis))
    }
}
