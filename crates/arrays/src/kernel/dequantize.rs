//! All values of a stored matrix.

use mlx_rs::{Array, Dtype};
use tacit_core::kernel::{GpuBackend, Input, Kernel, Launch, Output, Pieces, apply};
use tacit_core::{Aval, Param, Result};

use super::host::{Fallible, floats_mut, single};
use super::pieces::Unit;
use super::{Layout, gpu};

/// The values of a matrix as `dtype[n, k]`, rounded once.
///
/// # Errors
///
/// When it runs: the lengths of the children do not fit.
pub fn dequantize(layout: Layout, children: &[Array], dtype: Dtype) -> Result<Array> {
    single(apply(Dequantize { layout, dtype }, children)?)
}

pub(super) struct Dequantize {
    pub(super) layout: Layout,
    pub(super) dtype: Dtype,
}

impl Kernel for Dequantize {
    fn name(&self) -> &'static str {
        self.layout.scheme.kernel("Dequantize")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(self.layout.params().into_iter().chain([("dtype", Param::Dtype(self.dtype))]).collect())
    }

    fn output_avals(&self, _: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&[self.layout.n as i32, self.layout.k as i32], self.dtype)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        Ok(tacit_kernels::dequantize(&self.layout.matrix(inputs)?, floats_mut(&mut outputs[0])?)?)
    }

    fn pieces(&self, inputs: &[Aval]) -> Option<Pieces> {
        let Self { layout, dtype } = *self;
        let unit = Unit::new(&layout.scheme, layout.block)?;
        Some(Pieces {
            elements: layout.n * layout.k,
            unit: unit.elements,
            inputs: unit.children(&layout, inputs)?,
            outputs: vec![unit.element_bytes(&Aval::new(&[], dtype))],
            eval: Box::new(move |piece, inputs, outputs| {
                Self { layout: layout.of_piece(piece.len()), dtype }.eval_cpu(inputs, outputs)
            }),
        })
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::dequantize(&self.layout, inputs, self.dtype, backend.into()).map(gpu::Parts::launch)
    }

    /// The dense array is what was asked for, so that its fallback asks nobody.
    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        Ok(vec![self.layout.decoded(inputs)?.as_dtype(self.dtype)?])
    }
}
