//! Floats to codes and scales.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops, stop_gradient};
use tacit_core::kernel::{GpuBackend, Input, Kernel, Launch, Mapped, Output, Pieces, apply};
use tacit_core::{Aval, Param};

use super::coded::Coded;
use super::host::{Fallible, int};
use super::layout::scalar;
use super::pieces::{Unit, counted};
use super::{Scheme, encode, gpu};

/// Codes the first of `inputs`, `f32` of any shape, in blocks: codes, scales, and biases if the format has them.
///
/// A second input is the largest magnitude that NVFP4's scales are relative to. Gradients reach the scales.
///
/// # Errors
///
/// When it runs on a CPU: an element is NaN or infinite. A GPU has no error to give, and codes it as the decomposition does.
pub fn quantize(scheme: Scheme, block: usize, inputs: &[Array]) -> tacit_core::Result<Vec<Array>> {
    let mut results = apply(Quantize::new(scheme, block), inputs)?;
    results[0] = stop_gradient(&results[0])?;
    Ok(results)
}

/// Codes whole blocks of an array that come behind `before` other elements, which count where an error names an element by its place.
pub(crate) fn quantize_piece(
    scheme: Scheme,
    block: usize,
    before: usize,
    inputs: &[Array],
) -> tacit_core::Result<Vec<Array>> {
    apply(Quantize { scheme, block, before }, inputs)
}

#[derive(Clone)]
pub(super) struct Quantize {
    scheme: Scheme,
    block: usize,
    /// Elements of the array before the first.
    before: usize,
}

impl Quantize {
    pub(super) fn new(scheme: Scheme, block: usize) -> Self {
        Self { scheme, block, before: 0 }
    }
}

impl Kernel for Quantize {
    fn name(&self) -> &'static str {
        self.scheme.kernel("Quantize")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let before = (self.before > 0).then(|| ("before", int(self.before)));
        Some([("block", int(self.block))].into_iter().chain(self.scheme.params()).chain(before).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(self.scheme.output_avals(&inputs[0].shape, self.block))
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let global = inputs.get(1).map(scalar).transpose()?;
        counted(self.before, Coded::new(outputs)?.quantize(&self.scheme, self.block, inputs[0].elements()?, global))
    }

    /// None where the scales are relative to all elements.
    fn pieces(&self, inputs: &[Aval]) -> Option<Pieces> {
        let Self { scheme, block, before } = *self;
        let ([x], unit, encoder) = (inputs, Unit::new(&scheme, block)?, scheme.encoder(block, None).ok()?) else {
            return None;
        };
        let scales = scheme.output_avals(&x.shape, block).into_iter().skip(1).map(|aval| unit.numbers(&aval));
        Some(Pieces {
            elements: x.size(),
            unit: unit.elements,
            inputs: vec![Some(unit.element_bytes(x))],
            outputs: std::iter::once(unit.codes).chain(scales).collect(),
            eval: Box::new(move |piece, inputs, outputs| {
                let x = inputs[0].elements()?;
                counted(before + piece.start, Coded::new(outputs)?.encode(&scheme, encoder.as_ref(), x))
            }),
        })
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::quantize(&self.scheme, self.block, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        Ok(encode::quantized(&self.scheme, &inputs[0], self.block, inputs.get(1))?)
    }

    /// The codes of the kernel itself, which refuses what the decomposition codes: all examples at once where their blocks
    /// lie one after the other, and otherwise one by one.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        Some(self.mapped(inputs, axes))
    }
}

impl Quantize {
    fn mapped(&self, inputs: &[Array], axes: &[Option<usize>]) -> Fallible<Mapped> {
        if let ([x], [Some(axis)]) = (inputs, axes) {
            let x = x.move_axis(*axis as i32, 0)?;
            let (count, example) = (x.dim(0), &x.shape()[1..]);
            let size: usize = example.iter().map(|&extent| extent as usize).product();
            let aligned = size.is_multiple_of(self.block) && (size * self.scheme.bits()).is_multiple_of(8);
            if count > 0 && (self.scheme.is_grouped() || aligned) {
                let (codes, scales) = self.scheme.children(example, self.block);
                let mut results = apply(self.clone(), std::slice::from_ref(&x))?;
                for (place, result) in results.iter_mut().enumerate() {
                    let shape = if place == 0 { &codes } else { &scales };
                    *result = result.reshape(&[&[count], &shape[..]].concat())?;
                }
                return Ok(with_axes(results));
            }
        }
        one_by_one(|| self.clone(), inputs, axes)
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
    let stacked = |result: usize| ops::stack(&examples.iter().map(|example| &example[result]).collect::<Vec<_>>(), 0);
    Ok(with_axes((0..results).map(stacked).collect::<Result<_, _>>()?))
}

/// Results whose mapped axis is the first.
fn with_axes(results: Vec<Array>) -> Mapped {
    let axes = vec![0; results.len()];
    (results, axes)
}
