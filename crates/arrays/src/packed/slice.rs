//! Ranges of packed arrays: codes and scales are cut, never quantized again.

use mlx_rs::Array;
use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, TryIndexOp};
use tacit_core::primitives::Slice;
use tacit_core::{Aval, Error, Result, Value, handler};

use crate::avals::axes::{extent, ranges, swapped};
use crate::avals::checks::decline_if;
use crate::families::packed::{Packed, Stored};
use crate::packed::shape::{flat, in_shape, packed, reshaped};
use crate::packed::units::Supers;

/// What is cut out where both ends lie between two blocks.
#[handler(precedence = 1)]
pub(crate) fn packed_slice(op: &Slice, array: &dyn Packed, results: &[Aval]) -> Result<Value> {
    ranges(op, &results[0])?;
    let [mut start, mut stop] = [op.start_indices.clone(), op.end_indices.clone()];
    if array.stored().transposed {
        [start, stop] = [swapped(&start), swapped(&stop)];
    }
    sliced(array, &start, &stop)
}

/// The elements of the stored array from `start` on, before `stop`.
pub(crate) fn sliced(array: &dyn Packed, start: &[i32], stop: &[i32]) -> Result<Value> {
    Ok(array.restored(between(array.stored(), start, stop)?).into())
}

/// The children of those elements.
pub(crate) fn between(mut stored: Stored, start: &[i32], stop: &[i32]) -> Result<Stored> {
    let (old, new) = (stored.shape(), start.iter().zip(stop).map(|(start, stop)| stop - start).collect::<Vec<_>>());
    let Some(axis) = (0..old.len()).rev().find(|&axis| old[axis] != new[axis]) else {
        return Ok(stored);
    };
    let (inner, unit) = (extent(&old[axis + 1..]), stored.unit());
    let [from, to, whole] = [start[axis], stop[axis], old[axis]].map(|at| at as usize * inner);
    let aligned = [from, to, whole].iter().all(|at| at % unit == 0);
    let flat = extent(&old[..axis]) == 1 && !stored.scheme.is_grouped() && from % unit == 0;
    decline_if(!aligned && !flat, "the slice does not begin and end with a block")?;
    let cut = |child: &Array, elements: &dyn Fn(usize) -> usize| -> Result<Array> {
        let [from, to, whole] = [from, to, whole].map(|at| elements(at) as i32);
        let child = child.reshape(&[&old[..axis], &[whole]].concat())?;
        let ranges = start[..axis].iter().zip(stop).map(|(&from, &to)| (from..to).index_op());
        let ranges: Vec<ArrayIndexOp> = ranges.chain([(from..to).index_op()]).collect();
        Ok(child.try_index(ranges.as_slice())?)
    };
    let (bits, width, block) = (stored.scheme.bits(), stored.scheme.width(), stored.block);
    let per_block = |at: usize| at.div_ceil(block);
    let scales = match (&stored.scales, Supers::new(&stored)) {
        (None, _) => None,
        (Some(Value::Dense(scales)), None) => Some(cut(scales, &per_block)?.into()),
        (_, Some(supers)) => {
            Some(sliced_supers(&supers, [&old[..axis], &start[..axis], &stop[..axis]], [whole, from, to])?)
        }
        (Some(_), None) => {
            let nested = stored.double_quantized();
            let nested = nested.ok_or_else(|| Error::decline("the scales are of a type that is not known here"))?;
            let edges = [from, to, whole].map(per_block);
            let edges = if flat { &edges[..1] } else { &edges };
            let apart = edges.iter().all(|edge| edge.is_multiple_of(nested.block_size()));
            decline_if(!apart, "the scales are packed themselves")?;
            let [codes, absmax, _] = nested.parts();
            let absmax = cut(&absmax, &|at| per_block(at).div_ceil(nested.block_size()))?.reshape(&[-1])?;
            let codes = cut(&codes, &per_block)?.reshape(&[-1])?;
            Some(nested.with(codes, absmax, nested.block_size()).into())
        }
    };
    stored.codes = cut(&stored.codes, &|at| (at * bits).div_ceil(width))?;
    stored.biases = stored.biases.as_ref().map(|biases| cut(biases, &per_block)).transpose()?;
    stored.scales = scales;
    in_shape(stored, &new)
}

/// The scales of the elements `from..to` of the last axis, which has `whole`, in a range of the axes before it.
fn sliced_supers(supers: &Supers<'_>, [old, start, stop]: [&[i32]; 3], [whole, from, to]: [usize; 3]) -> Result<Value> {
    let [whole, from, to] = [whole, from, to].map(|at| at.div_ceil(supers.elements) as i32);
    let &Supers { integers, rows, groups, .. } = supers;
    let along = reshaped(integers, integers.stored(), &[&[rows], old, &[whole, groups]].concat())?;
    let (start, stop) = ([&[0], start, &[from, 0]].concat(), [&[rows], stop, &[to, groups]].concat());
    flat(supers, &sliced(packed(&along)?, &start, &stop)?)
}
