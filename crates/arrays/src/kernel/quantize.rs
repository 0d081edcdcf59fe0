//! Floats to codes and scales.

use mlx_rs::ops::{self, indexing::TryIndexOp};
use mlx_rs::{Array, Dtype, stop_gradient};
use tacit_core::kernel::{Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param};
use tacit_kernels::{ScaleRule, affine, binary, dynamic8, fp4, int8, mxfp4, mxfp8, nf4, nvfp4, ternary};

use super::encode::{self, encoded};
use super::format::scalar;
use super::{Fallible, Format, int};

/// How a block of floats is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As [`Format::NF4`].
    Nf4,
    /// As [`Format::FP4`].
    Fp4,
    /// bitsandbytes' 8-bit dynamic floats, about their mean: codes, scales and the mean.
    Dynamic8,
    /// As [`Format::affine`], of this many bits: codes, scales and biases.
    Affine(u32),
    /// As [`Format::INT8`].
    Int8,
    /// As [`Format::MXFP4`].
    Mxfp4(ScaleRule),
    /// As [`Format::MXFP8`].
    Mxfp8(ScaleRule),
    /// As [`Format::NVFP4`]; a second input is the global scale.
    Nvfp4,
    /// As [`Format::TERNARY`].
    Ternary,
    /// As [`Format::BINARY`].
    Binary,
}

/// Codes the first of `inputs`, `f32` of any shape, in blocks: codes, scales, and what else the encoding has.
///
/// Gradients reach the scales.
///
/// # Errors
///
/// When it runs: an element is NaN or infinite.
pub fn quantize<const N: usize>(encoding: Encoding, block: usize, inputs: &[Array]) -> tacit_core::Result<[Array; N]> {
    let mut made = apply(Quantize { encoding, block }, inputs)?;
    made[0] = stop_gradient(&made[0])?;
    Ok(made.try_into().unwrap_or_else(|made: Vec<Array>| unreachable!("the kernel declares {} results", made.len())))
}

pub(super) struct Quantize {
    pub(super) encoding: Encoding,
    pub(super) block: usize,
}

impl Encoding {
    /// The format of the codes; `Dynamic8` has none of its own.
    pub(super) fn format(self) -> Option<Format> {
        Some(match self {
            Self::Nf4 => Format::NF4,
            Self::Fp4 => Format::FP4,
            Self::Dynamic8 => return None,
            Self::Affine(bits) => Format::affine(bits),
            Self::Int8 => Format::INT8,
            Self::Mxfp4(_) => Format::MXFP4,
            Self::Mxfp8(_) => Format::MXFP8,
            Self::Nvfp4 => Format::NVFP4,
            Self::Ternary => Format::TERNARY,
            Self::Binary => Format::BINARY,
        })
    }
}

