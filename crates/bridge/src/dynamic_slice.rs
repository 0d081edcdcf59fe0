//! Slices that begin where an array says, which mlx-rs does not bind.

use mlx_rs::{Array, Stream, thread_local_default_stream};
use mlx_sys::mlx_stream;

use crate::arrays;
use crate::error::BridgeError;

/// The part of `a` of this `size` that begins at `start: i32[axes]` along `axes`.
///
/// Where it would reach beyond the end, it begins so early that it does not.
///
/// # Errors
///
/// MLX refuses the shapes.
pub fn dynamic_slice(a: &Array, start: &Array, axes: &[i32], size: &[i32]) -> Result<Array, BridgeError> {
    let stream = thread_local_default_stream();
    let stream = stream.as_ref().map_or(mlx_stream { ctx: std::ptr::null_mut() }, Stream::as_ptr);
    // SAFETY: handles, slices and stream are live for the call, which stores a new array.
    arrays::filled(|out| unsafe {
        mlx_sys::mlx_slice_dynamic(
            out,
            a.as_ptr(),
            start.as_ptr(),
            axes.as_ptr(),
            axes.len(),
            size.as_ptr(),
            size.len(),
            stream,
        )
    })
}

/// `a` with `update` written where `start: i32[axes]` says along `axes`.
///
/// # Errors
///
/// MLX refuses the shapes.
pub fn dynamic_slice_update(a: &Array, update: &Array, start: &Array, axes: &[i32]) -> Result<Array, BridgeError> {
    let stream = thread_local_default_stream();
    let stream = stream.as_ref().map_or(mlx_stream { ctx: std::ptr::null_mut() }, Stream::as_ptr);
    // SAFETY: handles, slice and stream are live for the call, which stores a new array.
    arrays::filled(|out| unsafe {
        mlx_sys::mlx_slice_update_dynamic(
            out,
            a.as_ptr(),
            update.as_ptr(),
            start.as_ptr(),
            axes.as_ptr(),
            axes.len(),
            stream,
        )
    })
}
