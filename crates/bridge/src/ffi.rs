//! Rust declarations of the functions in `cpp/`.

use std::ffi::{c_char, c_int, c_void};

use mlx_sys::{mlx_array, mlx_stream};

/// A list that stays where it is for the length of a call.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Span<T> {
    pub(crate) data: *const T,
    pub(crate) count: usize,
}

pub(crate) type Arrays = Span<mlx_array>;
pub(crate) type Integers = Span<i32>;

impl<T> Span<T> {
    pub(crate) fn new(list: &[T]) -> Self {
        Self { data: list.as_ptr(), count: list.len() }
    }

    /// # Safety
    ///
    /// `data` must point to `count` elements that live and do not change for `'a`, or `count` be 0.
    #[inline]
    pub(crate) unsafe fn get<'a>(self) -> &'a [T] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(self.data, self.count) }
    }
}

/// A shape and a dtype, while the shape lives.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AvalView {
    pub(crate) shape: *const i32,
    pub(crate) ndim: usize,
    pub(crate) dtype: c_int,
}

/// Receives result arrays one by one; the callee gives each handle away.
#[repr(C)]
pub(crate) struct Sink {
    pub(crate) ctx: *mut c_void,
    pub(crate) push: extern "C" fn(*mut c_void, mlx_array),
}

/// Receives the axes of results one by one.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AxisSink {
    pub(crate) ctx: *mut c_void,
    pub(crate) push: extern "C" fn(*mut c_void, i32),
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
    pub(crate) nodes: Span<Node>,
    pub(crate) operands: Span<u32>,
    pub(crate) outputs: Span<u32>,
    pub(crate) slots: u32,
}

#[repr(C)]
pub(crate) struct Edit {
    pub(crate) node: u32,
    pub(crate) operand: u32,
    pub(crate) value: mlx_array,
}

/// The ends of a part of a graph, as they are for one call.
#[repr(C)]
pub(crate) struct EndsView {
    pub(crate) inputs: Arrays,
    pub(crate) outputs: Arrays,
    pub(crate) beyond: Arrays,
}

#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) data: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) aval: AvalView,
}

/// Why a kernel is replaced: off the CPU 0, for a vjp 1, a jvp 2 or a vmap 3, over so many examples.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FallbackReason {
    pub(crate) kind: c_int,
    pub(crate) examples: usize,
}

#[repr(C)]
pub(crate) struct KernelTable {
    pub(crate) release: extern "C" fn(*mut c_void),
    pub(crate) eval: extern "C" fn(*mut c_void, Span<Buffer>, Span<Buffer>) -> c_int,
    pub(crate) fallback: extern "C" fn(*mut c_void, FallbackReason, Arrays, Sink) -> c_int,
    pub(crate) vjp: extern "C" fn(*mut c_void, Arrays, Arrays, Integers, Sink) -> c_int,
    pub(crate) jvp: JvpRule,
    pub(crate) avals: extern "C" fn(*mut c_void, Arrays, Sink) -> c_int,
    pub(crate) equal: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    pub(crate) vmap: VmapRule,
    pub(crate) launch: extern "C" fn(*mut c_void, c_int, Arrays, LaunchSink) -> c_int,
    pub(crate) failed: extern "C" fn(*mut c_void, *const c_char, usize, bool) -> c_int,
}

/// One launch of a source on a GPU, alive for the call that hands it over.
#[repr(C)]
pub(crate) struct Launch {
    pub(crate) name: *const c_char,
    pub(crate) header: *const c_char,
    pub(crate) body: *const c_char,
    pub(crate) inputs: Span<*const c_char>,
    pub(crate) outputs: Span<*const c_char>,
    pub(crate) sizes: Integers,
    pub(crate) grid: [i32; 3],
    pub(crate) group: [i32; 3],
    pub(crate) memory: i32,
}

/// Receives a launch, once or never.
#[repr(C)]
pub(crate) struct LaunchSink {
    pub(crate) ctx: *mut c_void,
    pub(crate) give: extern "C" fn(*mut c_void, *const Launch),
}

/// A function from arrays to arrays that is borrowed for one call.
#[repr(C)]
pub(crate) struct Function {
    pub(crate) ctx: *mut c_void,
    pub(crate) call: extern "C" fn(*mut c_void, Arrays, Sink) -> c_int,
}

