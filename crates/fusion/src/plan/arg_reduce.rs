//! The index of the least or greatest element of each row.

use half::{bf16, f16};
use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Element, Input, Output};
use tacit_core::pass::Feature;

use super::staged::{BoxError, Stage};

/// Along the last axis.
pub(super) struct ArgReduce {
    greatest: bool,
    columns: usize,
}

impl ArgReduce {
    pub(super) fn new(operand: &Aval, kind: &str, axis: i32, result: &Aval) -> Option<Self> {
        let last = axis as usize + 1 == operand.shape.len();
        let columns = *operand.shape.last()? as usize;
        let greatest = match kind {
            "argmax" => true,
            "argmin" => false,
            _ => return None,
        };
        let known = matches!(operand.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16);
        (last && known && columns > 0 && result.dtype == Dtype::Uint32).then_some(Self { greatest, columns })
    }

    fn rows<T: Element + PartialOrd>(&self, from: &[T], to: &mut [u32]) {
        let is_nan = |x: &T| x.partial_cmp(x).is_none();
        let finds_nan = Feature::PlaceOfNan.is_there();
        for (row, place) in from.chunks(self.columns).zip(to) {
            // As MLX: the first of equal ones. No comparison with a NaN holds.
            let mut best = 0;
            for (at, value) in row.iter().enumerate().skip(1) {
                let better = if self.greatest { *value > row[best] } else { *value < row[best] };
                if better || finds_nan && is_nan(value) && !is_nan(&row[best]) {
                    best = at;
                }
            }
            *place = best as u32;
        }
    }
}

impl Stage for ArgReduce {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let to = output.elements::<u32>()?;
        match inputs[0].aval().dtype {
            Dtype::Float32 => self.rows(inputs[0].elements::<f32>()?, to),
            Dtype::Float16 => self.rows(inputs[0].elements::<f16>()?, to),
            _ => self.rows(inputs[0].elements::<bf16>()?, to),
        }
        Ok(())
    }
}
