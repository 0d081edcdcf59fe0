//! What of a replicated array a rank computes with.

use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, TryIndexOp};
use mlx_rs::{Array, ops};
use tacit_core::{Aval, Error, Result, Value, broadcast_source};

use crate::Group;

/// The own part along `axis` of a replicated array, with the gradients of all ranks.
///
/// What is broadcast along the axis is not cut, but broadcast to less.
pub(crate) fn own_part(array: &Array, axis: usize, group: &Group) -> Result<Array> {
    let (size, rank) = (group.size() as i32, group.rank() as i32);
    let extent = array.shape()[axis];
    if extent % size != 0 {
        return Err(Error::decline(format!("axis {axis} of {} has no equal parts", Aval::from(array))));
    }
    let mut shape = array.shape().to_vec();
    shape[axis] = extent / size;
    let source = broadcast_source(array)?;
    let behind = array.ndim() - axis;
    if source.ndim() < behind || source.shape()[source.ndim() - behind] == 1 {
        return Ok(ops::broadcast_to(&group.enter(&source)?, &shape)?);
    }
    cut(&group.enter(array)?, axis, rank * shape[axis], shape[axis])
}

/// The own part of a parameter, which holds nothing of the others.
pub(crate) fn own_value(whole: &Value, axis: usize, group: &Group) -> Result<Value> {
    let extent = whole.aval()?.shape[axis] / group.size() as i32;
    match whole {
        _ if group.size() == 1 => Ok(whole.clone()),
        Value::Dense(array) => {
            let part = cut(array, axis, group.rank() as i32 * extent, extent)?;
            // A slice of an evaluated array holds all of it.
            Ok(part.multiply(Array::from_int(1).as_dtype(part.dtype())?)?.into())
        }
        Value::Implicit(_) => Err(Error::invalid(
            format!("{whole} cannot be split along axis {axis}"),
            "split the dense array and quantize the parts",
        )),
    }
}

/// `extent` elements of `axis` from `start` on.
pub(super) fn cut(array: &Array, axis: usize, start: i32, extent: i32) -> Result<Array> {
    let whole = array.shape().iter().enumerate();
    let ranges = whole.map(|(at, &whole)| if at == axis { start..start + extent } else { 0..whole });
    let ranges: Vec<ArrayIndexOp<'_>> = ranges.map(ArrayIndex::index_op).collect();
    Ok(array.try_index(ranges.as_slice())?)
}
