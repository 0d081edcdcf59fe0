//! The graph of a function, recorded without being compiled.

use mlx_rs::Array;

use crate::arrays::{self, sink_into, written};
use crate::error::{BoxError, BridgeError};
use crate::ffi::{self, Span};
use crate::function::Borrowed;

/// Records `function` on tracers of the inputs' avals, as a shapeless compile does: MLX then says in the graph that an
/// extent is to be worked out, where it would otherwise write it down. Gives the tracers and what the function returned.
///
/// Where MLX does not compile, extents are written down, and [`Program::is_shapeless`](crate::Program::is_shapeless) is
/// false.
///
/// # Errors
///
/// `function` fails or panics.
pub fn record_shapeless(inputs: &[&Array], function: &mut Recordable<'_>) -> Result<Recording, BridgeError> {
    recording(inputs, true, function)
}

/// Records `function` on tracers of the inputs' avals: the tracers and what the function returned.
///
/// # Errors
///
/// `function` fails or panics.
pub fn record(inputs: &[&Array], function: &mut Recordable<'_>) -> Result<Recording, BridgeError> {
    recording(inputs, false, function)
}

/// The number of elements of `a` along `axes`, as an `i32` that a graph without shapes works out each time it runs; `None`
/// where MLX records shapes, and the number is known.
///
/// # Errors
///
/// `a` has no such axis.
pub fn extent(a: &Array, axes: &[i32]) -> Result<Option<Array>, BridgeError> {
    // SAFETY: the array and the slice are live for the call.
    arrays::optional(|out| unsafe { ffi::tacit_extent(a.as_ptr(), Span::new(axes), out) })
}

/// Whether every node that makes `result` of `from` has a rule for the shapes of its results, as a graph without shapes needs
/// it; where MLX records shapes, nobody asks for one.
pub fn has_shape_rules(result: &Array, from: &Array) -> Result<bool, BridgeError> {
    // SAFETY: the handles and the flag are live for the call.
    written(true, |has| unsafe { ffi::tacit_has_shape_rules(result.as_ptr(), from.as_ptr(), has) })
}

type Recordable<'f> = dyn FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError> + 'f;

/// Tracers, and what a function returned for them.
type Recording = (Vec<Array>, Vec<Array>);

fn recording(inputs: &[&Array], shapeless: bool, function: &mut Recordable<'_>) -> Result<Recording, BridgeError> {
    let handles = arrays::handles(inputs.iter().copied());
    let mut function = Borrowed::new(function);
    let mut tracers = Vec::new();
    // SAFETY: everything is live for the call.
    let outputs = arrays::collected(|outputs| unsafe {
        ffi::tacit_record(Span::new(&handles), shapeless, function.table(), sink_into(&mut tracers), outputs)
    })?;
    Ok((tracers, outputs))
}
