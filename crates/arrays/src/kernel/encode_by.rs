//! Floats to codes, by scales that are there already.

use mlx_rs::{Array, stop_gradient};
use tacit_core::kernel::{Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::nearest::Table;
use tacit_kernels::{affine, binary, fp4, int8, mxfp4, mxfp8, nf4, nvfp4, ternary};

use super::encode::{self, blocks, coded};
use super::host::{Fallible, int, single};
use super::layout::scalar;
use super::quantize::one_by_one;
use super::{Encoding, Scheme};

/// Codes `x: f32` of any shape, in blocks, by what each block stores: its scale, then its bias or the factor that NVFP4's
/// scales are relative to, as the kernel that quantizes makes and takes them. They have no gradient.
///
/// # Errors
///
/// When it runs: an element is NaN or infinite.
pub(crate) fn encode_by(scheme: Scheme, block: usize, x: &Array, stored: &[Array]) -> Result<Array> {
    let inputs: Vec<Array> =
        std::iter::once(x).chain(stored).map(stop_gradient).collect::<std::result::Result<_, _>>()?;
    Ok(stop_gradient(single(apply(EncodeBy { scheme, block }, &inputs)?)?)?)
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
        let k = x.aval().shape.last().map_or(1, |&last| last as usize);
        let (x, block) = (x.elements::<f32>()?, self.block);
        match self.scheme.encoding {
            Encoding::Nearest => {
                let table = Table::new(self.scheme.table().ok_or("the codes are looked up in no table")?)?;
                table.quantize_by(x, block, scales.elements()?, codes.bytes())?;
            }
            Encoding::Nf4 => nf4::quantize_by(x, block, scales.elements()?, codes.bytes())?,
            Encoding::Fp4 => fp4::quantize_by(x, block, scales.elements()?, codes.bytes())?,
            Encoding::Affine => {
                let [biases] = more else { return Err("scales and biases are expected".into()) };
                let bits = self.scheme.bits() as u32;
                affine::quantize_by(x, k, block, bits, scales.elements()?, biases.elements()?, codes.bytes())?;
            }
            Encoding::Int8 => int8::quantize_by(x, block, scales.elements()?, codes.elements()?)?,
            Encoding::Mxfp4(_) => mxfp4::quantize_by(x, scales.elements()?, codes.bytes())?,
            Encoding::Mxfp8(_) => mxfp8::quantize_by(x, scales.elements()?, codes.bytes())?,
            Encoding::Nvfp4 { .. } => {
                let global = more.first().map(scalar).transpose()?;
                nvfp4::quantize_by(x, global, scales.elements()?, codes.bytes())?;
            }
            Encoding::Ternary => ternary::quantize_by(x, block, scales.elements()?, codes.bytes())?,
            Encoding::Binary => binary::quantize_by(x, block, scales.elements()?, codes.bytes())?,
            Encoding::Rounded => return Err("half floats have no scales".into()),
        }
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let (x, block) = (&inputs[0], self.block);
        let relative = matches!(self.scheme.encoding, Encoding::Nvfp4 { .. });
        let (stored, global) = if relative { (&inputs[1..2], inputs.get(2)) } else { (&inputs[1..], None) };
        let stored = stored.iter().map(|stored| stored.reshape(&[-1, 1])).collect::<Result<Vec<_>, _>>()?;
        let codes = coded(&self.scheme, &blocks(x, block)?, &stored, global)?;
        let (shape, _) = self.scheme.children(x.shape(), block);
        Ok(vec![encode::packed(&codes, &self.scheme, x.size())?.reshape(&shape)?])
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        Some(one_by_one(|| Self { scheme: self.scheme, block: self.block }, inputs, axes))
    }
}
