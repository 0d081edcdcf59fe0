//! Slices that begin where an array says, which mlx-rs does not bind.

use mlx_rs::{Array, ops};

use crate::arrays::{self, with_stream};
use crate::error::BridgeError;
use crate::ffi::{self, Span};

/// The part of `a` of this `size` that begins at `start: i32[axes]` along `axes`.
///
/// Where it would reach beyond the end, it begins so early that it does not.
///
/// # Errors
///
/// The size does not fit `a`, or MLX refuses the shapes.
pub fn dynamic_slice(a: &Array, start: &Array, axes: &[i32], size: &[i32]) -> Result<Array, BridgeError> {
    let start = within(a, start, axes, size)?;
    with_stream(|stream| {
        // SAFETY: handles, slices and stream are live for the call, which stores a new array.
        arrays::filled(|out| unsafe {
            ffi::tacit_dynamic_slice(a.as_ptr(), start.as_ptr(), Span::new(axes), Span::new(size), stream, out)
        })
    })
}

/// `a` with `update` written where `start: i32[axes]` says along `axes`.
///
/// Where it would reach beyond the end, it begins so early that it does not.
///
/// # Errors
///
/// The update does not fit `a`, or MLX refuses the shapes.
pub fn dynamic_slice_update(a: &Array, update: &Array, start: &Array, axes: &[i32]) -> Result<Array, BridgeError> {
    let start = within(a, start, axes, update.shape())?;
    with_stream(|stream| {
        // SAFETY: handles, slice and stream are live for the call, which stores a new array.
        arrays::filled(|out| unsafe {
            ffi::tacit_dynamic_slice_update(a.as_ptr(), update.as_ptr(), start.as_ptr(), Span::new(axes), stream, out)
        })
    })
}

/// Where a slice of this size begins that lies within `a`: MLX reads and writes wherever it is told to.
fn within(a: &Array, start: &Array, axes: &[i32], size: &[i32]) -> Result<Array, BridgeError> {
    let shape = a.shape();
    let fits = size.len() == shape.len() && size.iter().zip(shape).all(|(size, extent)| (0..=*extent).contains(size));
    let free = |&axis: &i32| {
        let counted = if axis < 0 { axis + shape.len() as i32 } else { axis };
        let counted = usize::try_from(counted).ok().filter(|&counted| counted < shape.len())?;
        Some(shape[counted] - size[counted])
    };
    let last = if fits { axes.iter().map(free).collect::<Option<Vec<i32>>>() } else { None };
    let Some(last) = last else {
        return Err(BridgeError::Mlx(format!("a slice of {size:?} along {axes:?} does not lie within {shape:?}")));
    };
    let last = Array::from_slice(&last, &[last.len() as i32]).reshape(start.shape());
    let clipped = last.and_then(|last| ops::clip(start, (&Array::from_int(0), &last)));
    clipped.map_err(|error| BridgeError::Mlx(error.to_string()))
}
