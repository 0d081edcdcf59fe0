//! Host code as an MLX primitive.

mod elements;
mod fallback;
mod launch;
mod pieces;

use std::any::Any;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mlx_rs::Array;

use crate::callback::{PanicError, guarded, guarded_rule, release};
use crate::custom_function::check_tangents;
use crate::error::{BoxError, BridgeError, check, raise_text};
use crate::ffi::{self, Arrays, AxisSink, Buffer, FallbackReason, Integers, KernelTable, LaunchSink, Sink, Span};
use crate::gradients::check_gradients;
use crate::vmap::{Mapped, answer_vmap};
use crate::{Aval, Param, arrays};

pub use elements::{Element, ElementError, Input, Output};
pub use fallback::Fallback;
pub use launch::{GpuBackend, Launch, Placed, Placement};
pub use pieces::{EvalPiece, Pieces};

use elements::{input, output};

/// Host code as an MLX primitive.
///
/// It is lazy like any primitive and works under grad, vmap and compile. What MLX cannot know of it comes from
/// [`decompose`](Self::decompose), the same function in plain MLX ops: the oracle of its tests, and with
/// [`fallback`](Self::fallback) what stands for it on a device without a source and in a vjp, jvp or vmap that it has not.
pub trait Kernel: Any + Send + Sync {
    /// The primitive's name, in graphs and messages: one that no primitive of MLX has.
    fn name(&self) -> &'static str;

    /// The avals of the results.
    ///
    /// # Errors
    ///
    /// The inputs do not fit the kernel.
    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError>;

    /// Computes every element of the results from dense row-major inputs, on a thread of MLX's.
    ///
    /// # Errors
    ///
    /// Whatever the kernel refuses; it becomes an error of the eval, and so does a panic. What was computed from the
    /// results is an error from then on, wherever it is read or evaluated.
    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError>;

    /// How the kernel computes a piece of its elements at a time, of inputs of these avals; `None` where an element needs all others.
    ///
    /// A [plan](crate::Plan) runs such kernels one piece after the other, so that what they leave to each other stays in the cache.
    fn pieces(&self, inputs: &[Aval]) -> Option<Pieces> {
        let _ = inputs;
        None
    }

    /// The results that may lie in the memory of an input, each with that input, of inputs of these avals: every element of such a
    /// result is written after all that is made of that element of the input.
    ///
    /// A [plan](crate::Plan) gives a kernel the memory of inputs that nothing else needs, for any choice of these pairs in which each
    /// result and each input is at most once. Such an input says so by [`Input::output`], and is read there.
    fn in_place(&self, inputs: &[Aval]) -> Vec<(usize, usize)> {
        let _ = inputs;
        Vec::new()
    }

    /// The launch that computes the results on a GPU, from dense row-major inputs of these avals; `None` where the kernel has
    /// no source for them, and its [fallback](Self::fallback) stands for it.
    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        let _ = (inputs, backend);
        None
    }

    /// The same function in plain MLX ops.
    ///
    /// # Errors
    ///
    /// MLX refuses one of the ops.
    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError>;

    /// What goes into the graph in the place of the kernel where MLX cannot take the kernel itself: the decomposition,
    /// unless the kernel has something better for this `reason`, or the decomposition costs what somebody must be asked
    /// for.
    ///
    /// # Errors
    ///
    /// MLX refuses one of the ops, or nothing may stand for the kernel.
    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Result<Vec<Array>, BoxError> {
        let _ = reason;
        self.decompose(inputs)
    }

    /// The static parameters by name, if they say all that there is to say.
    ///
    /// Two kernels of one type and name with equal parameters must compute the same function: MLX then merges equal nodes,
    /// and a graph recorded a second time is known as the same program. With `None` a kernel equals only itself.
    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        None
    }

    /// One gradient for each primal that `argnums` names, or `None` for the vjp of the fallback.
    fn vjp(&self, primals: &[Array], cotangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        let _ = (primals, cotangents, argnums);
        None
    }

    /// One tangent for each result, of the result's aval; `tangents` are those of the primals that `argnums` names. `None`
    /// for the jvp of the fallback.
    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        let _ = (primals, tangents, argnums);
        None
    }

    /// The results on inputs that are mapped along `axes`, and the mapped axis of each result; `None` for the vmap of the
    /// fallback.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Result<Mapped, BoxError>> {
        let _ = (inputs, axes);
        None
    }
}

