//! Rows written into packed arrays and read from them: only what is written is quantized, and codes and scales are updated
//! where they lie, as a cache of keys and values needs.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::extra_ops::{dynamic_slice, dynamic_slice_update};
use tacit_core::primitives::{DynamicSlice, DynamicSliceUpdate, ScatterAxis, SliceUpdate};
use tacit_core::{Aval, Error, Result, Value, broadcast_source, handler};

use crate::avals::axes::{extent, with_last};
use crate::avals::checks::decline_if;
use crate::families::packed::{Packed, Stored};
use crate::packed::shape::reshaped;

/// The part that begins where an array says, cut out of codes and scales.
#[handler]
pub(crate) fn packed_dynamic_slice(op: &DynamicSlice, array: &dyn Packed, start: &Array) -> Result<Value> {
    let stored = whole_rows(array)?;
    decline_if(op.slice_size.last() != stored.aval.shape.last(), "a row would be cut")?;
    let size = |child: &Array| with_last(&op.slice_size, &[child.dim(-1)]);
    let stored = each_child(stored, |child| dynamic_slice(&child, start, &op.axes, &size(&child)))?;
    reshaped(array, stored, &op.slice_size)
}

/// Whole rows written where an array says.
#[handler]
pub(crate) fn packed_dynamic_slice_update(
    op: &DynamicSliceUpdate,
    array: &dyn Packed,
    update: &Value,
    start: &Array,
) -> Result<Value> {
    updated(array, update, |child, rows| dynamic_slice_update(child, rows, start, &op.axes))
}

/// Whole rows written to a range of each of the other axes.
#[handler]
pub(crate) fn packed_slice_update(op: &SliceUpdate, array: &dyn Packed, update: &Value) -> Result<Value> {
    let shape = update.aval()?.shape;
    let ranges = op.strides.iter().zip(&shape).all(|(&stride, &extent)| stride == 1 || extent == 1);
    decline_if(!ranges || op.start_indices.last() != Some(&0), "only ranges of whole rows are written")?;
    let whole = array.aval()?.shape;
    let mut axes: Vec<i32> =
        (0..shape.len() as i32).filter(|&axis| whole[axis as usize] != shape[axis as usize]).collect();
    if axes.is_empty() {
        axes.push(0);
    }
    let start: Vec<i32> = axes.iter().map(|&axis| op.start_indices[axis as usize]).collect();
    let start = Array::from_slice(&start, &[axes.len() as i32]);
    updated(array, update, |child, rows| dynamic_slice_update(child, rows, &start, &axes))
}

/// Whole rows written to chosen places along an axis, which are the same along all others.
#[handler]
pub(crate) fn packed_scatter_axis(
    op: &ScatterAxis,
    array: &dyn Packed,
    indices: &Array,
    update: &Value,
) -> Result<Value> {
    let rank = indices.ndim();
    let (places, axis) = (broadcast_source(indices)?, op.axis as usize);
    // A broadcast may have added axes in front.
    let of_axis = |at: usize| (at + places.ndim()).checked_sub(rank).map_or(1, |own| places.dim(own as i32));
    let agree = axis + 1 != rank && (0..rank).all(|at| at == axis || of_axis(at) == 1);
    decline_if(!agree, "rows are written whole, and where all of them agree")?;
    let mut shape = vec![1; rank];
    shape[axis] = of_axis(axis);
    let places = places.reshape(&shape)?;
    updated(array, update, |child, rows| {
        let places = ops::broadcast_to(&places, rows.shape())?;
        Ok(child.put_along_axis(places, rows, op.axis)?)
    })
}

/// `array` after `write(child, rows)` of each child, whose last axis is one row of the array, and of the same child of `update`.
fn updated(
    array: &dyn Packed,
    update: &Value,
    mut write: impl FnMut(&Array, &Array) -> Result<Array>,
) -> Result<Value> {
    let stored = whole_rows(array)?;
    let (shape, new) = (stored.shape(), update.aval()?);
    if new.shape.contains(&0) || new.shape.last() != shape.last() {
        return Err(Error::decline(format!("{new} is no whole rows of {}", stored.aval)));
    }
    let mut children = laid(&encoded(array, update)?)?.into_iter();
    let stored = each_child(stored, |child| {
        let rows = children.next().ok_or_else(|| Error::decline("the rows have other children"))?;
        // Scales may be narrower in one array than in another: `f32` holds the numbers of both.
        let dtype = if child.dtype() == rows.dtype() { rows.dtype() } else { Dtype::Float32 };
        write(&child.as_dtype(dtype)?, &rows.as_dtype(dtype)?)
    })?;
    reshaped(array, stored, &shape)
}

/// What is written, in the format of `array`: floats are quantized to it.
fn encoded(array: &dyn Packed, update: &Value) -> Result<Stored> {
    let Value::Implicit(_) = update else { return array.encoded(&update.dense()?) };
    let update = update.family::<dyn Packed>().ok_or_else(|| Error::decline("what is written has no codes"))?;
    let stored = update.stored();
    decline_if(stored.transposed, "what is written is the transpose of what is stored")?;
    let relative = stored.global_scale.is_some() || array.stored().global_scale.is_some();
    decline_if(relative, "scales are relative to one of the whole array")?;
    let mut like = stored.clone();
    like.aval = array.stored().aval;
    let alike = array.restored(like.clone()).aux_eq(&*update.restored(like));
    decline_if(!alike, "what is written has other static fields")?;
    Ok(stored)
}

/// An array each of whose rows is a whole number of blocks; every other one declines.
fn whole_rows(array: &dyn Packed) -> Result<Stored> {
    let stored = array.stored();
    let shape = stored.shape();
    let whole = shape.last().is_some_and(|&row| row > 0 && (row as usize).is_multiple_of(stored.unit()));
    if stored.transposed || shape.len() < 2 {
        return Err(Error::decline(format!("{} has no rows", Aval::new(&shape, stored.aval.dtype))));
    }
    decline_if(!whole, "a row is no whole number of blocks")?;
    decline_if(stored.scales.as_ref().is_some_and(Value::is_implicit), "the scales are packed themselves")?;
    decline_if(stored.global_scale.is_some(), "the scales are relative to a magnitude of the whole array")?;
    Ok(stored)
}

/// The children with the axes of the array, whose last one is what a child has of a row.
fn laid(stored: &Stored) -> Result<Vec<Array>> {
    let shape = stored.shape();
    let rows = extent(&shape[..shape.len() - 1]).max(1);
    let children = [Some(&stored.codes), stored.scales.as_ref().and_then(Value::as_dense), stored.biases.as_ref()];
    let laid = |child: &Array| Ok(child.reshape(&with_last(&shape, &[(child.size() / rows) as i32]))?);
    children.into_iter().flatten().map(laid).collect()
}

/// The array with what `f` makes of each child in its place.
fn each_child(mut stored: Stored, f: impl FnMut(Array) -> Result<Array>) -> Result<Stored> {
    let mut results = laid(&stored)?.into_iter().map(f);
    let mut next = || results.next().unwrap_or_else(|| Err(Error::decline("a child is missing")));
    stored.codes = next()?;
    if stored.scales.is_some() {
        stored.scales = Some(next()?.into());
    }
    if stored.biases.is_some() {
        stored.biases = Some(next()?);
    }
    Ok(stored)
}
