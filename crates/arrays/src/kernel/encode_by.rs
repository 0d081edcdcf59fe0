//! Floats to codes by given scales.

use mlx_rs::{Array, Dtype, stop_gradient};
use tacit_core::kernel::{GpuBackend, Input, Kernel, Launch, Mapped, Output, Pieces, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::BlockScales;

use super::encode::{self, blocks, coded};
use super::host::{Fallible, int, single};
use super::layout::scalar;
use super::pieces::{Unit, counted};
use super::quantize::one_by_one;
use super::{Scheme, gpu};

/// Codes `x: f32` of any shape, in blocks, by what each block stores: its scale, then its bias or the factor that NVFP4's
/// scales are relative to, as the kernel that quantizes makes and takes them. They have no gradient. Elements that are not finite are
/// refused as [`quantize`](super::quantize()) refuses them.
pub(crate) fn encode_by(scheme: Scheme, block: usize, x: &Array, stored: &[Array]) -> Result<Array> {
    let inputs: Vec<Array> =
        std::iter::once(x).chain(stored).map(stop_gradient).collect::<std::result::Result<_, _>>()?;
    Ok(stop_gradient(single(apply(EncodeBy { scheme, block }, &inputs)?)?)?)
}

/// What blocks store, as the encoders take it.
pub(super) fn scales_of<'a>(
    scales: &'a Input<'_>,
    more: &'a [Input<'_>],
) -> Fallible<BlockScales<&'a [f32], &'a [u8]>> {
    Ok(match more {
        _ if scales.aval().dtype == Dtype::Uint8 => BlockScales::Bytes(scales.elements()?),
        [biases] => BlockScales::Biased(scales.elements()?, biases.elements()?),
        _ => BlockScales::Floats(scales.elements()?),
    })
}

pub(super) struct EncodeBy {
    pub(super) scheme: Scheme,
    pub(super) block: usize,
}

impl Kernel for EncodeBy {
    fn name(&self) -> &'static str {
        self.scheme.kernel("EncodeBy")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some([("block", int(self.block))].into_iter().chain(self.scheme.params()).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&self.scheme.children(&inputs[0].shape, self.block).0, self.scheme.storage)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let ([x, scales, more @ ..], [codes]) = (inputs, outputs) else {
            return Err("an array and its scales are expected".into());
        };
        let global = if self.scheme.is_relative() { more.first().map(scalar).transpose()? } else { None };
        let encoder = self.scheme.encoder(self.block, global)?.ok_or("half floats have no scales")?;
        Ok(encoder.with_block(self.block).quantize_by(x.elements()?, scales_of(scales, more)?, codes.bytes())?)
    }

    /// None where the scales are relative to all elements.
    fn pieces(&self, inputs: &[Aval]) -> Option<Pieces> {
        let (scheme, [x, scales @ ..]) = (self.scheme, inputs) else { return None };
        let unit = Unit::new(&scheme, self.block).filter(|_| !scheme.is_relative())?;
        let encoder = scheme.encoder(self.block, None).ok()??.with_block(self.block);
        let scales = scales.iter().map(|scales| Some(unit.numbers(scales)));
        Some(Pieces {
            elements: x.size(),
            unit: unit.elements,
            inputs: std::iter::once(Some(unit.element_bytes(x))).chain(scales).collect(),
            outputs: vec![unit.codes],
            eval: Box::new(move |piece, inputs, outputs| {
                let scales = scales_of(&inputs[1], &inputs[2..])?;
                counted(piece.start, encoder.quantize_by(inputs[0].elements()?, scales, outputs[0].bytes()))
            }),
        })
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::encode_by(&self.scheme, self.block, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let (x, block) = (&inputs[0], self.block);
        let (stored, global) =
            if self.scheme.is_relative() { (&inputs[1..2], inputs.get(2)) } else { (&inputs[1..], None) };
        let stored = stored.iter().map(|stored| stored.reshape(&[-1, 1])).collect::<Result<Vec<_>, _>>()?;
        let codes = coded(&self.scheme, &blocks(x, block)?, &stored, global)?;
        let (shape, _) = self.scheme.children(x.shape(), block);
        Ok(vec![encode::packed(&codes, &self.scheme, x.size())?.reshape(&shape)?])
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        Some(one_by_one(|| Self { scheme: self.scheme, block: self.block }, inputs, axes))
    }
}
