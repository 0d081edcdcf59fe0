//! Some rows of a stored matrix.

use mlx_rs::{Array, Dtype};
use tacit_core::kernel::{Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};

use super::{Fallible, Layout, floats_mut, single};

/// Rows of a matrix: `rows: u32[r]` gives `dtype[r, k]`.
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
        let mut params = self.layout.params();
        params.push(("dtype", Param::Dtype(self.dtype)));
        Some(params)
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&[inputs[0].size() as i32, self.layout.k as i32], self.dtype)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let matrix = self.layout.matrix(&inputs[1..])?;
        Ok(tacit_kernels::gather_rows(&matrix, inputs[0].elements()?, floats_mut(&mut outputs[0])?)?)
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        Ok(vec![self.layout.decoded(&inputs[1..])?.take_axis(&inputs[0], 0)?.as_dtype(self.dtype)?])
    }

    /// The rows of all examples at once, if they share the matrix.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        let (Some(axis), true) = (axes[0], axes[1..].iter().all(Option::is_none)) else { return None };
        let all = || -> Fallible<Mapped> {
            let rows = inputs[0].move_axis(axis as i32, 0)?;
            let made = gather_rows(self.layout, &rows.flatten(0, 1)?, &inputs[1..], self.dtype)?;
            Ok((vec![made.reshape(&[rows.dim(0), rows.dim(1), self.layout.k as i32])?], vec![0]))
        };
        Some(all())
    }
}
