//! Structural ops on every [`Linear`] array: they give what its type says, or a view around it.

use mlx_rs::Array;
use tacit_core::primitives::{
    AsType, Broadcast, BroadcastAxes, Concatenate, Divide, Multiply, Negative, Slice, Transpose,
};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, handler};

use crate::avals::axes::ranges;
use crate::avals::checks::decline_if;
use crate::avals::dtypes::check_castable;
use crate::families::linear::{Factor, Linear, SERVED_BY_A_VIEW};
use crate::families::packed::Packed;
use crate::families::structural::itself;
use crate::packed::batched::{Batched, broadcast};
use crate::views::cast::Cast;
use crate::views::concat::Concat;
use crate::views::repeated::Repeated;
use crate::views::scaled::Scaled;
use crate::views::sliced::Sliced;
use crate::views::transposed::Transposed;

/// The array, if a view of it is of use: it is multiplied by its parts, and a packed one has better views of its own.
fn viewed(array: &dyn ImplicitArray) -> Result<Value> {
    let ty = array.array_type();
    if ty.joins::<dyn Linear>() && !ty.joins::<dyn Packed>() {
        return Ok(itself(array));
    }
    Err(Error::decline(format!("no view of {} has a product", ty.saved_as)))
}

/// What the type says, if it is [`Linear`], or the view where it declines. If there is no view either, the type's own reason
/// says more, unless that is the view.
fn or_view(
    array: &dyn ImplicitArray,
    method: impl FnOnce(&dyn Linear) -> Result<Value>,
    view: impl FnOnce() -> Result<Value>,
) -> Result<Value> {
    match array.family::<dyn Linear>().map(method) {
        None => view(),
        Some(Err(Error::Declined(reason))) => match view() {
            Err(Error::Declined(_)) if reason != SERVED_BY_A_VIEW => Err(Error::Declined(reason)),
            viewed => viewed,
        },
        Some(result) => result,
    }
}

/// The transpose: the type's own, or a [`Transposed`].
#[handler]
pub(crate) fn linear_transpose(op: &Transpose, array: &dyn ImplicitArray) -> Result<Value> {
    if op.axes.is_sorted() {
        return Ok(itself(array));
    }
    or_view(array, |linear| linear.transposed(&op.axes), || Transposed::view(viewed(array)?, &op.axes))
}

/// The slice, as a [`Sliced`].
#[handler]
pub(crate) fn linear_slice(op: &Slice, array: &dyn ImplicitArray, results: &[Aval]) -> Result<Value> {
    ranges(op, &results[0])?;
    Sliced::view(viewed(array)?, &op.start_indices, &op.end_indices)
}

/// The array in another type: the type's own, or a [`Cast`].
#[handler]
pub(crate) fn linear_astype(op: &AsType, array: &dyn ImplicitArray) -> Result<Value> {
    let view = || {
        let from = array.aval()?.dtype;
        check_castable(op.dtype)?;
        check_castable(from)?;
        Cast::view(viewed(array)?, from, op.dtype)
    };
    or_view(array, |linear| linear.cast(op.dtype), view)
}

/// The other sign: the type's own, or a [`Scaled`].
#[handler]
pub(crate) fn linear_negative(_op: &Negative, array: &dyn ImplicitArray) -> Result<Value> {
    let by = Factor::new(&array.aval()?, &Array::from_f32(-1.0), false)?;
    or_view(array, |linear| linear.scaled(&by), || Scaled::view(viewed(array)?, by.number(), false))
}

/// An array times a scalar: the type's own, or a [`Scaled`] of any array.
#[handler]
pub(crate) fn linear_multiply(_op: &Multiply, array: &dyn ImplicitArray, by: &Array) -> Result<Value> {
    scaled(array, &Factor::new(&array.aval()?, by, false)?)
}

/// An array divided by a scalar: the type's own, or a [`Scaled`] of any array.
#[handler]
pub(crate) fn linear_divide(_op: &Divide, array: &dyn ImplicitArray, by: &Array) -> Result<Value> {
    scaled(array, &Factor::new(&array.aval()?, by, true)?)
}

fn scaled(array: &dyn ImplicitArray, by: &Factor) -> Result<Value> {
    or_view(array, |linear| linear.scaled(by), || Scaled::view(itself(array), by.number(), by.divides()))
}

/// Arrays of any types one after the other, in any order, as a [`Concat`].
#[handler]
pub(crate) fn linear_concatenate(op: &Concatenate, parts: &[&Value]) -> Result<Value> {
    decline_if(!parts.iter().any(|part| part.family::<dyn Linear>().is_some()), "no part has a product")?;
    Concat::view(parts.iter().map(|&part| part.clone()).collect(), op.axis as usize)
}

/// Stored matrices several times, as a [`Batched`].
#[handler]
pub(crate) fn linear_broadcast(
    _op: &Broadcast,
    array: &dyn Linear,
    _shape: &[&Value],
    results: &[Aval],
) -> Result<Value> {
    broadcast(&Batched::from_packed(array)?, &results[0].shape)
}

/// The matrices for each entry of the other side of a product, by which MLX repeats them in a function without shapes: stored ones
/// as a [`Batched`], a single one as a [`Repeated`].
// A view has products of its own, which are not those of what is behind it.
#[handler(precedence = 2)]
pub(crate) fn linear_broadcast_axes(
    op: &BroadcastAxes,
    array: &dyn Linear,
    _beside: &[&Value],
    results: &[Aval],
) -> Result<Value> {
    if array.aval()?.shape.len() != 2 {
        return broadcast(&Batched::from_packed(array)?, &results[0].shape);
    }
    decline_if(op.ignore_axes != [-2, -1], "the matrix is not repeated whole")?;
    Repeated::view(itself(array), &results[0].shape)
}