impl Kernel for Quantize {
    fn name(&self) -> &'static str {
        match self.encoding {
            Encoding::Nf4 => "Nf4Quantize",
            Encoding::Fp4 => "Fp4Quantize",
            Encoding::Dynamic8 => "Dynamic8Quantize",
            Encoding::Affine(_) => "AffineQuantize",
            Encoding::Int8 => "Int8Quantize",
            Encoding::Mxfp4(_) => "Mxfp4Quantize",
            Encoding::Mxfp8(_) => "Mxfp8Quantize",
            Encoding::Nvfp4 => "Nvfp4Quantize",
            Encoding::Ternary => "TernaryQuantize",
            Encoding::Binary => "BinaryQuantize",
        }
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let detail = match self.encoding {
            Encoding::Affine(bits) => int(bits as usize),
            Encoding::Mxfp4(rule) | Encoding::Mxfp8(rule) => Param::Str(format!("{rule:?}")),
            _ => Param::None,
        };
        Some(vec![("block", int(self.block)), ("detail", detail)])
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let Some(format) = self.encoding.format() else {
            let size = inputs[0].size();
            return Ok(vec![
                Aval::new(&[size as i32], Dtype::Uint8),
                Aval::new(&[size.div_ceil(self.block) as i32], Dtype::Float32),
                Aval::new(&[], Dtype::Float32),
            ]);
        };
        let (codes, scales) = format.children(&inputs[0].shape, self.block);
        let bytes = matches!(self.encoding, Encoding::Mxfp4(_) | Encoding::Mxfp8(_) | Encoding::Nvfp4);
        let scales = Aval::new(&scales, if bytes { Dtype::Uint8 } else { Dtype::Float32 });
        let mut avals = vec![Aval::new(&codes, format.storage), scales.clone()];
        avals.extend(matches!(self.encoding, Encoding::Affine(_)).then_some(scales));
        Ok(avals)
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let (x, block) = (inputs[0].elements::<f32>()?, self.block);
        let k = inputs[0].aval().shape.last().map_or(1, |&last| last as usize);
        let [codes, scales, more @ ..] = outputs else { return Err("codes and scales are expected".into()) };
        match (self.encoding, more) {
            (Encoding::Nf4, _) => nf4::quantize(x, block, codes.bytes(), scales.elements()?)?,
            (Encoding::Fp4, _) => fp4::quantize(x, block, codes.bytes(), scales.elements()?)?,
            (Encoding::Dynamic8, [offset]) => {
                let mean = dynamic8::offset(x);
                let centered: Vec<f32> = x.iter().map(|x| x - mean).collect();
                dynamic8::quantize(&centered, block, codes.bytes(), scales.elements()?)?;
                offset.elements()?.fill(mean);
            }
            (Encoding::Affine(bits), [biases]) => {
                affine::quantize(x, k, block, bits, codes.bytes(), scales.elements()?, biases.elements()?)?;
            }
            (Encoding::Dynamic8 | Encoding::Affine(_), _) => return Err("three outputs are expected".into()),
            (Encoding::Int8, _) => int8::quantize(x, block, codes.elements()?, scales.elements()?)?,
            (Encoding::Mxfp4(rule), _) => mxfp4::quantize(x, rule, codes.bytes(), scales.elements()?)?,
            (Encoding::Mxfp8(rule), _) => mxfp8::quantize(x, rule, codes.bytes(), scales.elements()?)?,
            (Encoding::Nvfp4, _) => {
                let global = inputs.get(1).map(scalar).transpose()?;
                nvfp4::quantize(x, global, codes.bytes(), scales.elements()?)?;
            }
            (Encoding::Ternary, _) => ternary::quantize(x, block, codes.bytes(), scales.elements()?)?,
            (Encoding::Binary, _) => binary::quantize(x, block, codes.bytes(), scales.elements()?)?,
        }
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let (x, block) = (&inputs[0], self.block);
        let Some(format) = self.encoding.format() else { return Ok(encode::dynamic8(x, block)?) };
        let mut made = encoded(self.encoding, x, block, inputs.get(1))?;
        let (codes, scales) = format.children(x.shape(), block);
        made[0] = encode::packed(&made[0], format, x.size())?.reshape(&codes)?;
        for made in &mut made[1..] {
            *made = made.reshape(&scales)?;
        }
        Ok(made)
    }

    /// The codes of the kernel itself, which refuses what the decomposition codes: all examples at once where their blocks
    /// lie one after the other, and otherwise one by one.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        Some(self.mapped(inputs, axes))
    }
}

impl Quantize {
    fn mapped(&self, inputs: &[Array], axes: &[Option<usize>]) -> Fallible<Mapped> {
        let again = || Self { encoding: self.encoding, block: self.block };
        let count = inputs.iter().zip(axes).find_map(|(input, axis)| axis.map(|axis| input.dim(axis as i32)));
        let count = count.ok_or("no input is mapped")?;
        let front = inputs
            .iter()
            .zip(axes)
            .map(|(input, axis)| axis.map_or_else(|| Ok(input.clone()), |axis| input.move_axis(axis as i32, 0)))
            .collect::<Result<Vec<_>, _>>()?;
        let of_example = |input: usize, example: i32| match axes[input] {
            Some(_) => front[input].try_index(example),
            None => Ok(front[input].clone()),
        };
        if let (Some(format), [x], true) = (self.encoding.format(), &front[..], count > 0) {
            let example = &x.shape()[1..];
            let size: usize = example.iter().map(|&extent| extent as usize).product();
            let aligned = size.is_multiple_of(self.block) && (size * format.bits()).is_multiple_of(8);
            if format.is_grouped() || aligned {
                let (codes, scales) = format.children(example, self.block);
                let mut made = apply(again(), std::slice::from_ref(x))?;
                for (place, made) in made.iter_mut().enumerate() {
                    let shape = if place == 0 { &codes } else { &scales };
                    *made = made.reshape(&[&[count], &shape[..]].concat())?;
                }
                return Ok(with_axes(made));
            }
        }
        let examples = (0..count)
            .map(|example| {
                let inputs =
                    (0..inputs.len()).map(|input| of_example(input, example)).collect::<Result<Vec<_>, _>>()?;
                Ok(apply(again(), &inputs)?)
            })
            .collect::<Fallible<Vec<_>>>()?;
        let results = examples.first().ok_or("there are no examples")?.len();
        let stacked = |result: usize| {
            let all: Vec<&Array> = examples.iter().map(|made| &made[result]).collect();
            ops::stack(&all, 0)
        };
        Ok(with_axes((0..results).map(stacked).collect::<Result<_, _>>()?))
    }
}

/// Results whose mapped axis is the first.
fn with_axes(results: Vec<Array>) -> Mapped {
    let axes = vec![0; results.len()];
    (results, axes)
}
