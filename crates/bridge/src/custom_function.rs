//! Functions with transforms of their own.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use mlx_rs::Array;

use crate::callback::{guarded, guarded_rule, release};
use crate::error::{BoxError, BridgeError};
use crate::ffi::{self, Arrays, AxisSink, FunctionTable, Integers, Sink, Span};
use crate::gradients::check_gradients;
use crate::vmap::{Mapped, answer_vmap};
use crate::{Aval, arrays};

/// A function together with the transforms that it has of its own, which fail with whatever it refuses.
///
/// A rule that gives `None` is not there: the transform is then that of [`forward`](Self::forward). A mapped function keeps
/// its vjp and its jvp, which are mapped with it.
pub trait CustomFunction: Send + Sync + 'static {
    /// What messages call the function.
    fn name(&self) -> &str;

    /// The function itself; at least one result, of the same avals for arguments of the same avals.
    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError>;

    /// One gradient for each argument, of the argument's aval.
    fn vjp(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Option<Result<Vec<Array>, BoxError>> {
        let _ = (primals, cotangents, outputs);
        None
    }

    /// One tangent for each result, of the result's aval; `tangents` are those of the primals that `argnums` names.
    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        let _ = (primals, tangents, argnums);
        None
    }

    /// The results on inputs that are mapped along `axes`, and the mapped axis of each result.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Result<Mapped, BoxError>> {
        let _ = (inputs, axes);
        None
    }
}

/// A jvp gave tangents that do not fit the results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TangentError {
    /// The number of tangents is not the number of results.
    #[error("the jvp of {function} gave {found} tangents for {expected} results")]
    Count {
        /// The function.
        function: String,
        /// The number of results.
        expected: usize,
        /// The number of tangents.
        found: usize,
    },
    /// A tangent has another shape or dtype than its result.
    #[error("the jvp of {function} gave {found} as the tangent of result {result}, which is {expected}")]
    Aval {
        /// The function.
        function: String,
        /// Which result.
        result: usize,
        /// The aval of the result.
        expected: Aval,
        /// The aval of the tangent.
        found: Aval,
    },
}

/// Applies `function` so that its transforms are the function's own.
///
/// # Errors
///
/// The function fails or gives no result. What the rules give is checked when they are used.
pub fn custom_function(function: impl CustomFunction, args: &[Array]) -> Result<Vec<Array>, BridgeError> {
    apply(function, Calls::Alike, args, |table, held, args, results| {
        // SAFETY: as `apply` says of a call.
        unsafe { ffi::tacit_custom_function(table, held, args, results) }
    })
}

/// Applies `function` so that nothing of it is kept for the backward pass, which calls it again.
///
/// # Errors
///
/// The function fails or gives no result.
pub fn checkpoint(
    function: impl Fn(&[Array]) -> Result<Vec<Array>, BoxError> + Send + Sync + 'static,
    args: &[Array],
) -> Result<Vec<Array>, BridgeError> {
    apply(CalledAgain { name: "checkpoint", function }, Calls::Alike, args, |table, held, args, results| {
        // SAFETY: as `apply` says of a call.
        unsafe { ffi::tacit_checkpoint(table, held, args, results) }
    })
}

/// Applies `function` to at most `rows` rows of the first `sliced` arguments at a time, one chunk after the other, and joins
/// the results along axis 0; the other arguments each call has whole. Nothing of it is kept for the backward pass, which calls
/// it again, with a chunk after the other.
///
/// # Errors
///
/// The function fails or gives no result; the arguments have no rows, or not all the same number; `rows` is not positive.
pub fn in_chunks(
    function: impl Fn(&[Array]) -> Result<Vec<Array>, BoxError> + Send + Sync + 'static,
    args: &[Array],
    sliced: usize,
    rows: i32,
) -> Result<Vec<Array>, BridgeError> {
    let extent = |array: &Array| array.shape().first().copied();
    let extents = args.get(..sliced).map(|args| args.iter().map(extent).collect::<Vec<_>>());
    let alike = extents
        .is_some_and(|extents| extents.first().is_some_and(|one| one.is_some() && extents.iter().all(|e| e == one)));
    if !alike || rows < 1 {
        return Err(BridgeError::Mlx(format!(
            "no chunks of {rows} rows of the first {sliced} arguments\nhelp: give arguments of the same number of rows, and \
             chunks of at least one"
        )));
    }
    apply(CalledAgain { name: "in_chunks", function }, Calls::Alike, args, |table, held, args, results| {
        // SAFETY: as `apply` says of a call; the sliced arguments have an axis of rows, which is of one extent.
        unsafe { ffi::tacit_chunked(table, held, args, sliced, rows, results) }
    })
}

/// A function that is called again for the backward pass.
pub(crate) struct CalledAgain<F> {
    pub(crate) name: &'static str,
    pub(crate) function: F,
}

impl<F> CustomFunction for CalledAgain<F>
where
    F: Fn(&[Array]) -> Result<Vec<Array>, BoxError> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        self.name
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError> {
        (self.function)(args)
    }
}

struct Held {
    function: Box<dyn CustomFunction>,
    /// The avals of the arguments and of the results of the first call, to check against what comes later.
    first: OnceLock<[Vec<Aval>; 2]>,
    calls: Calls,
}

/// What a node's calls of its function have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    /// They are for the results of the node: as many each time, and alike for arguments that are.
    Alike,
    /// Nothing.
    Any,
}

impl Held {
    /// The avals of the results.
    fn results(&self) -> &[Aval] {
        self.first.get().map_or(&[], |[_, results]| results)
    }

