//! Ops that move elements or give arrays other shapes.

use std::slice::from_ref;

use mlx_rs::Array;
use mlx_rs::ops;
use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, IntoStrideBy, TryIndexMutOp, TryIndexOp};
use tacit_arrays::Repeated;
use tacit_core::primitives::{
    Broadcast, BroadcastAxes, Concatenate, Contiguous, DynamicSlice, DynamicSliceUpdate, Pad, Reshaping, ScatterAxis,
    Slice, SliceUpdate, Split, Transpose, reshaped_axis,
};
use tacit_core::{Aval, Error, Result, Value, handler, implicit};

use super::Sharded;

/// The transposed part.
#[handler]
pub(crate) fn sharded_transpose(op: &Transpose, x: &Sharded) -> Result<Value> {
    let axis = op.axes.iter().position(|&axis| axis as usize == x.axis);
    let axis = axis.ok_or_else(|| Error::decline("the axis that is split is gone"))?;
    x.mapped(axis, |part| Ok(part.transpose_axes(&op.axes)?))
}

/// The part in another shape, where the axis that is split leads what it becomes.
#[handler]
pub(crate) fn sharded_reshape(op: &Reshaping, x: &Sharded, results: &[Aval]) -> Result<Value> {
    let mut shape = results[0].shape.clone();
    let parts = x.group.size() as i32;
    let split = |found: i32| found % parts == 0 && found > 0;
    let (from, extent) = (&x.aval.shape, x.aval.shape[x.axis]);
    let same_extent = reshaped_axis(from, x.axis, &shape, |found| found == extent);
    let axis = same_extent.or_else(|| reshaped_axis(from, x.axis, &shape, split)).ok_or_else(|| {
        Error::decline(format!("the parts of {} do not lie one after the other in {}", x.aval, results[0]))
    })?;
    shape[axis] /= parts;
    x.mapped(axis, |part| op.of_part(&part, &shape))
}

/// The broadcast part. Where a graph is recorded for any shape, other operands say which.
#[handler(precedence = 2)]
pub(crate) fn sharded_broadcast(op: &Broadcast, x: &Sharded, shapes: &[&Value]) -> Result<Value> {
    let axis = op.shape.len() - x.behind();
    let mut shape = op.shape.clone();
    shape[axis] /= x.group.size() as i32;
    if shapes.is_empty() || x.part.aval()?.shape == shape {
        return x.mapped(axis, |part| Ok(ops::broadcast_to(&part, &shape)?));
    }
    // Those that are split alike say it by their parts, and those that are not long along that axis as they are.
    let said = |value: &&Value| match value {
        Value::Dense(array) => {
            let extent = array.shape().iter().nth_back(x.behind() - 1);
            extent.is_none_or(|&extent| extent == 1).then(|| array.clone())
        }
        Value::Implicit(_) => {
            let alike = |other: &&Sharded| other.group == x.group && other.behind() == x.behind();
            value.downcast::<Sharded>().filter(alike)?.part.as_dense().cloned()
        }
    };
    let others: Option<Vec<Array>> = shapes.iter().map(said).collect();
    let (Value::Dense(part), Some(others)) = (&x.part, others) else {
        // Written down, it would be that of one call.
        return Err(Error::decline("the other operands say how often"));
    };
    x.with(ops::broadcast_arrays(&[from_ref(part), &others[..]].concat())?.swap_remove(0).into(), axis)
}

/// The part of a matrix for each entry of the other side of a product: MLX repeats it in a function without shapes.
#[handler]
pub(crate) fn sharded_broadcast_axes(
    op: &BroadcastAxes,
    x: &Sharded,
    _beside: &[&Value],
    results: &[Aval],
) -> Result<Value> {
    let shape = &results[0].shape;
    if op.ignore_axes != [-2, -1] || x.aval.shape.len() != 2 || shape.len() < 3 {
        return Err(Error::decline("it is no matrix that is repeated whole"));
    }
    let part = Repeated::new(x.part.clone(), &shape[..shape.len() - 2])?;
    let whole = Sharded::of_checked(part.into(), (shape.len() - x.behind()) as i32, &x.group)?;
    Ok(Sharded { shared: x.shared.clone(), ..whole }.into())
}

/// A dense array that is broadcast to the shape of one that is split: nothing of that is needed.
#[handler(precedence = 1)]
pub(crate) fn sharded_broadcast_shape(op: &Broadcast, a: &Array, _like: &Sharded, _shapes: &[&Value]) -> Result<Array> {
    Ok(ops::broadcast_to(a, &op.shape)?)
}

