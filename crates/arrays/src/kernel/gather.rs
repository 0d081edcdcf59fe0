//! Some rows of a stored matrix.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Fallback, GpuBackend, Input, Kernel, Launch, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};

use super::host::{Fallible, floats_mut, single};
use super::matmul::mapped;
use super::parts::tangents_of;
use super::{Layout, gpu};

/// Rows of a matrix: `rows: u32[..]` gives `dtype[.., k]`.
///
/// # Errors
///
/// When it runs: a row is outside the matrix.
pub fn gather_rows(layout: Layout, rows: &Array, children: &[Array], dtype: Dtype) -> Result<Array> {
    single(apply(GatherRows { layout, dtype }, &[std::slice::from_ref(rows), children].concat())?)
}

pub(super) struct GatherRows {
    pub(super) layout: Layout,
    pub(super) dtype: Dtype,
}

impl Kernel for GatherRows {
    fn name(&self) -> &'static str {
        self.layout.scheme.kernel("GatherRows")
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(self.layout.params().into_iter().chain([("dtype", Param::Dtype(self.dtype))]).collect())
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&self.shape(&inputs[0].shape), self.dtype)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let matrix = self.layout.matrix(&inputs[1..])?;
        Ok(tacit_kernels::gather_rows(&matrix, inputs[0].elements()?, floats_mut(&mut outputs[0])?)?)
    }

    fn launch(&self, inputs: &[Aval], backend: GpuBackend) -> Option<Launch> {
        gpu::gather_rows(&self.layout, inputs, self.dtype, backend.into()).map(gpu::Parts::launch)
    }

    /// Where each row has codes and scales of its own, of these alone.
    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let (rows, children) = (&inputs[0], &inputs[1..]);
        let result = if rows.size() == 0 {
            ops::zeros::<f32>(&self.shape(rows.shape()))?
        } else if self.layout.has_whole_rows() {
            let (layout, taken) = self.layout.taken(children, &rows.flatten(None, None)?)?;
            layout.decoded(&taken)?.reshape(&self.shape(rows.shape()))?
        } else {
            self.layout.decoded(children)?.take_axis(rows, 0)?
        };
        Ok(vec![result.as_dtype(self.dtype)?])
    }

    fn fallback(&self, inputs: &[Array], reason: Fallback) -> Fallible<Vec<Array>> {
        if !self.layout.has_whole_rows() {
            self.layout.permit(self.name(), reason)?;
        }
        self.decompose(inputs)
    }

    /// The rows are linear in the float children.
    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Fallible<Vec<Array>>> {
        let tangent = || -> Fallible<Array> {
            Ok(match tangents_of(primals, tangents, argnums)? {
                (_, Some(children)) => gather_rows(self.layout, &primals[0], &children, self.dtype)?,
                (_, None) => ops::zeros_dtype(&self.shape(primals[0].shape()), self.dtype)?,
            })
        };
        Some(tangent().map(|tangent| vec![tangent]))
    }

    /// The rows of all examples at once, if they share the matrix.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        mapped(inputs, axes, |rows, children| gather_rows(self.layout, rows, children, self.dtype))
    }
}

impl GatherRows {
    fn shape(&self, rows: &[i32]) -> Vec<i32> {
        [rows, &[self.layout.k as i32]].concat()
    }
}
