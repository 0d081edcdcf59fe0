//! Sums along any axes that lie side by side.

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Input, Output};
use tacit_kernels::sum;

use super::staged::{BoxError, Stage};

/// The sum of an array of these extents along the middle one.
pub(super) struct Sum {
    extents: [usize; 3],
}

impl Sum {
    pub(super) fn new(operand: &Aval, axes: &[i32], result: &Aval) -> Option<Self> {
        let (&first, &last) = (axes.iter().min()?, axes.iter().max()?);
        let together = last - first + 1 == axes.len() as i32;
        let float = operand.dtype == Dtype::Float32 && result.dtype == Dtype::Float32;
        let extent = |axes: std::ops::Range<usize>| operand.shape[axes].iter().map(|&extent| extent as usize).product();
        let (first, end) = (first as usize, last as usize + 1);
        let extents = [extent(0..first), extent(first..end), extent(end..operand.shape.len())];
        (together && float).then_some(Self { extents })
    }
}

impl Stage for Sum {
    fn name(&self) -> &'static str {
        "Sum"
    }

    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        Ok(sum(inputs[0].elements()?, self.extents, output.elements()?)?)
    }
}