/// The part laid out in rows.
#[handler]
pub(crate) fn sharded_contiguous(_op: &Contiguous, x: &Sharded) -> Result<Value> {
    x.mapped(x.axis, |part| Ok(part.contiguous()?))
}

/// The ranges of the part, of those that begin, end and step as said; declines what cuts the axis that is split, and what
/// runs backwards.
fn ranges_of_part(
    x: &Sharded,
    [start, end, strides]: [&[i32]; 3],
    shape: &[i32],
) -> Result<Vec<ArrayIndexOp<'static>>> {
    let axes = start.iter().zip(end).zip(shape.iter().zip(strides)).enumerate();
    axes.map(|(axis, ((&start, &end), (&extent, &stride)))| {
        if axis == x.axis {
            let whole = x.aval.shape[axis];
            if (start, extent) != (0, whole) {
                return Err(Error::decline("the slice cuts the axis that is split"));
            }
            return Ok((0..whole / x.group.size() as i32).index_op());
        }
        if extent > 0 && (stride < 1 || (end - start + stride - 1) / stride != extent) {
            return Err(Error::decline("the slice runs backwards"));
        }
        Ok((start..end).stride_by(stride).index_op())
    })
    .collect()
}

/// The slice of the part.
#[handler]
pub(crate) fn sharded_slice(op: &Slice, x: &Sharded, results: &[Aval]) -> Result<Value> {
    let ranges = ranges_of_part(x, [&op.start_indices, &op.end_indices, &op.strides], &results[0].shape)?;
    x.mapped(x.axis, |part| Ok(part.try_index(ranges.as_slice())?))
}

/// The update of the part by the update's part.
#[handler(precedence = 2)]
pub(crate) fn sharded_slice_update(op: &SliceUpdate, x: &Sharded, update: &Value) -> Result<Value> {
    updated(op, x, &Value::from(x.clone()), update, &update.aval()?)
}

/// As [`sharded_slice_update`](fn@sharded_slice_update) of an array that was replicated, such as a new cache.
#[handler(precedence = 1)]
pub(crate) fn sharded_slice_update_of(op: &SliceUpdate, whole: &Value, update: &Sharded) -> Result<Value> {
    // What the update leaves whole along the axis that is split is as long as the array there.
    if whole.aval()?.shape[update.axis] != update.aval.shape[update.axis] {
        return Err(Error::decline("the update does not cover the axis that it is split along"));
    }
    updated(op, update, whole, &Value::from(update.clone()), &update.aval)
}

fn updated(op: &SliceUpdate, x: &Sharded, whole: &Value, update: &Value, aval: &Aval) -> Result<Value> {
    let like = Sharded { aval: whole.aval()?, ..x.clone() };
    let ranges = ranges_of_part(&like, [&op.start_indices, &op.end_indices, &op.strides], &aval.shape)?;
    let (whole, update) = (x.operand(whole, x.axis)?, x.operand(update, x.axis)?);
    let part = implicit((whole, update), |(mut whole, update)| {
        whole.try_index_mut(ranges.as_slice(), update)?;
        Ok::<_, Error>(whole)
    })?;
    x.with(part, x.axis)
}

/// The dynamic slice of the part, where the axis that is split is not among those that it cuts.
#[handler]
pub(crate) fn sharded_dynamic_slice(op: &DynamicSlice, x: &Sharded, start: &Array) -> Result<Value> {
    let mut size = op.slice_size.clone();
    size[x.axis] = uncut(x, &op.axes, size[x.axis])?;
    x.mapped(x.axis, |part| tacit_core::extra_ops::dynamic_slice(&part, start, &op.axes, &size))
}

/// The dynamic update of the part by the update's part.
#[handler(precedence = 2)]
pub(crate) fn sharded_dynamic_update(
    op: &DynamicSliceUpdate,
    x: &Sharded,
    update: &Value,
    start: &Array,
) -> Result<Value> {
    uncut(x, &op.axes, update.aval()?.shape[x.axis])?;
    dynamically_updated(op, x, &Value::from(x.clone()), update, start)
}

/// As [`sharded_dynamic_update`](fn@sharded_dynamic_update) of an array that was replicated, such as a new cache.
#[handler(precedence = 1)]
pub(crate) fn sharded_dynamic_update_of(
    op: &DynamicSliceUpdate,
    whole: &Value,
    update: &Sharded,
    start: &Array,
) -> Result<Value> {
    uncut(update, &op.axes, whole.aval()?.shape[update.axis])?;
    dynamically_updated(op, update, whole, &Value::from(update.clone()), start)
}

