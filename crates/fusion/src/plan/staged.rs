//! Kernels that only plans have.

use std::sync::Arc;

use mlx_rs::Array;
use tacit_core::Aval;
use tacit_core::kernel::{Input, Kernel, Output};

/// What a kernel answers where it cannot go on.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a primitive of MLX computes, with one result.
pub(super) trait Stage: Send + Sync + 'static {
    /// Writes the result, or, of an update, the part of it that changes.
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError>;
}

/// The kernel of a stage for the primitive of this name, whose result is of this aval.
pub(super) fn staged(name: &'static str, stage: impl Stage, result: &Aval) -> Arc<dyn Kernel> {
    Arc::new(Staged { name, stage, result: result.clone() })
}

struct Staged<S> {
    name: &'static str,
    stage: S,
    result: Aval,
}

impl<S: Stage> Kernel for Staged<S> {
    fn name(&self) -> &'static str {
        self.name
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

/// Calls a method of a stage for the type of its elements: floats, or integers of 32 bits.
macro_rules! of_numbers {
    ($dtype:expr, $stage:ident.$of:ident($($argument:expr),*)) => {
        match $dtype {
            mlx_rs::Dtype::Float32 => $stage.$of::<f32>($($argument),*),
            mlx_rs::Dtype::Float16 => $stage.$of::<half::f16>($($argument),*),
            mlx_rs::Dtype::Bfloat16 => $stage.$of::<half::bf16>($($argument),*),
            mlx_rs::Dtype::Int32 => $stage.$of::<i32>($($argument),*),
            _ => $stage.$of::<u32>($($argument),*),
        }
    };
}
pub(super) use of_numbers;
