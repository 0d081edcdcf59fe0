//! The sum of a matrix and a thin product: quantized, or its norms by rows, without being built.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Output, apply, permit_dense};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::nvfp4::LEAST_GLOBAL;
use tacit_kernels::{Base, Sum};

use super::coded::Coded;
use super::encode::quantized;
use super::host::{Fallible, floats, int, single};
use super::layout::scalar;
use super::{Layout, Scheme, gpu};

/// A matrix `factors * (base + left right)` of which no dense array is built.
#[derive(Clone, Debug)]
pub struct Summands {
    /// How the base is read; `None` for a dense one.
    pub layout: Option<Layout>,
    /// The children of the base, or the dense base itself.
    pub base: Vec<Array>,
    /// `f32[n, r]`.
    pub left: Array,
    /// `f32[r, k]`.
    pub right: Array,
    /// What each row is multiplied by: `f32[n]`.
    pub factors: Option<Array>,
}

impl Summands {
    /// The inputs of a kernel, the base's last, and how they are read.
    pub(super) fn inputs(&self) -> (Read, Vec<Array>) {
        let [n, k, rank] = [self.left.dim(0), self.right.dim(1), self.left.dim(1)].map(|extent| extent as usize);
        let mut inputs = vec![self.left.clone(), self.right.clone()];
        inputs.extend(self.factors.clone());
        let read = Read { layout: self.layout, n, k, rank, factors: self.factors.is_some() };
        (read, inputs)
    }

    /// Codes the sum in blocks of its rows: codes, scales, and biases if the format has them.
    ///
    /// `global` is the largest magnitude that NVFP4's scales are relative to. Nothing has a gradient.
    ///
    /// # Errors
    ///
    /// When it runs: the lengths do not fit, or, on a CPU, an element is NaN or infinite.
    pub fn quantize(&self, scheme: Scheme, block: usize, global: Option<&Array>) -> Result<Vec<Array>> {
        let (read, mut inputs) = self.inputs();
        let relative = global.is_some();
        inputs.extend(global.cloned());
        inputs.extend(self.base.clone());
        apply(QuantizeSum { read, scheme, block, relative }, &stopped(&inputs)?)
    }

    /// The length of each row, or the largest magnitude in it: `f32[n]`, without a gradient.
    ///
    /// # Errors
    ///
    /// When it runs: the lengths do not fit.
    pub fn measure(&self, by: Measure) -> Result<Array> {
        let (read, mut inputs) = self.inputs();
        inputs.extend(self.base.clone());
        single(apply(MeasureSum { read, by }, &stopped(&inputs)?)?)
    }
}

fn stopped(arrays: &[Array]) -> Result<Vec<Array>> {
    arrays.iter().map(|array| Ok(mlx_rs::stop_gradient(array)?)).collect()
}

/// What is measured of each row of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The root of the sum of its squares.
    Norm,
    /// The largest magnitude.
    Absmax,
}

/// How the inputs of a kernel make up a sum: left, right, factors if there are any, something of the kernel's own, base.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub(super) layout: Option<Layout>,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) rank: usize,
    pub(super) factors: bool,
}

impl Read {
    fn params(self) -> Vec<(&'static str, Param)> {
        let sizes = [("n", int(self.n)), ("k", int(self.k)), ("rank", int(self.rank))];
        let base = self.layout.map_or(Vec::new(), |layout| {
            // The scheme of what is made has parameters of these names.
            let label = ("base", Param::Str(layout.scheme.label.to_owned()));
            let of_base = |name| match name {
                "bits" => "base_bits",
                "rule" => "base_rule",
                "table" => "base_table",
                "block" => "base_block",
                "nested" => "base_nested",
                other => other,
            };
            std::iter::once(label)
                .chain(layout.params().into_iter().map(|(name, value)| (of_base(name), value)))
                .collect()
        });
        sizes.into_iter().chain([("factors", Param::Bool(self.factors))]).chain(base).collect()
    }

    /// Where the kernel's own inputs begin.
    pub(super) fn inputs_of_sum(self) -> usize {
        2 + usize::from(self.factors)
    }

