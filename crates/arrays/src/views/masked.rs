//! An array of which some elements are zero.

use std::ops::Range;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{AsType, Multiply};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler, implicit};

use crate::avals::checks::{check_float, check_made, decline_if};
use crate::families::cut::{Cut, cut};
use crate::families::linear::scalar;
use crate::families::view::{Move, View};

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
#[implicit(name = "tacit.Masked", family(Cut, View))]
pub struct Masked {
    /// The array under the mask.
    #[implicit(get)]
    inner: Value,
    /// Which elements are kept. It is `bool`, of the shape of `inner`.
    #[implicit(get)]
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

impl View for Masked {
    fn moved(&self, step: &Move<'_>) -> Result<Vec<Value>> {
        step.around([&self.inner, &(&self.mask).into()], |[inner, mask]| {
            Ok(Self { aval: inner.aval()?, inner, mask: mask.dense()? }.into())
        })
    }
}

impl Cut for Masked {
    fn cut(&self, axis: usize, range: Range<i32>) -> Result<Value> {
        let mask = cut(&(&self.mask).into(), axis as i32, range.clone())?.dense()?;
        Ok(Self::new(cut(&self.inner, axis as i32, range)?, mask)?.into())
    }
}

/// Another float type of the array under the mask.
#[handler]
pub(crate) fn masked_astype(op: &AsType, w: &Masked) -> Result<Value> {
    decline_if(!op.dtype.is_float(), "only float arrays are masked")?;
    w.with(implicit(&w.inner, |inner| inner.as_dtype(op.dtype))?)
}

/// A scalar as the other operand: zero elements stay zero, even if it is infinite or NaN.
#[handler]
pub(crate) fn masked_multiply(_op: &Multiply, w: &Masked, x: &Array) -> Result<Value> {
    let x = scalar(x)?;
    w.with(implicit((&w.inner, x), |(inner, x)| inner.multiply(x))?)
}