/// Puts `kernel` into the graph.
///
/// It goes to the stream that mlx-rs's own ops go to here, placed as [`place`] does by default.
///
/// # Errors
///
/// The kernel refuses the avals of the inputs.
pub fn apply(kernel: Arc<dyn Kernel>, inputs: &[Array]) -> Result<Vec<Array>, BridgeError> {
    Ok(place(kernel, inputs, Placement::default())?.0)
}

/// Puts `kernel` into the graph, and says where it went.
///
/// It goes to the stream that mlx-rs's own ops go to here. Inputs that turn out not to be row-major when it runs are copied
/// then. On a GPU for which the kernel has no source, its [fallback](Kernel::fallback) goes into the graph instead, unless
/// `placement` says otherwise.
///
/// # Errors
///
/// The kernel refuses the avals of the inputs.
pub fn place(
    kernel: Arc<dyn Kernel>,
    inputs: &[Array],
    placement: Placement,
) -> Result<(Vec<Array>, Placed), BridgeError> {
    let name = CString::new(kernel.name()).map_err(|_| BridgeError::Nul(kernel.name().to_owned()))?;
    let handles = arrays::handles(inputs);
    let mut placed = 0;
    let Placement { host, sourceless, traced_for } = placement;
    let traced_for = traced_for.map_or(-1, |backend| backend as c_int);
    let results = arrays::collected(|results| {
        // SAFETY: the callee takes the box over and frees it by `release`; everything else is live for the call.
        arrays::with_stream(|stream| unsafe {
            let (name, kernel, inputs) = (name.as_ptr(), boxed(kernel), Span::new(&handles));
            let placed = &raw mut placed;
            ffi::tacit_kernel_apply(TABLE, kernel, name, stream, host, sourceless, traced_for, inputs, results, placed)
        })
    })?;
    Ok((results, Placed::from_code(placed)))
}

/// What C++ calls of a kernel.
pub(crate) const TABLE: KernelTable =
    KernelTable { release: release::<Arc<dyn Kernel>>, eval, fallback, vjp, jvp, avals, equal, vmap, launch, failed };

/// A kernel as C++ holds it, until it calls `release`.
pub(crate) fn boxed(kernel: Arc<dyn Kernel>) -> *mut c_void {
    Box::into_raw(Box::new(kernel)).cast()
}

/// Fails if `array` is computed from the results of a kernel that failed, as every read and eval of it does. A kernel that
/// has not run yet may still fail.
///
/// # Errors
///
/// The failure, as a [`KernelError`].
pub fn check_intact(array: &Array) -> Result<(), BridgeError> {
    // SAFETY: the array is live for the call.
    check(unsafe { ffi::tacit_array_check(array.as_ptr()) })
}

/// How many evals of kernels are noted: those under way, and those that one under way takes results of. For tests.
#[doc(hidden)]
#[must_use]
pub fn evals_noted() -> usize {
    // SAFETY: reads an atomic number.
    unsafe { ffi::tacit_evals_noted() }
}

/// # Safety
///
/// `kernel` must be the box that [`apply`] gave away, still alive.
pub(crate) unsafe fn kernel_of<'a>(kernel: *mut c_void) -> &'a dyn Kernel {
    // SAFETY: as the caller promises.
    unsafe { &**kernel.cast::<Arc<dyn Kernel>>() }
}

extern "C" fn eval(kernel: *mut c_void, inputs: Span<Buffer>, outputs: Span<Buffer>) -> c_int {
    evaluated(|name| {
        // SAFETY: the C++ side passes live buffers, each output's its own, for the length of the call.
        let (kernel, inputs, mut outputs) = unsafe {
            let inputs = inputs.get().iter().map(|b| input(b)).collect::<Result<Vec<_>, _>>()?;
            let outputs = outputs.get().iter().map(|b| output(b)).collect::<Result<Vec<_>, _>>()?;
            (kernel_of(kernel), inputs, outputs)
        };
        *name = kernel.name();
        kernel.eval_cpu(&inputs, &mut outputs)
    })
}

