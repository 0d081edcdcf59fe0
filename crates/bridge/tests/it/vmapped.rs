//! vmap of a function of two arrays, which mlx-rs does not have.

use std::ffi::c_int;

use mlx_rs::Array;
use mlx_sys::{mlx_array, mlx_vector_array};

/// What is mapped: two arrays to some.
pub(crate) type Function = fn(&Array, &Array) -> Vec<Array>;

/// Maps `f` over the given axes of its arguments, -1 for none; the results have the mapped axis first.
pub(crate) fn vmap(f: Function, args: [&Array; 2], axes: [c_int; 2], result_count: usize) -> Vec<Array> {
    let out_axes = vec![0; result_count];
    // SAFETY: every handle is live until it is freed below, and `call` gets `f` as the payload that it expects.
    unsafe {
        let inputs = vector(&args.map(Array::as_ptr));
        let closure = mlx_sys::mlx_closure_new_func_payload(Some(call), f as *mut _, None);
        let empty = mlx_sys::mlx_vector_array_new;
        let (mut traced_inputs, mut traced_outputs, mut results) = (empty(), empty(), empty());
        let traced = mlx_sys::mlx_detail_vmap_trace(
            &raw mut traced_inputs,
            &raw mut traced_outputs,
            closure,
            inputs,
            axes.as_ptr(),
            2,
        );
        assert_eq!(traced, 0);
        let replaced = mlx_sys::mlx_detail_vmap_replace(
            &raw mut results,
            inputs,
            traced_inputs,
            traced_outputs,
            axes.as_ptr(),
            2,
            out_axes.as_ptr(),
            result_count,
        );
        assert_eq!(replaced, 0);
        let made = arrays(results);
        for vector in [inputs, traced_inputs, traced_outputs, results] {
            mlx_sys::mlx_vector_array_free(vector);
        }
        mlx_sys::mlx_closure_free(closure);
        made
    }
}

unsafe extern "C" fn call(results: *mut mlx_vector_array, args: mlx_vector_array, f: *mut std::ffi::c_void) -> c_int {
    // SAFETY: the payload is the function pointer that `vmap` gave, and the handles are live during the call.
    unsafe {
        let f: Function = std::mem::transmute(f);
        let args = arrays(args);
        let made = f(&args[0], &args[1]);
        *results = vector(&made.iter().map(Array::as_ptr).collect::<Vec<_>>());
    }
    0
}

/// # Safety
///
/// The handles are live.
unsafe fn vector(handles: &[mlx_array]) -> mlx_vector_array {
    // SAFETY: as the caller promises.
    unsafe { mlx_sys::mlx_vector_array_new_data(handles.as_ptr(), handles.len()) }
}

/// # Safety
///
/// The vector is live.
unsafe fn arrays(vector: mlx_vector_array) -> Vec<Array> {
    // SAFETY: as the caller promises; each element is a reference of its own.
    unsafe {
        (0..mlx_sys::mlx_vector_array_size(vector))
            .map(|i| {
                let mut handle = mlx_array { ctx: std::ptr::null_mut() };
                assert_eq!(mlx_sys::mlx_vector_array_get(&raw mut handle, vector, i), 0);
                Array::from_ptr(handle)
            })
            .collect()
    }
}
