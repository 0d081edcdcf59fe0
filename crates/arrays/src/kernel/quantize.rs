//! Floats to codes and scales.

use mlx_rs::ops::{self, indexing::TryIndexOp};
use mlx_rs::{Array, Dtype, stop_gradient};
use tacit_core::kernel::{Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param};
use tacit_kernels::{affine, binary, fp4, int8, mxfp4, mxfp8, nearest::Table, nf4, nvfp4, ternary};

use super::encode::{self, encoded};
use super::layout::scalar;
use super::{Encoding, Fallible, Scaling, Scheme, int};

/// Codes the first of `inputs`, `f32` of any shape, in blocks: codes, scales, and biases if the format has them.
///
/// A second input is the largest magnitude that NVFP4's scales are relative to. Gradients reach the scales.
///
/// # Errors
///
/// When it runs: an element is NaN or infinite.
pub fn quantize(scheme: Scheme, block: usize, inputs: &[Array]) -> tacit_core::Result<Vec<Array>> {
    let mut made = apply(Quantize { scheme, block }, inputs)?;
    made[0] = stop_gradient(&made[0])?;
    Ok(made)
}

pub(super) struct Quantize {
    pub(super) scheme: Scheme,
    pub(super) block: usize,
}

impl Kernel for Quantize {
    fn name(&self) -> &'static str {
        self.scheme.kernel("Quantize")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some([("block", int(self.block))].into_iter().chain(self.scheme.params()).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let Scheme { scaling, biased, storage, .. } = self.scheme;
        let (codes, scales) = self.scheme.children(&inputs[0].shape, self.block);
        let bytes = matches!(scaling, Scaling::E8m0 | Scaling::E4m3);
        let scales = Aval::new(&scales, if bytes { Dtype::Uint8 } else { Dtype::Float32 });
        let mut avals = vec![Aval::new(&codes, storage), scales.clone()];
        avals.extend(biased.then_some(scales));
        Ok(avals)
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let (x, block) = (inputs[0].elements::<f32>()?, self.block);
        let k = inputs[0].aval().shape.last().map_or(1, |&last| last as usize);
        let [codes, scales, more @ ..] = outputs else { return Err("codes and scales are expected".into()) };
        match self.scheme.encoding {
            Encoding::Nearest => {
                let table = Table::new(self.scheme.table().ok_or("the codes are looked up in no table")?)?;
                table.quantize(x, block, codes.bytes(), scales.elements()?)?;
            }
            Encoding::Nf4 => nf4::quantize(x, block, codes.bytes(), scales.elements()?)?,
            Encoding::Fp4 => fp4::quantize(x, block, codes.bytes(), scales.elements()?)?,
            Encoding::Affine => {
                let [biases] = more else { return Err("three outputs are expected".into()) };
                let bits = self.scheme.bits() as u32;
                affine::quantize(x, k, block, bits, codes.bytes(), scales.elements()?, biases.elements()?)?;
            }
            Encoding::KQuant => return Err("K-quants are coded in plain ops".into()),
            Encoding::Int8 => int8::quantize(x, block, codes.elements()?, scales.elements()?)?,
            Encoding::Mxfp4(rule) => mxfp4::quantize(x, rule, codes.bytes(), scales.elements()?)?,
            Encoding::Mxfp8(rule) => mxfp8::quantize(x, rule, codes.bytes(), scales.elements()?)?,
            Encoding::Nvfp4 { .. } => {
                let global = inputs.get(1).map(scalar).transpose()?;
                nvfp4::quantize(x, global, codes.bytes(), scales.elements()?)?;
            }
            Encoding::Ternary => ternary::quantize(x, block, codes.bytes(), scales.elements()?)?,
            Encoding::Binary => binary::quantize(x, block, codes.bytes(), scales.elements()?)?,
        }
        Ok(())
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let (x, block) = (&inputs[0], self.block);
        let mut made = encoded(&self.scheme, x, block, inputs.get(1))?;
        let (codes, scales) = self.scheme.children(x.shape(), block);
        made[0] = encode::packed(&made[0], &self.scheme, x.size())?.reshape(&codes)?;
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
        let again = || Self { scheme: self.scheme, block: self.block };
        if let ([x], [Some(axis)]) = (inputs, axes) {
            let x = x.move_axis(*axis as i32, 0)?;
            let (count, example) = (x.dim(0), &x.shape()[1..]);
            let size: usize = example.iter().map(|&extent| extent as usize).product();
            let aligned = size.is_multiple_of(self.block) && (size * self.scheme.bits()).is_multiple_of(8);
            if count > 0 && (self.scheme.is_grouped() || aligned) {
                let (codes, scales) = self.scheme.children(example, self.block);
                let mut made = apply(again(), std::slice::from_ref(&x))?;
                for (place, made) in made.iter_mut().enumerate() {
                    let shape = if place == 0 { &codes } else { &scales };
                    *made = made.reshape(&[&[count], &shape[..]].concat())?;
                }
                return Ok(with_axes(made));
            }
        }
        one_by_one(again, inputs, axes)
    }
}

/// The results of a kernel on each example, stacked.
pub(super) fn one_by_one<K: Kernel>(
    kernel: impl Fn() -> K,
    inputs: &[Array],
    axes: &[Option<usize>],
) -> Fallible<Mapped> {
    let count = inputs.iter().zip(axes).find_map(|(input, axis)| axis.map(|axis| input.dim(axis as i32)));
    let of_example = |example: i32| {
        let one = |(input, axis): (&Array, &Option<usize>)| match axis {
            Some(axis) => input.move_axis(*axis as i32, 0)?.try_index(example),
            None => Ok(input.clone()),
        };
        inputs.iter().zip(axes).map(one).collect::<Result<Vec<_>, _>>()
    };
    let examples = (0..count.ok_or("no input is mapped")?)
        .map(|example| Ok(apply(kernel(), &of_example(example)?)?))
        .collect::<Fallible<Vec<_>>>()?;
    let results = examples.first().ok_or("there are no examples")?.len();
    let stacked = |result: usize| ops::stack(&examples.iter().map(|made| &made[result]).collect::<Vec<_>>(), 0);
    Ok(with_axes((0..results).map(stacked).collect::<Result<_, _>>()?))
}

/// Results whose mapped axis is the first.
fn with_axes(results: Vec<Array>) -> Mapped {
    let axes = vec![0; results.len()];
    (results, axes)
}