/// Runs what evaluates a kernel, which leaves the kernel's name, and tells C++ of a failure.
pub(crate) fn evaluated(run: impl FnOnce(&mut &'static str) -> Result<(), BoxError>) -> c_int {
    let mut name = "";
    // The text of an error is a user's own as well.
    let ended = catch_unwind(AssertUnwindSafe(|| run(&mut name).map_err(|failure| failure.to_string())));
    let failure = match ended {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(payload) => PanicError::from_payload(&*payload).to_string(),
    };
    // Whoever is told of it gets the error itself by `failed`: through MLX goes only text.
    raise_text(&KernelError { kernel: name, failure, poisoned: false, help: None }.to_string());
    1
}

/// A kernel failed while MLX evaluated it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "kernel {kernel} failed: {failure}{}{}", if *.poisoned { "; this array comes of what it left" } else { "" },
    .help.as_ref().map(|help| format!("\nhelp: {help}")).unwrap_or_default()
)]
pub struct KernelError {
    /// The kernel.
    pub kernel: &'static str,
    /// The kernel's own words.
    pub failure: String,
    /// Whether the array is only computed from the results of the kernel.
    pub poisoned: bool,
    /// The next step, where it is known.
    pub help: Option<String>,
}

impl KernelError {
    /// What the kernel of this name said, in the text of an error of it.
    pub(crate) fn own_words<'a>(kernel: &str, text: &'a str) -> Option<&'a str> {
        text.strip_prefix("kernel ")?.strip_prefix(kernel)?.strip_prefix(" failed: ")
    }

    /// The error of this kernel, from its own words.
    pub(crate) fn new(kernel: &'static str, words: &str, poisoned: bool) -> Self {
        let (failure, help) = match words.split_once("\nhelp: ") {
            Some((failure, help)) => (failure.to_owned(), Some(help.to_owned())),
            None => (words.to_owned(), None),
        };
        let again = |help: Option<String>| {
            format!("{}, and build the array again", help.as_deref().unwrap_or("see to the operands of the kernel"))
        };
        Self { kernel, failure, poisoned, help: if poisoned { Some(again(help)) } else { help } }
    }
}

extern "C" fn failed(kernel: *mut c_void, text: *const c_char, length: usize, poisoned: bool) -> c_int {
    guarded(|| {
        // SAFETY: the kernel and the text, of this length, are live for the call.
        let (kernel, text) = unsafe { (kernel_of(kernel).name(), std::slice::from_raw_parts(text.cast(), length)) };
        let text = String::from_utf8_lossy(text);
        Err(KernelError::new(kernel, KernelError::own_words(kernel, &text).unwrap_or(&text), poisoned).into())
    })
}

extern "C" fn fallback(kernel: *mut c_void, reason: FallbackReason, inputs: Arrays, results: Sink) -> c_int {
    guarded(|| {
        // SAFETY: the kernel and the inputs are live for the length of the call.
        let (kernel, inputs) = unsafe { (kernel_of(kernel), arrays::copies(inputs)?) };
        let outputs = kernel.fallback(&inputs, Fallback::from_reason(reason)?)?;
        let (found, expected) = (Aval::all(&outputs), kernel.output_avals(&Aval::all(&inputs))?);
        // MLX puts them in the places of the results that it recorded, without a look.
        if found != expected {
            let (name, found, expected) = (kernel.name(), Aval::list(&found), Aval::list(&expected));
            let help = "let it give what `output_avals` says";
            return Err(format!("the decomposition of {name} gave {found} and not {expected}\nhelp: {help}").into());
        }
        Ok(arrays::pour(&outputs, &results)?)
    })
}

