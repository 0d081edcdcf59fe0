//! An array of which some elements are zero.

use std::ops::Range;

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, IntoStrideBy, TryIndexOp};
use mlx_rs::{Array, Dtype, ops};
use tacit_core::op::{AsType, Gather, Multiply, Reshaping, Slice, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};

use crate::checks::check_made;
use crate::cut::{Cut, cut};
use crate::linear::{check_float, gathered_rows, scalar};
use crate::views::forward;

/// An array that is `inner` where `mask` is true, and zero elsewhere.
///
/// What `inner` holds under the mask never shows, be it a NaN, and gets no gradient. Views and rows are taken of both,
/// so that less is masked; a product needs the array built.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_arrays::Masked;
/// use tacit_core::implicit;
///
/// let inner = Array::from_slice(&[1f32, f32::NAN, 3.0, 4.0], &[2, 2]);
/// let mask = Array::from_slice(&[true, false, true, true], &[2, 2]);
/// let y = implicit(Masked::new(inner, mask)?, |w| Ok::<_, tacit_core::Error>(w.t()))?;
/// assert_eq!(y.to_string(), "Masked(f32[2,2])");
/// # Ok(())
/// # }
/// ```
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Masked", family(Cut))]
pub struct Masked {
    inner: Value,
    /// `bool`, of the shape of `inner`.
    mask: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Masked {
    /// `inner` where `mask`, a `bool` array of its shape, is true.
    ///
    /// # Errors
    ///
    /// `inner` is not float or has no elements, or `mask` is of another shape or not `bool`.
    pub fn new(inner: impl Into<Value>, mask: Array) -> Result<Self> {
        let inner = inner.into();
        let aval = inner.aval()?;
        check_float("the masked array", &aval)?;
        let (expected, found) = (Aval::new(&aval.shape, Dtype::Bool), Aval::from(&mask));
        if expected != found {
            return Err(Error::invalid(
                format!("the mask is {found}, and that of {aval} is {expected}"),
                "compare the array with a threshold, or broadcast the mask",
            ));
        }
        Ok(Self { inner, mask, aval })
    }

    /// The array under the mask.
    #[must_use]
    pub fn inner(&self) -> &Value {
        &self.inner
    }

    /// Which elements are kept.
    #[must_use]
    pub fn mask(&self) -> &Array {
        &self.mask
    }

    /// A view of both.
    fn viewed(&self, f: impl Fn(&Array) -> Result<Array, Exception>) -> Result<Value> {
        let inner = implicit(&self.inner, |inner| f(&inner))?;
        Ok(Self { aval: inner.aval()?, inner, mask: f(&self.mask)? }.into())
    }

    /// Another array under the same mask.
    fn with(&self, inner: Value) -> Result<Value> {
        Ok(Self { aval: inner.aval()?, inner, mask: self.mask.clone() }.into())
    }
}

impl Materialize for Masked {
    fn materialize(&self) -> Result<Value> {
        let inner = self.inner.dense()?;
        let zero = Array::from_f32(0.0).as_dtype(inner.dtype())?;
        Ok(ops::select(&self.mask, inner, zero)?.into())
    }

    fn check(&self) -> Result<()> {
        check_made(self, &Self::new(&self.inner, self.mask.clone())?)
    }
}

impl Cut for Masked {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let mask = cut(&(&self.mask).into(), axis as i32, range.clone())?.dense()?;
        Ok(Self::new(cut(&self.inner, axis as i32, range)?, mask)?.into())
    }
}

/// Both with their axes permuted.
#[handler]
pub fn masked_transpose(op: &Transpose, w: &Masked) -> Result<Value> {
    w.viewed(|array| array.transpose_axes(&op.axes))
}

/// Both in another shape.
#[handler]
pub fn masked_reshape(_op: &Reshaping, w: &Masked, made: &[Aval]) -> Result<Value> {
    w.viewed(|array| array.reshape(&made[0].shape))
}

/// A slice of both.
#[handler]
pub fn masked_slice(op: &Slice, w: &Masked, made: &[Aval]) -> Result<Value> {
    forward(op, &made[0])?;
    let bounds = op.start_indices.iter().zip(&op.end_indices).zip(&op.strides);
    let slices: Vec<ArrayIndexOp> =
        bounds.map(|((&start, &end), &stride)| (start..end).stride_by(stride).index_op()).collect();
    w.viewed(|array| array.try_index(slices.as_slice()))
}

/// Rows of both.
#[handler]
pub fn masked_gather(op: &Gather, w: &Masked, rows: &Array) -> Result<Value> {
    let shape = gathered_rows(op, &w.aval, rows)?;
    w.viewed(|array| array.take_axis(rows, 0)?.reshape(&shape))
}

/// Another type of the array under the mask.
#[handler]
pub fn masked_astype(op: &AsType, w: &Masked) -> Result<Value> {
    w.with(implicit(&w.inner, |inner| inner.as_dtype(op.dtype))?)
}

/// A scalar as the other operand: zero elements stay zero, even if it is infinite or NaN.
#[handler]
pub fn masked_multiply(_op: &Multiply, w: &Masked, x: &Array) -> Result<Value> {
    let x = scalar(x)?;
    w.with(implicit((&w.inner, x), |(inner, x)| inner.multiply(x))?)
}
