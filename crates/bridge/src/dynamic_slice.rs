//! Slices that begin where an array says, which mlx-rs does not bind.

use mlx_rs::{Array, Stream, thread_local_default_stream};
use mlx_sys::mlx_stream;

use crate::error::BridgeError;
use crate::{arrays, ffi};

/// The part of `a` of this `size` that begins at `start: i32[axes]` along `axes`.
///
/// Where it would reach beyond the end, it begins so early that it does not.
///
/// # Errors
///
/// MLX refuses the shapes.
pub fn dynamic_slice(a: &Array, start: &Array, axes: &[i32], size: &[i32]) -> Result<Array, BridgeError> {
    on_default_stream(|stream| {
        // SAFETY: handles, slices and stream are live for the call, which stores a new array.
        arrays::filled(|out| unsafe {
            ffi::tacit_dynamic_slice(
                a.as_ptr(),
                start.as_ptr(),
                axes.as_ptr(),
                axes.len(),
                size.as_ptr(),
                size.len(),
                stream,
                out,
            )
        })
    })
}

/// `a` with `update` written where `start: i32[axes]` says along `axes`.
///
/// # Errors
///
/// MLX refuses the shapes.
pub fn dynamic_slice_update(a: &Array, update: &Array, start: &Array, axes: &[i32]) -> Result<Array, BridgeError> {
    on_default_stream(|stream| {
        // SAFETY: handles, slice and stream are live for the call, which stores a new array.
        arrays::filled(|out| unsafe {
            ffi::tacit_dynamic_slice_update(
                a.as_ptr(),
                update.as_ptr(),
                start.as_ptr(),
                axes.as_ptr(),
                axes.len(),
                stream,
                out,
            )
        })
    })
}

/// Calls `f` with the stream of this thread, or an empty handle where it has none of its own.
fn on_default_stream<R>(f: impl FnOnce(mlx_stream) -> R) -> R {
    let stream = thread_local_default_stream();
    f(stream.as_ref().map_or(mlx_stream { ctx: std::ptr::null_mut() }, Stream::as_ptr))
}
