//! What a graph needs before MLX differentiates it, and afterwards.

use mlx_rs::Array;

use crate::arrays::{self, Collector};
use crate::error::{BridgeError, check};
use crate::ffi;
use crate::program::in_transform;

/// Rewrites what MLX differentiates wrongly between `inputs` and `outputs`, in place, to ops that it does rightly: a pad, which
/// has no derivative by its value and whose gradient mistakes axes that are not all; an assignment by mask that was mapped.
///
/// # Errors
///
/// MLX has no memory left.
pub fn make_differentiable(outputs: &[Array], inputs: &[Array]) -> Result<(), BridgeError> {
    rewrite(outputs, inputs, false)
}

/// [`make_differentiable`] where tangents are asked for: those of `addmm` lack its factors.
///
/// # Errors
///
/// MLX has no memory left.
pub fn make_forward_differentiable(outputs: &[Array], inputs: &[Array]) -> Result<(), BridgeError> {
    rewrite(outputs, inputs, true)
}

fn rewrite(outputs: &[Array], inputs: &[Array], forward: bool) -> Result<(), BridgeError> {
    let (outputs, inputs) = (arrays::handles(outputs), arrays::handles(inputs));
    let (output_count, input_count) = (outputs.len(), inputs.len());
    // SAFETY: the handles are live for the call.
    check(unsafe {
        ffi::tacit_make_differentiable(outputs.as_ptr(), output_count, inputs.as_ptr(), input_count, forward)
    })
}

/// Results of a function that MLX is to differentiate, each an array of its own: one that is there already, or that a
/// `stop_gradient` made, becomes a copy, which is only a node.
///
/// MLX's vjp counts one array once and passes over a `stop_gradient`, so that cotangents go to the wrong results.
///
/// # Errors
///
/// MLX has no memory left.
// By value, so that none of the old arrays is used beside the new ones.
#[allow(clippy::needless_pass_by_value)]
pub fn distinct(results: Vec<Array>) -> Result<Vec<Array>, BridgeError> {
    let handles = arrays::handles(&results);
    let mut found = Collector::default();
    // SAFETY: everything is live for the call.
    check(unsafe { ffi::tacit_distinct(handles.as_ptr(), handles.len(), found.sink()) })?;
    Ok(found.arrays)
}

/// The tracers of the transforms around one.
///
/// MLX's vjp and jvp take the mark of a tracer from all that their results reach. What is computed of a tracer of an outer
/// transform afterwards would count as a constant there: an eval lets its graph go, and a function that captures it is compiled.
#[derive(Default)]
pub struct OuterTracers {
    tracers: Vec<Array>,
    /// What reaches them.
    results: Vec<Array>,
}

impl OuterTracers {
    /// Those that `results` reach, of a function of the tracers `inputs`. To be asked inside the function.
    ///
    /// # Errors
    ///
    /// MLX has no memory left.
    pub fn of(results: &[Array], inputs: &[Array]) -> Result<Self, BridgeError> {
        let (outputs, inputs) = (arrays::handles(results), arrays::handles(inputs));
        let mut found = Collector::default();
        // SAFETY: everything is live for the call.
        check(unsafe {
            ffi::tacit_outer_tracers(outputs.as_ptr(), outputs.len(), inputs.as_ptr(), inputs.len(), found.sink())
        })?;
        Ok(Self { tracers: found.arrays, results: results.to_vec() })
    }

    /// Marks them again, with what depends on them among the results of the function and these `derivatives` of it.
    ///
    /// # Errors
    ///
    /// MLX has no memory left.
    pub fn mark(mut self, derivatives: &[Array]) -> Result<(), BridgeError> {
        if self.tracers.is_empty() || !in_transform() {
            return Ok(());
        }
        self.results.extend_from_slice(derivatives);
        let (outputs, tracers) = (arrays::handles(&self.results), arrays::handles(&self.tracers));
        // SAFETY: the handles are live for the call.
        check(unsafe { ffi::tacit_mark_tracers(outputs.as_ptr(), outputs.len(), tracers.as_ptr(), tracers.len()) })
    }
}
