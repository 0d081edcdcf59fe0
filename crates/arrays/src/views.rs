//! Views of every [`Linear`] array, for types that have no view of their own.

use mlx_rs::Array;
use tacit_core::op::{AsType, Concatenate, Negative, Slice, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, handler};

use crate::linear::Linear;
use crate::packed::Packed;
use crate::wide::wide;
use crate::{Cast, Concat, Scaled, Sliced, Transposed};

/// An axis counted from zero; `None` where there is no such axis.
pub(crate) fn from_zero(axis: i32, rank: usize) -> Option<usize> {
    let counted = if axis < 0 { axis + rank as i32 } else { axis };
    usize::try_from(counted).ok().filter(|&axis| axis < rank)
}

/// Declines a slice that runs backwards along an axis.
pub(crate) fn forward(op: &Slice, made: &Aval) -> Result<()> {
    let mut axes = op.start_indices.iter().zip(&op.end_indices).zip(&op.strides).zip(&made.shape);
    if axes.all(|(((start, stop), &stride), &extent)| stride > 0 && (stop - start + stride - 1) / stride == extent) {
        return Ok(());
    }
    Err(Error::decline("the slice runs backwards"))
}

/// Declines a slice that is not a range along each axis, at least one element long and without steps.
///
/// MLX stores a stride of 1 where a slice leaves one element, whatever its ends: what it makes is needed to tell.
pub(crate) fn ranges(op: &Slice, made: &Aval) -> Result<()> {
    let mut axes = op.start_indices.iter().zip(&op.end_indices).zip(&op.strides).zip(&made.shape);
    if axes.all(|(((start, stop), &stride), &extent)| stride == 1 && extent > 0 && stop - start == extent) {
        return Ok(());
    }
    Err(Error::decline("only ranges without steps are cut as a view"))
}

/// The array, if a view of it is of use: it is multiplied by its parts, and a packed one has better views of its own.
fn viewed(array: &dyn ImplicitArray) -> Result<Value> {
    let ty = array.array_type();
    if ty.joins::<dyn Linear>() && !ty.joins::<dyn Packed>() {
        return Ok(dyn_clone::clone_box(array).into());
    }
    Err(Error::decline(format!("no view of {} has a product", ty.saved_as)))
}

/// The transpose, as a [`Transposed`].
#[handler]
pub fn view_transpose(op: &Transpose, array: &dyn ImplicitArray) -> Result<Value> {
    Transposed::of(viewed(array)?, &op.axes)
}

/// The slice, as a [`Sliced`].
#[handler]
pub fn view_slice(op: &Slice, array: &dyn ImplicitArray, made: &[Aval]) -> Result<Value> {
    ranges(op, &made[0])?;
    Sliced::of(viewed(array)?, &op.start_indices, &op.end_indices)
}

/// The array in another float type, as a [`Cast`].
#[handler]
pub fn view_astype(op: &AsType, array: &dyn ImplicitArray) -> Result<Value> {
    let own = array.aval()?.dtype;
    if !crate::cast::castable(op.dtype) || !crate::cast::castable(own) {
        return Err(Error::decline("only f32, bf16 and f16 are read as views"));
    }
    Cast::of(viewed(array)?, own, op.dtype)
}

/// The other sign, as a [`Scaled`].
#[handler]
pub fn view_negative(_op: &Negative, array: &dyn ImplicitArray) -> Result<Value> {
    let dtype = array.aval()?.dtype;
    if !dtype.is_float() {
        return Err(Error::decline("only float arrays are scaled"));
    }
    Scaled::of(viewed(array)?, &Array::from_f32(-1.0).as_dtype(wide(dtype))?, false)
}

/// Arrays of any types one after the other, as a [`Concat`].
#[handler]
pub fn view_concatenate(op: &Concatenate, first: &dyn ImplicitArray, rest: &[&Value]) -> Result<Value> {
    let parts = std::iter::once(viewed(first)).chain(rest.iter().map(|&part| Ok(part.clone())));
    Concat::of(parts.collect::<Result<_>>()?, op.axis as usize)
}
