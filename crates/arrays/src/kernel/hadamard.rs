//! The Hadamard transform of rows.

use mlx_rs::{Array, Dtype};
use tacit_core::kernel::{GpuBackend, Input, Kernel, Launch, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};
use tacit_kernels::{hadamard_matrix, hadamard_order};

use super::gpu;
use super::host::{Fallible, floats, floats_mut, single};
use super::matmul::mapped;

/// `x H` for `x: [.., n]`, in the dtype of `x` with sums in `f32`; `H` is that of [`tacit_kernels::hadamard`], and its own
/// inverse and transpose.
///
/// MLX's own transform rounds between its steps in a half type, is of one thread on the CPU, and with its matrices of order 12,
/// 20 and 28, which are not symmetric, is neither its own inverse nor differentiated rightly.
///
/// # Errors
///
/// `x` is not `f32`, `f16` or `bf16`, or there is no such matrix of order `n`.
pub fn hadamard(x: &Array) -> Result<Array> {
    single(apply(Hadamard, std::slice::from_ref(x))?)
}

pub(super) struct Hadamard;

impl Hadamard {
    /// The extent of a row, and the order of the small matrix.
    pub(super) fn orders(aval: &Aval) -> Fallible<(i32, i32)> {
        let n = aval.shape.last().copied().unwrap_or(0);
        let order = usize::try_from(n).ok().and_then(hadamard_order);
        let order = order.ok_or_else(|| format!("{aval} has no fast Hadamard transform along its last axis"))?;
        Ok((n, order as i32))
    }
}

impl Kernel for Hadamard {
    fn name(&self) -> &'static str {
        "HadamardRows"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(Vec::new())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let x = &inputs[0];
        if !matches!(x.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) {
            return Err(format!("{x} is not f32, f16 or bf16").into());
        }
        Self::orders(x)?;
        Ok(vec![x.clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let (n, _) = Self::orders(inputs[0].aval())?;
        Ok(tacit_kernels::hadamard(floats(&inputs[0])?, n as usize, floats_mut(&mut outputs[0])?)?)
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        let x = inputs.first()?;
        let (n, order) = Self::orders(x).ok()?;
        gpu::hadamard([n as usize, order as usize], x, backend.into()).map(gpu::Parts::launch)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let x = &inputs[0];
        let (n, order) = Self::orders(&Aval::from(x))?;
        let wide = x.as_dtype(Dtype::Float32)?;
        if x.size() == 0 {
            return Ok(vec![x.clone()]);
        }
        let scale = 1.0 / (n as f32).sqrt();
        let result = if order == 1 {
            wide.hadamard_transform(scale)?
        } else {
            let small = Array::from_slice(&hadamard_matrix(order as usize), &[order, order]);
            let blocks = wide.reshape(&[x.size() as i32 / n, order, n / order])?.hadamard_transform(scale)?;
            small.matmul(blocks)?.reshape(x.shape())?
        };
        Ok(vec![result.as_dtype(x.dtype())?])
    }

    fn vjp(&self, _: &[Array], cotangents: &[Array], _: &[usize]) -> Option<Fallible<Vec<Array>>> {
        Some(hadamard(&cotangents[0]).map(|result| vec![result]).map_err(Into::into))
    }

    fn jvp(&self, _: &[Array], tangents: &[Array], _: &[usize]) -> Option<Fallible<Vec<Array>>> {
        Some(hadamard(&tangents[0]).map(|result| vec![result]).map_err(Into::into))
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        mapped(inputs, axes, |x, _| hadamard(x))
    }
}
