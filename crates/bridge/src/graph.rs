//! Questions about a recorded graph.

use std::ffi::c_int;

use mlx_rs::Array;

use crate::arrays;
use crate::error::BridgeError;
use crate::ffi::{self, Arrays, Sink, Span};

/// Whether `array` depends on one that has neither data nor a primitive, a placeholder or a tracer of MLX's: an eval
/// would fail.
#[must_use]
pub fn is_traced(array: &Array) -> bool {
    // SAFETY: the handle and the flag are live for the call.
    arrays::written(true, |traced| unsafe { ffi::tacit_is_traced(array.as_ptr(), traced) }).unwrap_or(true)
}

/// What `array` is a broadcast of: the operand of the broadcasts that give it, and itself where none does.
///
/// MLX broadcasts the operands of an op before it records the op, so this is how a handler finds the scalar that its
/// caller wrote.
pub fn broadcast_source(array: &Array) -> Result<Array, BridgeError> {
    // SAFETY: the handle is live for the call, which stores a new reference.
    arrays::filled(|out| unsafe { ffi::tacit_broadcast_source(array.as_ptr(), out) })
}

/// What `array` is a reshape of: the operand of the reshapes that give it, and itself where none does.
///
/// MLX flattens the rows of a product before it records the product, so this is how two products are known to read one array.
pub fn reshape_source(array: &Array) -> Result<Array, BridgeError> {
    // SAFETY: the handle is live for the call, which stores a new reference.
    arrays::filled(|out| unsafe { ffi::tacit_reshape_source(array.as_ptr(), out) })
}

/// The reshapes from the [`reshape_source`] of `array` to it, applied to another array of the same aval as that source.
///
/// # Errors
///
/// `source` has another shape or dtype.
pub fn reshaped_again(array: &Array, source: &Array) -> Result<Array, BridgeError> {
    // SAFETY: the handles are live for the call, which stores a new reference.
    arrays::filled(|out| unsafe { ffi::tacit_reshaped_again(array.as_ptr(), source.as_ptr(), out) })
}

/// The arrays with data and more than one element that `outputs` depend on and that are not among `inputs`, each once.
pub fn constants(outputs: &[Array], inputs: &[Array]) -> Result<Vec<Array>, BridgeError> {
    ask(ffi::tacit_constants, outputs, inputs)
}

/// The arrays that do not depend on `inputs` and go into something that does, or are outputs: what a function that was
/// recorded on `inputs` holds without having got it, each once.
pub fn frontier(outputs: &[Array], inputs: &[Array]) -> Result<Vec<Array>, BridgeError> {
    ask(ffi::tacit_frontier, outputs, inputs)
}

/// The arrays that do not depend on `inputs`, go into the graph of `outputs` and are held by somebody besides its nodes, each
/// once: those that a function which was recorded captured, and not its own intermediate results.
pub fn held_elsewhere(outputs: &[Array], inputs: &[Array]) -> Result<Vec<Array>, BridgeError> {
    ask(ffi::tacit_held_elsewhere, outputs, inputs)
}

/// The arrays of `inputs` that `outputs` are or depend on, each once; what an input itself depends on is not looked at.
pub fn reached(outputs: &[Array], inputs: &[Array]) -> Result<Vec<Array>, BridgeError> {
    ask(ffi::tacit_reached, outputs, inputs)
}

/// How many handles there are on `array`: this one, others that share it, and those of the nodes that take it.
pub fn holders(array: &Array) -> Result<usize, BridgeError> {
    // SAFETY: the handle and the number are live for the call.
    arrays::written(0, |count| unsafe { ffi::tacit_holders(array.as_ptr(), count) })
}

type Question = unsafe extern "C" fn(Arrays, Arrays, Sink) -> c_int;

fn ask(question: Question, outputs: &[Array], inputs: &[Array]) -> Result<Vec<Array>, BridgeError> {
    let (outputs, inputs) = (arrays::handles(outputs), arrays::handles(inputs));
    // SAFETY: everything is live for the call.
    arrays::collected(|sink| unsafe { question(Span::new(&outputs), Span::new(&inputs), sink) })
}
