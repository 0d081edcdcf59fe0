//! The gradients of a quantized matrix for its scales, its biases, and the floats that were quantized.

use std::slice::from_ref;

use half::{bf16, f16};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Output, apply};
use tacit_core::{Aval, Param, Result};

use super::encode::blocks;
use super::host::Fallible;
use super::{Coding, Layout, Scheme, gpu};

/// The gradients of `x`, of its scales and, where the format has them, of its biases, in `f32`; `children` are what `x` was
/// quantized to, as a [`Layout`] reads them.
///
/// The rule is that of [`tacit_kernels::scale_gradients`]. The gradient of a scale is that of the number that the elements are
/// multiplied by.
pub(crate) fn scale_gradients(layout: Layout, x: &Array, cotangent: &Array, children: &[Array]) -> Result<Vec<Array>> {
    let wide = |array: &Array| array.as_dtype(Dtype::Float32);
    let inputs: Vec<Array> = [wide(x)?, wide(cotangent)?].into_iter().chain(children.iter().cloned()).collect();
    apply(ScaleGradients { layout }, &inputs)
}

pub(super) struct ScaleGradients {
    pub(super) layout: Layout,
}

impl Kernel for ScaleGradients {
    fn name(&self) -> &'static str {
        self.layout.scheme.kernel("ScaleGradients")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(self.layout.params())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let of_scales = Aval::new(&inputs[3].shape, Dtype::Float32);
        let mut avals = vec![Aval::new(&inputs[0].shape, Dtype::Float32), of_scales.clone()];
        avals.extend(self.layout.scheme.biased.then_some(of_scales));
        Ok(avals)
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let [of_x, of_scales, of_biases @ ..] = outputs else { return Err("two outputs are expected".into()) };
        let of_biases = of_biases.first_mut().map(Output::elements).transpose()?;
        let matrix = self.layout.matrix(&inputs[2..])?;
        let (x, cotangent) = (inputs[0].elements()?, inputs[1].elements()?);
        let (of_x, of_scales) = (of_x.elements()?, of_scales.elements()?);
        Ok(tacit_kernels::scale_gradients(&matrix, x, cotangent, of_x, of_scales, of_biases)?)
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        self.parts(inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let [x, cotangent, codes, scales, ..] = inputs else { return Err("four arrays are expected".into()) };
        let Layout { scheme, block, .. } = self.layout;
        let (number, size) = (Array::from_f32, x.size());
        let in_blocks = |array: &Array| blocks(array, block);
        let (x, cotangent) = (in_blocks(x)?, in_blocks(cotangent)?);
        let q = in_blocks(&self.layout.unscaled().decoded(from_ref(codes))?)?;
        let numbers = self.layout.numbers(&inputs[3..])?;
        let scale = numbers[0].reshape(&[-1, 1])?;
        let bias = numbers.get(1).map_or_else(|| Ok(number(0.0)), |bias| bias.reshape(&[-1, 1]))?;
        let zero = scale.eq(number(0.0))?;
        let u = x.subtract(bias)?.divide(ops::select(&zero, number(1.0), &scale)?)?;
        let u = ops::select(&zero, number(0.0), u)?;
        let [low, high] = self.limits();
        let inside = u.ge(number(low))?.logical_and(u.le(number(high))?)?;
        let of_x = ops::select(&inside, &cotangent, number(0.0))?;
        let of_scales = cotangent.multiply(ops::select(&inside, q.subtract(u)?, &q)?)?.sum_axis(-1, None)?;
        let mut results = vec![
            of_x.reshape(&[-1])?.try_index(..size as i32)?.reshape(inputs[0].shape())?,
            of_scales.reshape(scales.shape())?,
        ];
        if scheme.biased {
            let of_biases = ops::select(&inside, number(0.0), &cotangent)?.sum_axis(-1, None)?;
            results.push(of_biases.reshape(scales.shape())?);
        }
        Ok(results)
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        self.layout.permit(self.name(), reason)?;
        self.decompose(inputs)
    }
}

impl ScaleGradients {
    pub(super) fn parts(&self, inputs: &[Aval], target: gpu::Target) -> Option<gpu::Parts> {
        gpu::scale_gradients(&self.layout, self.limits(), inputs, target)
    }

    /// The range of the codes, with some slack for what was rounded.
    fn limits(&self) -> [f32; 2] {
        let (low, high) = range(&self.layout.scheme);
        let slack = 1e-5 * (high - low);
        [low - slack, high + slack]
    }
}

/// The least and the greatest finite value of the codes.
pub(super) fn range(scheme: &Scheme) -> (f32, f32) {
    let finite = |values: &[f32]| {
        let finite = values.iter().filter(|value| value.is_finite());
        finite.fold((f32::MAX, f32::MIN), |(low, high), &value| (low.min(value), high.max(value)))
    };
    match scheme.coding {
        Coding::Table { .. } | Coding::Bytes { .. } => finite(scheme.table().unwrap_or_default()),
        Coding::Offset { .. } => (-scheme.middle(), scheme.middle() - 1.0),
        Coding::Unsigned { bits } => (0.0, ((1u32 << bits) - 1) as f32),
        Coding::Signed => (-127.0, 127.0),
        Coding::E4m3 => (-448.0, 448.0),
        Coding::F16 => (f16::MIN.to_f32(), f16::MAX.to_f32()),
        Coding::Bf16 => (bf16::MIN.to_f32(), bf16::MAX.to_f32()),
    }
}