fn dynamically_updated(
    op: &DynamicSliceUpdate,
    x: &Sharded,
    whole: &Value,
    update: &Value,
    start: &Array,
) -> Result<Value> {
    let (whole, update) = (x.operand(whole, x.axis)?, x.operand(update, x.axis)?);
    let part = implicit((whole, update), |(whole, update)| {
        tacit_core::extra_ops::dynamic_slice_update(&whole, &update, start, &op.axes)
    })?;
    x.with(part, x.axis)
}

/// The part, with the update's part put to the places' part along another axis.
#[handler(precedence = 2)]
pub(crate) fn sharded_scatter_axis(op: &ScatterAxis, x: &Sharded, places: &Value, update: &Value) -> Result<Value> {
    scattered(op, x, &Value::from(x.clone()), places, update)
}

/// As [`sharded_scatter_axis`](fn@sharded_scatter_axis) of an array that was replicated, such as a new cache.
#[handler(precedence = 1)]
pub(crate) fn sharded_scatter_axis_of(
    op: &ScatterAxis,
    whole: &Value,
    places: &Value,
    update: &Sharded,
) -> Result<Value> {
    if whole.aval()?.shape[update.axis] != update.aval.shape[update.axis] {
        return Err(Error::decline("the update does not cover the axis that it is split along"));
    }
    scattered(op, update, whole, places, &Value::from(update.clone()))
}

fn scattered(op: &ScatterAxis, x: &Sharded, whole: &Value, places: &Value, update: &Value) -> Result<Value> {
    if op.axis as usize == x.axis {
        return Err(Error::decline("it puts elements along the axis that is split"));
    }
    let places = x.places(places, whole.aval()?.shape[op.axis as usize])?;
    let parts = (x.operand(whole, x.axis)?, places, x.operand(update, x.axis)?);
    x.with(implicit(parts, |(whole, places, update)| whole.put_along_axis(&places, &update, op.axis))?, x.axis)
}

/// The part's extent of the axis that is split, of which an op takes `extent`.
fn uncut(x: &Sharded, axes: &[i32], extent: i32) -> Result<i32> {
    if axes.contains(&(x.axis as i32)) || extent != x.aval.shape[x.axis] {
        return Err(Error::decline("the slice cuts the axis that is split"));
    }
    Ok(extent / x.group.size() as i32)
}

/// The part, split along another axis.
#[handler]
pub(crate) fn sharded_split(op: &Split, x: &Sharded) -> Result<Vec<Value>> {
    if op.axis as usize == x.axis {
        return Err(Error::decline("the pieces lie across the parts"));
    }
    let pieces = implicit(x.entered_part()?, |part| part.split_at_indices(&op.indices, op.axis))?;
    x.with_all(pieces, x.axis)
}

/// The joined parts.
#[handler(precedence = 2)]
pub(crate) fn sharded_concatenate(op: &Concatenate, x: &Sharded, rest: &[&Value]) -> Result<Value> {
    joined(op, x, &[&Value::from(x.clone())], rest)
}

/// As [`sharded_concatenate`](fn@sharded_concatenate) behind an array that was replicated, such as an empty cache.
#[handler(precedence = 1)]
pub(crate) fn sharded_concatenate_behind(op: &Concatenate, a: &Array, x: &Sharded, rest: &[&Value]) -> Result<Value> {
    joined(op, x, &[&Value::from(a), &Value::from(x.clone())], rest)
}

fn joined(op: &Concatenate, x: &Sharded, first: &[&Value], rest: &[&Value]) -> Result<Value> {
    if op.axis as usize == x.axis {
        return Err(Error::decline("arrays are joined along the axis that is split"));
    }
    let parts = first.iter().chain(rest).map(|value| x.operand(value, x.axis)).collect::<Result<Vec<_>>>()?;
    x.with(implicit(parts, |parts| ops::concatenate(&parts, op.axis))?, x.axis)
}

/// The padded part.
#[handler]
pub(crate) fn sharded_pad(op: &Pad, x: &Sharded, value: &Array) -> Result<Value> {
    let mut widths = vec![(0, 0); x.aval.shape.len()];
    for ((&axis, &low), &high) in op.axes.iter().zip(&op.low_pad_size).zip(&op.high_pad_size) {
        widths[axis as usize] = (low, high);
    }
    if widths[x.axis] != (0, 0) {
        return Err(Error::decline("the axis that is split is padded"));
    }
    // Each rank pads its own part with it: its gradient is the sum of theirs.
    let value = x.group.enter(value)?;
    x.mapped(x.axis, |part| Ok(ops::pad(&part, widths.as_slice(), value.clone(), None)?))
}
