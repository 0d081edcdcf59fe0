//! Array handles as they cross between Rust and C++.

use std::ffi::{c_int, c_void};

use mlx_rs::{Array, Stream, thread_local_default_stream};
use mlx_sys::{mlx_array, mlx_stream};

use crate::aval::{Aval, dtype_of};
use crate::error::{BridgeError, check};
use crate::ffi::{self, Arrays, AvalView, Integers, Sink, Span};

/// The handles of `arrays`, valid while they are borrowed.
pub(crate) fn handles<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Vec<mlx_array> {
    arrays.into_iter().map(Array::as_ptr).collect()
}

/// Takes over a handle that the C++ side gives away.
///
/// # Safety
///
/// `handle` must own an array that nothing else frees.
pub(crate) unsafe fn owned(handle: mlx_array) -> Array {
    // SAFETY: as the caller promises.
    unsafe { Array::from_ptr(handle) }
}

/// The handle of no array.
pub(crate) const NONE: mlx_array = mlx_array { ctx: std::ptr::null_mut() };

/// What a call makes of this value.
pub(crate) fn written<T>(mut value: T, call: impl FnOnce(*mut T) -> i32) -> Result<T, BridgeError> {
    check(call(&raw mut value))?;
    Ok(value)
}

/// What a call stores the pointer to.
pub(crate) fn pointer(call: impl FnOnce(*mut *mut c_void) -> i32) -> Result<*mut c_void, BridgeError> {
    written(std::ptr::null_mut(), call)
}

/// Runs a call that fills one array handle.
pub(crate) fn filled(call: impl FnOnce(*mut mlx_array) -> i32) -> Result<Array, BridgeError> {
    let handle = written(NONE, call)?;
    // SAFETY: the call succeeded, so it stored a handle that is ours.
    Ok(unsafe { owned(handle) })
}

/// Runs a call that fills one array handle, or leaves it empty.
pub(crate) fn optional(call: impl FnOnce(*mut mlx_array) -> i32) -> Result<Option<Array>, BridgeError> {
    let handle = written(NONE, call)?;
    // SAFETY: the call succeeded, so a handle that is not empty is ours.
    Ok((!handle.ctx.is_null()).then(|| unsafe { owned(handle) }))
}

/// New references to the arrays of a callback.
///
/// # Safety
///
/// They must be live.
pub(crate) unsafe fn copies(arrays: Arrays) -> Result<Vec<Array>, BridgeError> {
    // SAFETY: as the caller promises.
    let handles = unsafe { arrays.get() };
    handles
        .iter()
        .map(|&handle| {
            // SAFETY: `handle` is live, and `mlx_array_set` makes a new reference of it.
            filled(|out| unsafe { mlx_sys::mlx_array_set(out, handle) })
        })
        .collect()
}

/// An aval as C++ takes it, valid while it is borrowed; an error if an extent is negative.
pub(crate) fn viewed(aval: &Aval) -> Result<AvalView, BridgeError> {
    if aval.shape.iter().any(|&extent| extent < 0) {
        return Err(BridgeError::NegativeExtent(aval.shape.clone()));
    }
    Ok(AvalView { shape: aval.shape.as_ptr(), ndim: aval.shape.len(), dtype: aval.dtype as c_int })
}

/// The aval that the C++ side shows.
///
/// # Safety
///
/// The shape must be live.
pub(crate) unsafe fn aval_of(AvalView { shape, ndim, dtype }: AvalView) -> Result<Aval, BridgeError> {
    // The codes are those of `Dtype` itself.
    let dtype = dtype_of(dtype).ok_or_else(|| BridgeError::Mlx(format!("{dtype} is the code of no dtype")))?;
    // SAFETY: as the caller promises.
    Ok(Aval::new(unsafe { Span { data: shape, count: ndim }.get() }, dtype))
}

/// The operands that the C++ side means by these numbers.
///
/// # Safety
///
/// They must be live.
pub(crate) unsafe fn positions(numbers: Integers) -> Vec<usize> {
    // SAFETY: as the caller promises.
    unsafe { numbers.get() }.iter().map(|&position| position as usize).collect()
}

/// Runs a call that pushes array handles.
pub(crate) fn collected(call: impl FnOnce(Sink) -> i32) -> Result<Vec<Array>, BridgeError> {
    let mut arrays = Vec::new();
    check(call(sink_into(&mut arrays)))?;
    Ok(arrays)
}

/// A sink that appends to `arrays`, valid while these are borrowed.
pub(crate) fn sink_into(arrays: &mut Vec<Array>) -> Sink {
    extern "C" fn push(ctx: *mut c_void, handle: mlx_array) {
        // SAFETY: `ctx` is the list that `sink_into` borrowed, and the handle is given away.
        unsafe { (*ctx.cast::<Vec<Array>>()).push(owned(handle)) };
    }
    Sink { ctx: std::ptr::from_mut(arrays).cast(), push }
}

/// Gives `arrays` to a sink of the C++ side.
pub(crate) fn pour(arrays: &[Array], sink: &Sink) -> Result<(), BridgeError> {
    for array in arrays {
        // SAFETY: `array` is live; the new reference is given to the sink, which owns it from then on.
        let handle = written(NONE, |out| unsafe { mlx_sys::mlx_array_set(out, array.as_ptr()) })?;
        (sink.push)(sink.ctx, handle);
    }
    Ok(())
}

/// Calls `f` with the stream that mlx-rs's own ops go to on this thread; an empty one where that is MLX's default.
pub(crate) fn with_stream<R>(f: impl FnOnce(mlx_stream) -> R) -> R {
    // It is the stream's own object, which must live until it was used.
    let stream = thread_local_default_stream();
    f(stream.as_ref().map_or(mlx_stream { ctx: std::ptr::null_mut() }, Stream::as_ptr))
}

/// An array of this aval without data: shape rules work on it, an eval does not.
///
/// # Errors
///
/// An extent is negative.
pub fn prototype(aval: &Aval) -> Result<Array, BridgeError> {
    let aval = viewed(aval)?;
    // SAFETY: the shape is a live slice.
    filled(|out| unsafe { ffi::tacit_prototype(aval, out) })
}

/// What tells two arrays apart: equal for two handles of one array, as long as either is alive.
#[must_use]
pub fn array_id(array: &Array) -> usize {
    // SAFETY: the handle is live.
    unsafe { ffi::tacit_array_id(array.as_ptr()) as usize }
}