/// The transforms of a function of ours.
#[repr(C)]
pub(crate) struct FunctionTable {
    pub(crate) release: extern "C" fn(*mut c_void),
    pub(crate) forward: extern "C" fn(*mut c_void, Arrays, Sink) -> c_int,
    pub(crate) vjp: extern "C" fn(*mut c_void, Arrays, Arrays, Arrays, Sink) -> c_int,
    pub(crate) jvp: JvpRule,
    pub(crate) vmap: VmapRule,
}

/// Primals, and the tangents of those that the numbers name.
pub(crate) type JvpRule = extern "C" fn(*mut c_void, Arrays, Arrays, Integers, Sink) -> c_int;

/// Inputs and their axes, -1 for none; results and their axes.
pub(crate) type VmapRule = extern "C" fn(*mut c_void, Arrays, Integers, Sink, AxisSink) -> c_int;

/// A collective under way, or one that failed: what `Op` and `InFlight` of group.rs are made of.
#[repr(C)]
pub(crate) struct InFlight {
    pub(crate) op: c_int,
    pub(crate) peer: c_int,
    pub(crate) number: u64,
    pub(crate) overtaken: u64,
    pub(crate) missed: u64,
    pub(crate) seconds: f64,
    pub(crate) aval: AvalView,
}

#[repr(C)]
pub(crate) struct WatcherTable {
    pub(crate) release: extern "C" fn(*mut c_void),
    pub(crate) poll: extern "C" fn(*mut c_void, InFlight) -> c_int,
    pub(crate) failed: extern "C" fn(*mut c_void, InFlight, *const c_char, usize, bool) -> c_int,
}

/// Chooses the mapped axis of each result.
#[repr(C)]
pub(crate) struct Placement {
    pub(crate) ctx: *mut c_void,
    pub(crate) call: extern "C" fn(*mut c_void, Arrays, AxisSink) -> c_int,
}

