//! Functions with a gradient of their own.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_rs::Array;
use mlx_sys::mlx_array;

use crate::Aval;
use crate::arrays::{self, Collector};
use crate::error::{self, BoxError, BridgeError, check};
use crate::ffi::{self, GradientTable, Sink};

/// A vjp gave gradients that do not fit its arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GradientError {
    /// The number of gradients is not the number of arguments.
    #[error("the vjp of {function} gave {found} gradients for {expected} arguments")]
    Count {
        /// The function.
        function: String,
        /// The number of arguments.
        expected: usize,
        /// The number of gradients.
        found: usize,
    },
    /// A gradient has another shape or dtype than its argument.
    #[error("the vjp of {function} gave {found} as the gradient of argument {argument}, which is {expected}")]
    Aval {
        /// The function.
        function: String,
        /// Which argument.
        argument: usize,
        /// The aval of the argument.
        expected: Aval,
        /// The aval of the gradient.
        found: Aval,
    },
}

/// Compares gradients with the arguments that they belong to; MLX itself does not, and crashes on a wrong count.
pub(crate) fn check_gradients<'a>(
    function: &str,
    arguments: impl ExactSizeIterator<Item = &'a Array>,
    gradients: &[Array],
) -> Result<(), GradientError> {
    let function = || function.to_owned();
    if arguments.len() != gradients.len() {
        return Err(GradientError::Count { function: function(), expected: arguments.len(), found: gradients.len() });
    }
    for (argument, (primal, gradient)) in arguments.zip(gradients).enumerate() {
        let (expected, found) = (Aval::from(primal), Aval::from(gradient));
        if expected != found {
            return Err(GradientError::Aval { function: function(), argument, expected, found });
        }
    }
    Ok(())
}

/// A function together with its vjp.
pub trait Differentiable: Send + Sync + 'static {
    /// What messages call the function.
    fn name(&self) -> &str;

    /// The function itself; at least one result.
    ///
    /// # Errors
    ///
    /// Whatever the function refuses.
    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError>;

    /// One gradient for each argument, of the argument's aval.
    ///
    /// # Errors
    ///
    /// Whatever the function refuses.
    fn backward(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Result<Vec<Array>, BoxError>;
}

/// Applies `function` so that its vjp is the function's own.
///
/// # Errors
///
/// The function fails or gives no result. The gradients are checked when they are taken.
pub fn custom_vjp(function: impl Differentiable, args: &[Array]) -> Result<Vec<Array>, BridgeError> {
    let handles = arrays::handles(args);
    let function: Box<Box<dyn Differentiable>> = Box::new(Box::new(function));
    let table = GradientTable { release, forward, backward };
    let mut results = Collector::default();
    // SAFETY: the callee takes the box over and frees it by `release`; the handles and the collector are live.
    check(unsafe {
        ffi::tacit_custom_vjp(table, Box::into_raw(function).cast(), handles.as_ptr(), handles.len(), results.sink())
    })?;
    Ok(results.arrays)
}

extern "C" fn release(function: *mut c_void) {
    // SAFETY: this is the box that `custom_vjp` gave away, and it is freed once. A destructor that panics must not
    // unwind into C++.
    let _ = catch_unwind(|| drop(unsafe { Box::from_raw(function.cast::<Box<dyn Differentiable>>()) }));
}

extern "C" fn forward(function: *mut c_void, args: *const mlx_array, count: usize, results: Sink) -> c_int {
    guarded(|| {
        // SAFETY: MLX calls graph callbacks on the thread that transforms, while the node and its arguments live.
        let (function, args) = unsafe { (&*function.cast::<Box<dyn Differentiable>>(), arrays::copies(args, count)?) };
        let made = function.forward(&args)?;
        if made.is_empty() {
            return Err(format!("{} gave no result", function.name()).into());
        }
        Ok(arrays::pour(&made, &results)?)
    })
}

extern "C" fn backward(
    function: *mut c_void,
    primals: *const mlx_array,
    primal_count: usize,
    cotangents: *const mlx_array,
    cotangent_count: usize,
    outputs: *const mlx_array,
    output_count: usize,
    gradients: Sink,
) -> c_int {
    guarded(|| {
        // SAFETY: as in `forward`.
        let (function, primals, cotangents, outputs) = unsafe {
            (
                &*function.cast::<Box<dyn Differentiable>>(),
                arrays::copies(primals, primal_count)?,
                arrays::copies(cotangents, cotangent_count)?,
                arrays::copies(outputs, output_count)?,
            )
        };
        let made = function.backward(&primals, &cotangents, &outputs)?;
        check_gradients(function.name(), primals.iter(), &made)?;
        Ok(arrays::pour(&made, &gradients)?)
    })
}

/// Runs the body of a callback: neither an error nor a panic crosses into C++ but as its text.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), BoxError>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(payload) => BoxError::from(PanicError(error::panic_text(&*payload))),
    };
    error::raise(failure);
    1
}

/// A callback panicked.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
pub struct PanicError(pub String);
