//! The declarations of `cpp/`, as they stand there.

use std::ffi::{c_char, c_int, c_void};

use mlx_sys::mlx_array;

/// Receives result arrays one by one; the callee gives each handle away.
#[repr(C)]
pub(crate) struct Sink {
    pub(crate) ctx: *mut c_void,
    pub(crate) push: extern "C" fn(*mut c_void, mlx_array),
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Node {
    pub(crate) primitive: u32,
    pub(crate) operand_start: u32,
    pub(crate) operand_count: u32,
    pub(crate) result_start: u32,
    pub(crate) result_count: u32,
}

#[repr(C)]
pub(crate) struct TapeView {
    pub(crate) nodes: *const Node,
    pub(crate) node_count: usize,
    pub(crate) operands: *const u32,
    pub(crate) operand_count: usize,
    pub(crate) outputs: *const u32,
    pub(crate) output_count: usize,
    pub(crate) slots: u32,
}

#[repr(C)]
pub(crate) struct Edit {
    pub(crate) node: u32,
    pub(crate) operand: u32,
    pub(crate) value: mlx_array,
}

#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) data: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) shape: *const i32,
    pub(crate) ndim: usize,
    pub(crate) dtype: c_int,
}

#[repr(C)]
pub(crate) struct KernelTable {
    pub(crate) release: extern "C" fn(*mut c_void),
    pub(crate) eval: extern "C" fn(*mut c_void, *const Buffer, usize, *const Buffer, usize) -> c_int,
    pub(crate) decompose: extern "C" fn(*mut c_void, *const mlx_array, usize, Sink) -> c_int,
    pub(crate) vjp:
        extern "C" fn(*mut c_void, *const mlx_array, usize, *const mlx_array, usize, *const i32, usize, Sink) -> c_int,
    pub(crate) avals: extern "C" fn(*mut c_void, *const mlx_array, usize, Sink) -> c_int,
}

#[repr(C)]
pub(crate) struct GradientTable {
    pub(crate) release: extern "C" fn(*mut c_void),
    pub(crate) forward: extern "C" fn(*mut c_void, *const mlx_array, usize, Sink) -> c_int,
    pub(crate) backward: extern "C" fn(
        *mut c_void,
        *const mlx_array,
        usize,
        *const mlx_array,
        usize,
        *const mlx_array,
        usize,
        Sink,
    ) -> c_int,
}

unsafe extern "C" {
    pub(crate) fn tacit_last_error() -> *const c_char;
    pub(crate) fn tacit_set_callback_error(text: *const c_char, length: usize);

    pub(crate) fn tacit_scope_new(scope: *mut *mut c_void) -> c_int;
    pub(crate) fn tacit_scope_free(scope: *mut c_void);
    pub(crate) fn tacit_scope_live(scope: *const c_void) -> i64;
    pub(crate) fn tacit_scope_placeholder(
        scope: *const c_void,
        shape: *const i32,
        ndim: usize,
        dtype: c_int,
        placeholder: *mut mlx_array,
    ) -> c_int;

    pub(crate) fn tacit_tape_new(
        outputs: *const mlx_array,
        output_count: usize,
        placeholders: *const mlx_array,
        placeholder_count: usize,
        boundaries: *const mlx_array,
        boundary_count: usize,
        tape: *mut *mut c_void,
        view: *mut TapeView,
    ) -> c_int;
    pub(crate) fn tacit_tape_free(tape: *mut c_void);
    pub(crate) fn tacit_tape_operand(tape: *const c_void, node: u32, operand: u32, value: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_tape_result(tape: *mut c_void, node: u32, result: u32, value: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_tape_rewire(tape: *mut c_void, edits: *const Edit, count: usize) -> c_int;

    pub(crate) fn tacit_array_id(array: mlx_array) -> *const c_void;
    pub(crate) fn tacit_name_intern(name: *const c_char, id: *mut u32) -> c_int;
    pub(crate) fn tacit_name_text(id: u32, text: *mut *const c_char) -> c_int;

    pub(crate) fn tacit_primitive_of(node: mlx_array, recorded: *mut *mut c_void) -> c_int;
    pub(crate) fn tacit_primitive_free(recorded: *mut c_void);
    pub(crate) fn tacit_primitive_emit(
        recorded: *const c_void,
        operands: *const mlx_array,
        count: usize,
        results: Sink,
    ) -> c_int;

    pub(crate) fn tacit_prototype(shape: *const i32, ndim: usize, dtype: c_int, value: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_kernel_apply(
        table: KernelTable,
        kernel: *mut c_void,
        name: *const c_char,
        inputs: *const mlx_array,
        count: usize,
        results: Sink,
    ) -> c_int;
    pub(crate) fn tacit_custom_vjp(
        table: GradientTable,
        function: *mut c_void,
        args: *const mlx_array,
        count: usize,
        results: Sink,
    ) -> c_int;
}