    fn with<R>(self, inputs: &[Input<'_>], more: usize, f: impl FnOnce(&Sum<'_>) -> Fallible<R>) -> Fallible<R> {
        let base = &inputs[self.inputs_of_sum() + more..];
        let base = match &self.layout {
            Some(layout) => Base::Stored(layout.matrix(base)?),
            None => Base::Dense(floats(base.first().ok_or("a base is expected")?)?),
        };
        let factors = if self.factors { Some(inputs[2].elements()?) } else { None };
        let (left, right) = (inputs[0].elements()?, inputs[1].elements()?);
        f(&Sum { n: self.n, k: self.k, base, rank: self.rank, left, right, factors })
    }

    /// The sum in plain ops: `f32[n, k]`.
    fn built(self, inputs: &[Array], more: usize) -> Result<Array, Exception> {
        let base = &inputs[self.inputs_of_sum() + more..];
        let base = match self.layout {
            Some(layout) => layout.decoded(base)?,
            None => base[0].as_dtype(Dtype::Float32)?,
        };
        let sum = base.add(inputs[0].matmul(&inputs[1])?)?;
        if self.factors { sum.multiply(inputs[2].expand_dims(-1)?) } else { Ok(sum) }
    }

    fn permit(self, kernel: &'static str, reason: Fallback) -> Result<()> {
        permit_dense(kernel, &Aval::new(&[self.n as i32, self.k as i32], Dtype::Float32), reason)
    }
}

pub(super) struct QuantizeSum {
    pub(super) read: Read,
    pub(super) scheme: Scheme,
    pub(super) block: usize,
    /// Whether there is a largest magnitude that the scales are relative to.
    pub(super) relative: bool,
}

impl Kernel for QuantizeSum {
    fn name(&self) -> &'static str {
        self.scheme.kernel("QuantizeSum")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        let params = [("block", int(self.block)), ("relative", Param::Bool(self.relative))];
        Some(params.into_iter().chain(self.scheme.params()).chain(self.read.params()).collect())
    }

    fn output_avals(&self, _: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(self.scheme.output_avals(&[self.read.n as i32, self.read.k as i32], self.block))
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let global_at = self.read.inputs_of_sum();
        let global = if self.relative { Some(scalar(&inputs[global_at])?) } else { None };
        let coded = Coded::new(outputs)?;
        self.read.with(inputs, usize::from(self.relative), |sum| {
            let piece = sum.piece(self.block);
            let pieces = coded.pieces(&self.scheme, self.block, piece);
            Ok(sum.for_each_piece(piece, pieces.into_iter(), &|x, coded: Coded| {
                coded.quantize(&self.scheme, self.block, x, global)
            })?)
        })
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::quantize_sum(&self.scheme, self.block, &self.read, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let sum = self.read.built(inputs, usize::from(self.relative))?;
        let global = self.relative.then(|| &inputs[self.read.inputs_of_sum()]);
        Ok(quantized(&self.scheme, &sum, self.block, global)?)
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        self.read.permit(self.name(), reason)?;
        self.decompose(inputs)
    }
}

pub(super) struct MeasureSum {
    pub(super) read: Read,
    pub(super) by: Measure,
}

impl Kernel for MeasureSum {
    fn name(&self) -> &'static str {
        match self.by {
            Measure::Norm => "SumNorms",
            Measure::Absmax => "SumAbsmax",
        }
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(self.read.params())
    }

    fn output_avals(&self, _: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&[self.read.n as i32], Dtype::Float32)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        self.read.with(inputs, 0, |sum| {
            let out = outputs[0].elements()?;
            match self.by {
                Measure::Norm => sum.norms(out)?,
                Measure::Absmax => sum.absmax(out)?,
            }
            Ok(())
        })
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::measure(self.by, &self.read, inputs, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let sum = self.read.built(inputs, 0)?;
        Ok(vec![match self.by {
            Measure::Norm => sum.square()?.sum_axis(-1, None)?.sqrt()?,
            Measure::Absmax => sum.abs()?.max_axis(-1, None)?,
        }])
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        self.read.permit(self.name(), reason)?;
        self.decompose(inputs)
    }
}

/// What NVFP4's scales are relative to in a tensor of this largest magnitude: a number that they can be divided by, if the
/// tensor is one of zeros, too.
pub(crate) fn global_scale(absmax: &Array) -> Result<Array> {
    let least = Array::from_f32(LEAST_GLOBAL);
    let small = absmax.ge(Array::from_f32(0.0))?.logical_and(absmax.lt(&least)?)?;
    Ok(ops::select(small, least, absmax)?)
}
