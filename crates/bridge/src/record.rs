//! The graph of a function as a shapeless compile records it.

use mlx_rs::Array;

use crate::arrays::{self, Collector};
use crate::error::{BoxError, BridgeError, check};
use crate::ffi;
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
pub fn record_shapeless(
    inputs: &[&Array],
    function: &mut dyn FnMut(Vec<Array>) -> Result<Vec<Array>, BoxError>,
) -> Result<(Vec<Array>, Vec<Array>), BridgeError> {
    let handles = arrays::handles(inputs.iter().copied());
    let mut function = Borrowed::new(function);
    let (mut tracers, mut outputs) = (Collector::default(), Collector::default());
    // SAFETY: everything is live for the call.
    check(unsafe {
        ffi::tacit_record_shapeless(handles.as_ptr(), handles.len(), function.table(), tracers.sink(), outputs.sink())
    })?;
    Ok((tracers.arrays, outputs.arrays))
}