    /// Compares a call with the first one. MLX calls a function again for its transforms, and puts the results in the places
    /// of the first ones without a look; only chunks are of several shapes.
    fn check_call(&self, args: &[Array], again: &[Array]) -> Result<(), BoxError> {
        if self.calls == Calls::Any {
            return Ok(());
        }
        let mut call = Some([Aval::all(args), Aval::all(again)]);
        let [first, results] = self.first.get_or_init(|| call.take().unwrap_or_default());
        // The first call, which is the only one of most nodes, is what the others are compared with.
        let Some([args, again]) = call else { return Ok(()) };
        let fits = if *first == args { *results == again } else { results.len() == again.len() };
        if fits {
            return Ok(());
        }
        let (name, again, results) = (self.function.name(), Aval::list(&again), Aval::list(results));
        let help = "let it give the same shapes and dtypes in each call";
        Err(format!("{name} gave {again} when it was called again, and {results} before\nhelp: {help}").into())
    }
}

/// Calls `enter` with a function of ours: the callee is to take the box over and free it by `release`; the handles and the
/// collector are live meanwhile.
pub(crate) fn apply(
    function: impl CustomFunction,
    calls: Calls,
    args: &[Array],
    enter: impl FnOnce(FunctionTable, *mut c_void, Arrays, Sink) -> c_int,
) -> Result<Vec<Array>, BridgeError> {
    let handles = arrays::handles(args);
    let held = Box::new(Held { function: Box::new(function), first: OnceLock::new(), calls });
    let table = FunctionTable { release: release::<Held>, forward, vjp, jvp, vmap };
    arrays::collected(|results| enter(table, Box::into_raw(held).cast(), Span::new(&handles), results))
}

/// # Safety
///
/// `held` must be the box that [`apply`] gave away, still alive.
unsafe fn function_of<'a>(held: *mut c_void) -> &'a Held {
    // SAFETY: as the caller promises.
    unsafe { &*held.cast::<Held>() }
}

extern "C" fn forward(function: *mut c_void, args: Arrays, results: Sink) -> c_int {
    guarded(|| {
        // SAFETY: MLX calls graph callbacks on the thread that transforms, while the node and its arguments live.
        let (held, args) = unsafe { (function_of(function), arrays::copies(args)?) };
        let outputs = held.function.forward(&args)?;
        if outputs.is_empty() {
            return Err(format!("{} gave no result", held.function.name()).into());
        }
        held.check_call(&args, &outputs)?;
        Ok(arrays::pour(&outputs, &results)?)
    })
}

/// Whether the vjp of a custom function that is in progress on this thread is wanted for this argument. MLX asks for the
/// gradients of all arguments, and drops the others.
#[must_use]
pub fn is_wanted(argnum: usize) -> bool {
    // SAFETY: reads what is the thread's own.
    unsafe { ffi::tacit_is_wanted(argnum) }
}

extern "C" fn vjp(function: *mut c_void, primals: Arrays, cotangents: Arrays, outputs: Arrays, sink: Sink) -> c_int {
    guarded_rule(|| {
        // SAFETY: as in `forward`.
        let (Held { function, .. }, primals, cotangents, outputs) = unsafe {
            (function_of(function), arrays::copies(primals)?, arrays::copies(cotangents)?, arrays::copies(outputs)?)
        };
        let Some(gradients) = function.vjp(&primals, &cotangents, &outputs).transpose()? else { return Ok(None) };
        check_gradients(function.name(), primals.iter(), &gradients)?;
        Ok(Some(arrays::pour(&gradients, &sink)?))
    })
}

extern "C" fn jvp(function: *mut c_void, primals: Arrays, tangents: Arrays, argnums: Integers, sink: Sink) -> c_int {
    guarded_rule(|| {
        // SAFETY: as in `forward`; there is a tangent for each of the argnums, which are live for the length of the call.
        let (held, primals, tangents, argnums) = unsafe {
            (function_of(function), arrays::copies(primals)?, arrays::copies(tangents)?, arrays::positions(argnums))
        };
        let Some(result_tangents) = held.function.jvp(&primals, &tangents, &argnums).transpose()? else {
            return Ok(None);
        };
        check_tangents(held.function.name(), held.results(), &result_tangents)?;
        Ok(Some(arrays::pour(&result_tangents, &sink)?))
    })
}

/// Compares tangents with the results that they belong to; MLX itself does not.
pub(crate) fn check_tangents(function: &str, results: &[Aval], tangents: &[Array]) -> Result<(), TangentError> {
    let function = || function.to_owned();
    if results.len() != tangents.len() {
        return Err(TangentError::Count { function: function(), expected: results.len(), found: tangents.len() });
    }
    for (result, (expected, tangent)) in results.iter().zip(tangents).enumerate() {
        let found = Aval::from(tangent);
        if *expected != found {
            return Err(TangentError::Aval { function: function(), result, expected: expected.clone(), found });
        }
    }
    Ok(())
}

extern "C" fn vmap(
    function: *mut c_void,
    inputs: Arrays,
    axes: Integers,
    results: Sink,
    result_axes: AxisSink,
) -> c_int {
    guarded_rule(|| {
        // SAFETY: as in `forward`; there is an axis for each of the inputs.
        unsafe {
            let held = function_of(function);
            let rule = |inputs: &[Array], axes: &[Option<usize>]| held.function.vmap(inputs, axes);
            let expected = |_: &[Aval]| Ok(held.results().to_vec());
            answer_vmap(held.function.name(), inputs, axes, rule, expected, &results, &result_axes)
        }
    })
}
