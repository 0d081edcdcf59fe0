//! The least and the greatest element of each block; one that is not finite is an error that names its place.

use mlx_rs::{Array, Dtype};
use tacit_core::kernel::{Input, Kernel, Mapped, Output, apply};
use tacit_core::{Aval, Param, Result};

use super::host::{Fallible, int, several};
use super::pieces::counted;
use super::quantize::one_by_one;

/// The least and the greatest element of each row of `x: f32[blocks, block]`: `f32[blocks, 1]` each.
///
/// On a CPU an element that is NaN or infinite is an error, which names it by its place in an array of which `before` others come
/// before the first.
pub(crate) fn block_ranges(before: usize, x: &Array) -> Result<[Array; 2]> {
    Ok(several(apply(BlockRanges { before }, std::slice::from_ref(x))?))
}

struct BlockRanges {
    before: usize,
}

impl Kernel for BlockRanges {
    fn name(&self) -> &'static str {
        "BlockRanges"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(vec![("before", int(self.before))])
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        let [Aval { shape, .. }] = inputs else { return Err("an array is expected".into()) };
        let [blocks, _] = shape[..] else { return Err("rows that are blocks are expected".into()) };
        Ok(vec![Aval::new(&[blocks, 1], Dtype::Float32); 2])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let ([x], [low, high]) = (inputs, outputs) else { return Err("an array and two outputs are expected".into()) };
        let block = x.aval().shape.last().map_or(1, |&last| last as usize);
        counted(self.before, tacit_kernels::ranges(x.elements()?, block, low.elements()?, high.elements()?))
    }

    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let [x] = inputs else { return Err("an array is expected".into()) };
        Ok(vec![x.min_axis(-1, true)?, x.max_axis(-1, true)?])
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Option<Fallible<Mapped>> {
        Some(one_by_one(|| Self { before: self.before }, inputs, axes))
    }
}