extern "C" fn vjp(kernel: *mut c_void, primals: Arrays, cotangents: Arrays, argnums: Integers, sink: Sink) -> c_int {
    guarded_rule(|| {
        // SAFETY: everything is live for the length of the call.
        let (kernel, primals, cotangents, argnums) = unsafe {
            (kernel_of(kernel), arrays::copies(primals)?, arrays::copies(cotangents)?, arrays::positions(argnums))
        };
        let Some(gradients) = kernel.vjp(&primals, &cotangents, &argnums).transpose()? else { return Ok(None) };
        check_gradients(kernel.name(), argnums.iter().map(|&argnum| &primals[argnum]), &gradients)?;
        Ok(Some(arrays::pour(&gradients, &sink)?))
    })
}

extern "C" fn jvp(kernel: *mut c_void, primals: Arrays, tangents: Arrays, argnums: Integers, sink: Sink) -> c_int {
    guarded_rule(|| {
        // SAFETY: everything is live for the length of the call, and there is a tangent for each of the argnums.
        let (kernel, primals, tangents, argnums) = unsafe {
            (kernel_of(kernel), arrays::copies(primals)?, arrays::copies(tangents)?, arrays::positions(argnums))
        };
        let Some(result_tangents) = kernel.jvp(&primals, &tangents, &argnums).transpose()? else { return Ok(None) };
        let results = kernel.output_avals(&Aval::all(&primals))?;
        check_tangents(kernel.name(), &results, &result_tangents)?;
        Ok(Some(arrays::pour(&result_tangents, &sink)?))
    })
}

extern "C" fn vmap(kernel: *mut c_void, inputs: Arrays, axes: Integers, results: Sink, result_axes: AxisSink) -> c_int {
    guarded_rule(|| {
        // SAFETY: everything is live for the length of the call, and there is an axis for each input.
        unsafe {
            let kernel = kernel_of(kernel);
            let rule = |inputs: &[Array], axes: &[Option<usize>]| kernel.vmap(inputs, axes);
            let expected = |example: &[Aval]| kernel.output_avals(example);
            answer_vmap(kernel.name(), inputs, axes, rule, expected, &results, &result_axes)
        }
    })
}

extern "C" fn avals(kernel: *mut c_void, inputs: Arrays, sink: Sink) -> c_int {
    guarded(|| {
        // SAFETY: the kernel and the inputs are live for the length of the call.
        let (kernel, inputs) = unsafe { (kernel_of(kernel), arrays::copies(inputs)?) };
        let inputs = Aval::all(&inputs);
        let prototypes = kernel.output_avals(&inputs)?.iter().map(arrays::prototype).collect::<Result<Vec<_>, _>>()?;
        Ok(arrays::pour(&prototypes, &sink)?)
    })
}

extern "C" fn launch(kernel: *mut c_void, backend: c_int, inputs: Arrays, sink: LaunchSink) -> c_int {
    guarded(|| {
        // SAFETY: the kernel and the inputs are live for the length of the call.
        let (kernel, inputs) = unsafe { (kernel_of(kernel), arrays::copies(inputs)?) };
        let inputs = Aval::all(&inputs);
        let backend = GpuBackend::from_code(backend)?;
        match kernel.launch(&inputs, backend) {
            Some(launch) => launch.give(backend, &sink),
            None => Ok(()),
        }
    })
}

extern "C" fn equal(a: *mut c_void, b: *mut c_void) -> c_int {
    // SAFETY: both kernels are live for the length of the call.
    let (a, b) = unsafe { (kernel_of(a), kernel_of(b)) };
    // Two crates may have kernels of one name.
    let is_one_type = (a as &dyn Any).type_id() == (b as &dyn Any).type_id();
    let equal = || is_one_type && a.name() == b.name() && a.params().is_some_and(|params| Some(params) == b.params());
    c_int::from(catch_unwind(AssertUnwindSafe(equal)).unwrap_or(false))
}

/// The kernel behind a recorded primitive, if that is one.
///
/// # Safety
///
/// `recorded` must be an object of `tacit_primitive_of` that lives for `'a`.
pub(crate) unsafe fn of_recorded<'a>(recorded: *const c_void) -> Option<&'a Arc<dyn Kernel>> {
    // SAFETY: as the caller promises; it is the box that `apply` gave away, which lives as long as the object.
    unsafe { ffi::tacit_primitive_kernel(recorded).cast::<Arc<dyn Kernel>>().as_ref() }
}
