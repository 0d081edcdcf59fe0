//! Views of every [`Linear`] array, for types that have no view of their own.

use mlx_rs::Array;
use tacit_core::primitives::{AsType, Concatenate, Negative, Slice, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, handler};

use crate::avals::axes::ranges;
use crate::avals::dtypes::{castable, wide};
use crate::families::linear::Linear;
use crate::families::packed::Packed;
use crate::views::cast::Cast;
use crate::views::concat::Concat;
use crate::views::scaled::Scaled;
use crate::views::sliced::Sliced;
use crate::views::transposed::Transposed;

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
pub(crate) fn view_transpose(op: &Transpose, array: &dyn ImplicitArray) -> Result<Value> {
    Transposed::of(viewed(array)?, &op.axes)
}

/// The slice, as a [`Sliced`].
#[handler]
pub(crate) fn view_slice(op: &Slice, array: &dyn ImplicitArray, made: &[Aval]) -> Result<Value> {
    ranges(op, &made[0])?;
    Sliced::of(viewed(array)?, &op.start_indices, &op.end_indices)
}

/// The array in another float type, as a [`Cast`].
#[handler]
pub(crate) fn view_astype(op: &AsType, array: &dyn ImplicitArray) -> Result<Value> {
    let own = array.aval()?.dtype;
    if !castable(op.dtype) || !castable(own) {
        return Err(Error::decline("only f32, bf16 and f16 are read as views"));
    }
    Cast::of(viewed(array)?, own, op.dtype)
}

/// The other sign, as a [`Scaled`].
#[handler]
pub(crate) fn view_negative(_op: &Negative, array: &dyn ImplicitArray) -> Result<Value> {
    let dtype = array.aval()?.dtype;
    if !dtype.is_float() {
        return Err(Error::decline("only float arrays are scaled"));
    }
    Scaled::of(viewed(array)?, &Array::from_f32(-1.0).as_dtype(wide(dtype))?, false)
}

/// Arrays of any types one after the other, as a [`Concat`].
#[handler]
pub(crate) fn view_concatenate(op: &Concatenate, first: &dyn ImplicitArray, rest: &[&Value]) -> Result<Value> {
    let parts = std::iter::once(viewed(first)).chain(rest.iter().map(|&part| Ok(part.clone())));
    Concat::of(parts.collect::<Result<_>>()?, op.axis as usize)
}