unsafe extern "C" {
    pub(crate) fn tacit_last_error() -> *const c_char;
    pub(crate) fn tacit_set_callback_error(text: *const c_char, length: usize);

    pub(crate) fn tacit_scope_new(scope: *mut *mut c_void) -> c_int;
    pub(crate) fn tacit_scope_free(scope: *mut c_void);
    pub(crate) fn tacit_scope_live(scope: *const c_void) -> i64;
    pub(crate) fn tacit_scope_placeholder(scope: *const c_void, aval: AvalView, placeholder: *mut mlx_array) -> c_int;

    pub(crate) fn tacit_tape_new(
        scope: *const c_void,
        outputs: Arrays,
        placeholders: Arrays,
        boundaries: Arrays,
        tape: *mut *mut c_void,
        view: *mut TapeView,
    ) -> c_int;
    pub(crate) fn tacit_tape_free(tape: *mut c_void);
    pub(crate) fn tacit_tape_operand(tape: *const c_void, node: u32, operand: u32, value: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_tape_result(tape: *mut c_void, node: u32, result: u32, value: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_tape_aval(tape: *mut c_void, node: u32, result: u32, aval: *mut AvalView) -> c_int;
    pub(crate) fn tacit_tape_primitive(tape: *const c_void, node: u32, recorded: *mut *mut c_void) -> c_int;
    pub(crate) fn tacit_tape_rewire(tape: *mut c_void, edits: *const Edit, count: usize) -> c_int;
    pub(crate) fn tacit_tape_supersede(tape: *mut c_void, edits: *const Edit, count: usize) -> c_int;

    pub(crate) fn tacit_array_id(array: mlx_array) -> *const c_void;
    pub(crate) fn tacit_array_name(array: mlx_array, id: *mut u32) -> c_int;
    pub(crate) fn tacit_name_intern(name: *const c_char, id: *mut u32) -> c_int;
    pub(crate) fn tacit_name_text(id: u32, text: *mut *const c_char) -> c_int;

    pub(crate) fn tacit_primitive_of(node: mlx_array, recorded: *mut *mut c_void) -> c_int;
    pub(crate) fn tacit_primitive_free(recorded: *mut c_void);
    pub(crate) fn tacit_primitive_emit(recorded: *const c_void, operands: Arrays, moves: bool, results: Sink) -> c_int;

    pub(crate) fn tacit_primitive_args(recorded: *const c_void) -> usize;
    pub(crate) fn tacit_primitive_call_again(recorded: *const c_void, args: Arrays, results: Sink) -> c_int;
    pub(crate) fn tacit_primitive_kernel(recorded: *const c_void) -> *mut c_void;

    pub(crate) fn tacit_group_new(
        name: *const c_char,
        table: WatcherTable,
        watcher: *mut c_void,
        out: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn tacit_group_split(
        group: *const c_void,
        ring: bool,
        color: c_int,
        key: c_int,
        table: WatcherTable,
        watcher: *mut c_void,
        out: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn tacit_end_mpi();
    pub(crate) fn tacit_disturb(seed: u64);
    pub(crate) fn tacit_group_free(group: *mut c_void);
    pub(crate) fn tacit_group_rank(group: *const c_void) -> c_int;
    pub(crate) fn tacit_group_size(group: *const c_void) -> c_int;
    pub(crate) fn tacit_group_collectives(group: *const c_void) -> u64;
    pub(crate) fn tacit_group_bytes(group: *const c_void) -> u64;
    pub(crate) fn tacit_group_collective(
        group: *const c_void,
        op: c_int,
        peer: c_int,
        x: mlx_array,
        result: *mut mlx_array,
    ) -> c_int;
    pub(crate) fn tacit_group_receive(
        group: *const c_void,
        peer: c_int,
        aval: AvalView,
        result: *mut mlx_array,
    ) -> c_int;

    pub(crate) fn tacit_program_new(shapeless: bool, replays: bool, program: *mut *mut c_void) -> c_int;
    pub(crate) fn tacit_program_free(program: *mut c_void);
    pub(crate) fn tacit_program_shapeless(program: *const c_void) -> bool;
    pub(crate) fn tacit_program_matches(program: *const c_void, known: Span<*const c_void>, others: Arrays) -> bool;
    pub(crate) fn tacit_program_call(
        program: *mut c_void,
        inputs: Arrays,
        function: Function,
        outputs: Sink,
        outcome: *mut c_int,
    ) -> c_int;
    pub(crate) fn tacit_program_know(
        program: *const c_void,
        first: usize,
        inputs: Arrays,
        known: *mut *mut c_void,
    ) -> c_int;
    pub(crate) fn tacit_known_free(known: *mut c_void);
    pub(crate) fn tacit_known_get(known: *const c_void, number: usize, value: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_program_call_beside(
        program: *const c_void,
        known: Span<*const c_void>,
        others: Arrays,
        outputs: Sink,
        matches: *mut bool,
    ) -> c_int;
    pub(crate) fn tacit_in_transform() -> bool;
    pub(crate) fn tacit_any_tracer(arrays: Arrays) -> bool;
    pub(crate) fn tacit_holds_tracer(arrays: Arrays) -> bool;
    pub(crate) fn tacit_set_no_fuse();

    pub(crate) fn tacit_record(
        inputs: Arrays,
        shapeless: bool,
        function: Function,
        tracers: Sink,
        outputs: Sink,
    ) -> c_int;

    pub(crate) fn tacit_extent(a: mlx_array, axes: Integers, extent: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_has_shape_rules(result: mlx_array, from: mlx_array, has: *mut bool) -> c_int;
    pub(crate) fn tacit_vjp(primals: Arrays, cotangents: Arrays, function: Function, gradients: Sink) -> c_int;
    pub(crate) fn tacit_jvp(primals: Arrays, tangents: Arrays, function: Function, changes: Sink) -> c_int;
    pub(crate) fn tacit_depth(outputs: Arrays, inputs: Arrays, found: *mut usize) -> c_int;
    pub(crate) fn tacit_evals_noted() -> usize;
    pub(crate) fn tacit_is_traced(root: mlx_array, traced: *mut bool) -> c_int;
    pub(crate) fn tacit_broadcast_source(root: mlx_array, source: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_reshape_source(root: mlx_array, source: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_reshaped_again(root: mlx_array, source: mlx_array, reshaped: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_frontier(outputs: Arrays, inputs: Arrays, sink: Sink) -> c_int;
    pub(crate) fn tacit_held_elsewhere(outputs: Arrays, inputs: Arrays, sink: Sink) -> c_int;
    pub(crate) fn tacit_reached(outputs: Arrays, inputs: Arrays, sink: Sink) -> c_int;
    pub(crate) fn tacit_holders(array: mlx_array, count: *mut usize) -> c_int;
    pub(crate) fn tacit_constants(outputs: Arrays, inputs: Arrays, sink: Sink) -> c_int;
    pub(crate) fn tacit_cse(outputs: Arrays, inputs: Arrays, sink: Sink, removed: *mut usize) -> c_int;
    pub(crate) fn tacit_comes_of_collective(handle: mlx_array, comes: *mut bool) -> c_int;
    pub(crate) fn tacit_scalar_value(array: mlx_array, value: *mut f64, known: *mut bool) -> c_int;
    pub(crate) fn tacit_arg_partition(values: *const f32, count: usize, kth: usize, places: *mut u32) -> c_int;
    pub(crate) fn tacit_runs_on(array: mlx_array, chosen: mlx_stream, runs: *mut bool) -> c_int;
    pub(crate) fn tacit_difference(
        a_outputs: Arrays,
        b_outputs: Arrays,
        a_inputs: Arrays,
        b_inputs: Arrays,
        reason: *mut c_int,
        a: *mut mlx_array,
        b: *mut mlx_array,
    ) -> c_int;

    pub(crate) fn tacit_mapped_new(
        data: *mut c_void,
        bytes: usize,
        payload: *mut c_void,
        release: extern "C" fn(*mut c_void),
        base: *mut mlx_array,
    ) -> c_int;
    pub(crate) fn tacit_mapped_array(
        base: mlx_array,
        data: *const c_void,
        offset: usize,
        aval: AvalView,
        out: *mut mlx_array,
    ) -> c_int;
    pub(crate) fn tacit_array_rows(evaluated: mlx_array, rows: *mut mlx_array, data: *mut *const c_void) -> c_int;

    pub(crate) fn tacit_prototype(aval: AvalView, value: *mut mlx_array) -> c_int;
    pub(crate) fn tacit_quantized_matmul(
        x: mlx_array,
        codes: mlx_array,
        scales: mlx_array,
        biases: mlx_array,
        transpose: bool,
        group_size: c_int,
        bits: c_int,
        mode: *const c_char,
        stream: mlx_stream,
        result: *mut mlx_array,
    ) -> c_int;

    pub(crate) fn tacit_dynamic_slice(
        a: mlx_array,
        start: mlx_array,
        axes: Integers,
        size: Integers,
        stream: mlx_stream,
        result: *mut mlx_array,
    ) -> c_int;
    pub(crate) fn tacit_dynamic_slice_update(
        a: mlx_array,
        update: mlx_array,
        start: mlx_array,
        axes: Integers,
        stream: mlx_stream,
        result: *mut mlx_array,
    ) -> c_int;

    pub(crate) fn tacit_gpu() -> c_int;
    pub(crate) fn tacit_cuda_capability(capability: *mut u32) -> c_int;
    pub(crate) fn tacit_kernel_apply(
        table: KernelTable,
        kernel: *mut c_void,
        name: *const c_char,
        stream: mlx_stream,
        host: bool,
        sourceless: bool,
        traced_for: c_int,
        inputs: Arrays,
        results: Sink,
        placed: *mut c_int,
    ) -> c_int;
    pub(crate) fn tacit_plan_apply(
        table: KernelTable,
        kernel: *mut c_void,
        name: *const c_char,
        stream: mlx_stream,
        inputs: Arrays,
        donated: Span<usize>,
        results: Sink,
    ) -> c_int;
    pub(crate) fn tacit_array_check(array: mlx_array) -> c_int;
    pub(crate) fn tacit_is_wanted(argnum: usize) -> bool;
    pub(crate) fn tacit_eval(arrays: Arrays, encode: *mut f64, wait: *mut f64) -> c_int;
    pub(crate) fn tacit_custom_function(
        table: FunctionTable,
        function: *mut c_void,
        args: Arrays,
        results: Sink,
    ) -> c_int;
    pub(crate) fn tacit_checkpoint(table: FunctionTable, function: *mut c_void, args: Arrays, results: Sink) -> c_int;
    pub(crate) fn tacit_saved(
        table: FunctionTable,
        function: *mut c_void,
        kind: extern "C" fn(u32) -> u8,
        parts: Span<EndsView>,
    ) -> c_int;
    pub(crate) fn tacit_settle(outputs: Arrays) -> c_int;
    pub(crate) fn tacit_apart(values: Arrays, results: Sink) -> c_int;
    pub(crate) fn tacit_after(values: Arrays, before: Arrays, results: Sink) -> c_int;
    pub(crate) fn tacit_chunked(
        table: FunctionTable,
        function: *mut c_void,
        args: Arrays,
        sliced: usize,
        rows: i32,
        results: Sink,
    ) -> c_int;
    pub(crate) fn tacit_vmap(
        inputs: Arrays,
        axes: Integers,
        function: Function,
        placement: Placement,
        captured: *mut bool,
        results: Sink,
    ) -> c_int;
}
