//! A node that fails when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_rs::Array;
use tacit_core::Aval;
use tacit_core::kernel::{Input, Kernel, Output};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A copy of each input that fails while the wire is set.
pub(crate) struct Tripwire(pub(crate) Arc<AtomicBool>);

impl Kernel for Tripwire {
    fn name(&self) -> &'static str {
        "ConformanceTripwire"
    }

    fn output_avals(&self, inputs: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        if self.0.load(Ordering::Relaxed) {
            return Err("it fails by design".into());
        }
        for (input, output) in inputs.iter().zip(outputs) {
            output.bytes().copy_from_slice(input.bytes());
        }
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(inputs.to_vec())
    }
}
