//! Kernels that only plans have.

use std::sync::Arc;

use mlx_rs::Array;
use tacit_core::Aval;
use tacit_core::kernel::{Input, Kernel, Output};

/// What a kernel answers where it cannot go on.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What MLX's primitive of a name computes, with one result.
pub(super) trait Stage: Send + Sync + 'static {
    /// The name of the primitive.
    fn name(&self) -> &'static str;

    /// Writes the result, or, of an update, the part of it that changes.
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError>;
}

/// The kernel of a stage whose result is of this aval.
pub(super) fn staged(stage: impl Stage, result: &Aval) -> Arc<dyn Kernel> {
    Arc::new(Staged { stage, result: result.clone() })
}

struct Staged<S> {
    stage: S,
    result: Aval,
}

impl<S: Stage> Kernel for Staged<S> {
    fn name(&self) -> &'static str {
        self.stage.name()
    }

    fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![self.result.clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        self.stage.compute(inputs, &mut outputs[0])
    }

    /// Stages are made by the pass, and nothing transforms or maps a graph after it.
    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err("a stage of a plan has no derivative\nhelp: differentiate the function before it is compiled".into())
    }
}
