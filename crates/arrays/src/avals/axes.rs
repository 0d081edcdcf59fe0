//! Axes, ranges along them, and extents.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use tacit_core::primitives::{Moving, Slice, TypedPrimitive};
use tacit_core::{Aval, Error, Result};
use tacit_kernels::Orientation;

/// An axis counted from zero; `None` where there is no such axis.
pub(crate) fn from_zero(axis: i32, rank: usize) -> Option<usize> {
    let counted = if axis < 0 { axis + rank as i32 } else { axis };
    usize::try_from(counted).ok().filter(|&axis| axis < rank)
}

/// An axis counted from zero; the error of an axis that there is not says what it would be there for.
pub(crate) fn axis_of(aval: &Aval, axis: i32, what_for: &str) -> Result<usize> {
    from_zero(axis, aval.shape.len()).ok_or_else(|| {
        Error::invalid(
            format!("{aval} has no axis {axis} {what_for}"),
            format!("it has {} axes, counted from zero, or from -1 backwards", aval.shape.len()),
        )
    })
}

/// Declines a primitive that is a slice which runs backwards along an axis, or one that [`said`] declines.
pub(crate) fn forward(op: &Moving, shape: &[i32], results: &[Aval]) -> Result<()> {
    if op.name() != Slice::NAME {
        return Ok(());
    }
    let slice: Slice = op.view()?;
    if slice.strides.iter().any(|&step| step < 1) {
        return Err(Error::decline("the slice runs backwards"));
    }
    said(&slice, shape, &results[0])
}

/// Declines a slice of an array of this shape whose ends and steps are not those of what it leaves.
///
/// Where one element is left MLX stores a step of 1 whatever the ends are, and its derivatives are of another shape.
pub(crate) fn said(op: &Slice, shape: &[i32], result: &Aval) -> Result<()> {
    let mut axes = op.start_indices.iter().zip(&op.end_indices).zip(&op.strides).zip(shape.iter().zip(&result.shape));
    let is_said = axes.all(|(((&start, &stop), &step), (&whole, &extent))| match step {
        1.. => (stop - start + step - 1) / step == extent,
        // An end before the first element counts from the last.
        ..=-1 => (start - if stop < 0 { stop + whole } else { stop } - step - 1) / -step == extent,
        0 => false,
    });
    if is_said { Ok(()) } else { Err(Error::decline("its ends are not those of what it leaves")) }
}

/// Declines a slice that is not a range along each axis, at least one element long and without steps.
///
/// MLX stores a stride of 1 where a slice leaves one element, whatever its ends: what it makes is needed to tell.
pub(crate) fn ranges(op: &Slice, result: &Aval) -> Result<()> {
    let mut axes = op.start_indices.iter().zip(&op.end_indices).zip(&op.strides).zip(&result.shape);
    if axes.all(|(((start, stop), &stride), &extent)| stride == 1 && extent > 0 && stop - start == extent) {
        return Ok(());
    }
    Err(Error::decline("only ranges without steps are cut as a view"))
}

/// A shape, or a permutation, with its last two axes swapped.
pub(crate) fn swapped(shape: &[i32]) -> Vec<i32> {
    let mut shape = shape.to_vec();
    if let [.., a, b] = shape.as_mut_slice() {
        std::mem::swap(a, b);
    }
    shape
}

/// Stored matrices as they are multiplied from the left.
pub(crate) fn oriented(matrices: &Array, orientation: Orientation) -> Result<Array, Exception> {
    match orientation {
        Orientation::Transposed => matrices.swap_axes(-1, -2),
        Orientation::Plain => Ok(matrices.clone()),
    }
}

/// The shape with other extents in the place of its last one.
pub(crate) fn with_last(shape: &[i32], last: &[i32]) -> Vec<i32> {
    [&shape[..shape.len().saturating_sub(1)], last].concat()
}

/// The elements of an array of this shape.
pub(crate) fn extent(shape: &[i32]) -> usize {
    shape.iter().map(|&extent| extent as usize).product()
}

/// From one element of an array of this shape to the next along each axis.
pub(crate) fn strides(shape: &[i32]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as usize;
    }
    strides
}

/// The same where an array is broadcast: an axis of one element is repeated.
pub(crate) fn broadcast_strides(shape: &[i32]) -> Vec<usize> {
    strides(shape).into_iter().zip(shape).map(|(stride, &extent)| if extent == 1 { 0 } else { stride }).collect()
}

/// The places that are met on the way through this shape, in steps of these strides.
pub(crate) fn walked(shape: &[i32], strides: &[usize], first: usize) -> Vec<usize> {
    let mut places = vec![first];
    for (&extent, stride) in shape.iter().zip(strides) {
        places = places.iter().flat_map(|from| (0..extent as usize).map(move |i| from + i * stride)).collect();
    }
    places
}

/// The numbers that divide `number`, ascending.
pub(crate) fn divisors(number: usize) -> Vec<usize> {
    let low: Vec<usize> = (1..=number.isqrt()).filter(|&low| number.is_multiple_of(low)).collect();
    let high = low.iter().rev().map(|low| number / low).filter(|high| high * high > number);
    low.iter().copied().chain(high).collect()
}
