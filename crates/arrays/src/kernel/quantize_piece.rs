//! Floats of a part of an array to codes and scales.

use mlx_rs::Array;
use tacit_core::kernel::{GpuBackend, Input, Kernel, Launch, Output, apply};
use tacit_core::{Aval, Param, Result};

use super::Scheme;
use super::coded::Coded;
use super::host::{Fallible, int};
use super::layout::scalar;
use super::pieces::counted;
use super::quantize::Quantize;

/// Codes whole blocks of an array as [`quantize`](super::quantize()) does, of which an error names an element by its place in the
/// array: `before` others come before the first.
///
/// # Errors
///
/// As for [`quantize`](super::quantize()).
pub(crate) fn quantize_piece(scheme: Scheme, block: usize, before: usize, inputs: &[Array]) -> Result<Vec<Array>> {
    apply(QuantizePiece { piece: Quantize { scheme, block }, before }, inputs)
}

struct QuantizePiece {
    piece: Quantize,
    before: usize,
}

impl Kernel for QuantizePiece {
    fn name(&self) -> &'static str {
        self.piece.name()
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let params = self.piece.params()?;
        Some(params.into_iter().chain([("before", int(self.before))]).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        self.piece.output_avals(inputs)
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let Quantize { scheme, block } = self.piece;
        let global = inputs.get(1).map(scalar).transpose()?;
        counted(self.before, Coded::new(outputs)?.quantize(&scheme, block, inputs[0].elements()?, global))
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        self.piece.launch(inputs, backend)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        self.piece.decompose(inputs)
    }
}
