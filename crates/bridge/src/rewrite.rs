//! What the rewriting of a recorded graph needs: common subexpressions, and questions about arrays.

use mlx_rs::Array;

use crate::arrays;
use crate::error::{BridgeError, check};
use crate::ffi::{self, Span};

/// Points what depends on `inputs` to one of several equal nodes: of the same primitive, state, inputs and stream. Gives
/// the outputs and the number of nodes that are no longer needed.
///
/// Nobody else may hold what depends on `inputs`. What does not is compared as well, but stays as it is.
pub fn cse(outputs: &[Array], inputs: &[Array]) -> Result<(Vec<Array>, usize), BridgeError> {
    let (outputs, inputs) = (arrays::handles(outputs), arrays::handles(inputs));
    let mut removed = 0;
    // SAFETY: everything is live for the call.
    let merged = arrays::collected(|sink| unsafe {
        ffi::tacit_cse(Span::new(&outputs), Span::new(&inputs), sink, &raw mut removed)
    })?;
    Ok((merged, removed))
}

/// Whether a collective is among what `array` is computed from.
pub fn comes_of_collective(array: &Array) -> Result<bool, BridgeError> {
    // SAFETY: the handle and the flag are live for the call.
    arrays::written(false, |comes| unsafe { ffi::tacit_comes_of_collective(array.as_ptr(), comes) })
}

/// The number in a constant of one element: no primitive makes it, and its data is there. `None` for every other array, and
/// for one of another dtype than `bool`, 32-bit integers and floats of up to 32 bits.
pub fn scalar_value(array: &Array) -> Result<Option<f64>, BridgeError> {
    let (mut value, mut known) = (0.0, false);
    // SAFETY: the handle and both pointers are live for the call.
    check(unsafe { ffi::tacit_scalar_value(array.as_ptr(), &raw mut value, &raw mut known) })?;
    Ok(known.then_some(value))
}

/// Whether a primitive makes `array` on the CPU, on the stream on which [`kernel::apply`](crate::kernel::apply) would put a
/// kernel now.
///
/// # Errors
///
/// There is no such stream on this thread.
pub fn runs_here(array: &Array) -> Result<bool, BridgeError> {
    arrays::with_stream(|chosen| {
        // SAFETY: both handles and the flag are live for the call.
        arrays::written(false, |runs| unsafe { ffi::tacit_runs_on(array.as_ptr(), chosen, runs) })
    })
}
