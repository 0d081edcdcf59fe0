//! Sorts, sorting and partitioning indices, and searches in sorted arrays.

use std::cmp::Ordering;
use std::convert::Infallible;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Element, Input, Output};
use tacit_core::pass::arg_partition;

use super::along::Along;
use super::staged::{BoxError, Stage, of_numbers};

/// As MLX: NaN comes last, and equal ones stay in their order.
fn order<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    let is_nan = |x: &T| x.partial_cmp(x).is_none();
    a.partial_cmp(b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

fn is_ordered(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16 | Dtype::Int32 | Dtype::Uint32)
}

/// Lines in ascending order.
pub(super) struct Sorted(Along);

impl Sorted {
    pub(super) fn new(operand: &Aval, axis: i32) -> Option<Self> {
        let along = Along::new(&operand.shape, axis)?;
        is_ordered(operand.dtype).then_some(Self(along))
    }

    fn run<T: Element + PartialOrd + Default>(
        &self,
        input: &Input<'_>,
        output: &mut Output<'_>,
    ) -> Result<(), BoxError> {
        let sort = |from: &[T], to: &mut [T]| {
            to.copy_from_slice(from);
            to.sort_by(order);
            Ok::<(), Infallible>(())
        };
        Ok(self.0.map(input.elements()?, output.elements()?, sort)?)
    }
}

impl Stage for Sorted {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        of_numbers!(inputs[0].aval().dtype, self.run(&inputs[0], output))
    }
}

/// The places of the numbers of a line, in the order of these.
pub(super) struct ArgSorted(Along);

impl ArgSorted {
    pub(super) fn new(operand: &Aval, axis: i32) -> Option<Self> {
        let along = Along::new(&operand.shape, axis)?;
        is_ordered(operand.dtype).then_some(Self(along))
    }

    fn run<T: Element + PartialOrd>(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), BoxError> {
        let sort = |from: &[T], to: &mut [u32]| {
            (0..).zip(&mut *to).for_each(|(place, to)| *to = place);
            to.sort_by(|&a, &b| order(&from[a as usize], &from[b as usize]));
            Ok::<(), Infallible>(())
        };
        Ok(self.0.map(input.elements()?, output.elements()?, sort)?)
    }
}

impl Stage for ArgSorted {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        of_numbers!(inputs[0].aval().dtype, self.run(&inputs[0], output))
    }
}

/// The places of the numbers of a line, those of smaller ones than the `kth` before it.
pub(super) struct ArgPartitioned {
    along: Along,
    kth: usize,
}

impl ArgPartitioned {
    pub(super) fn new(operand: &Aval, kth: i32, axis: i32) -> Option<Self> {
        let along = Along::new(&operand.shape, axis)?;
        let kth = usize::try_from(if kth < 0 { kth + along.extent() as i32 } else { kth }).ok()?;
        let known = matches!(operand.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16);
        (known && kth < along.extent()).then_some(Self { along, kth })
    }

    /// Half floats are ordered as they are in single precision.
    fn widened<T: Element>(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<(), BoxError>
    where
        [T]: HalfFloatSliceExt,
    {
        let mut wide = vec![0.0; input.aval().size()];
        input.elements::<T>()?.convert_to_f32_slice(&mut wide);
        self.run(&wide, output)
    }

    fn run(&self, from: &[f32], output: &mut Output<'_>) -> Result<(), BoxError> {
        Ok(self.along.map(from, output.elements()?, |from, to| arg_partition(from, self.kth, to))?)
    }
}

impl Stage for ArgPartitioned {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        match inputs[0].aval().dtype {
            Dtype::Float32 => self.run(inputs[0].elements()?, output),
            Dtype::Float16 => self.widened::<f16>(&inputs[0], output),
            _ => self.widened::<bf16>(&inputs[0], output),
        }
    }
}

/// Where numbers could stand in a sorted line.
pub(super) struct Searched {
    /// Whether after those that are equal.
    right: bool,
}

impl Searched {
    pub(super) fn new(line: &Aval, values: &Aval, result: &Aval, right: bool) -> Option<Self> {
        let known = line.shape.len() == 1 && values.dtype == line.dtype && is_ordered(line.dtype);
        (known && result.dtype == Dtype::Uint32 && result.shape == values.shape).then_some(Self { right })
    }

    fn run<T: Element + PartialOrd>(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let (line, values) = (inputs[0].elements::<T>()?, inputs[1].elements::<T>()?);
        for (to, value) in output.elements::<u32>()?.iter_mut().zip(values) {
            let (mut first, mut count) = (0, line.len());
            while count > 0 {
                let half = count / 2;
                let ordering = order(&line[first + half], value);
                if ordering == Ordering::Less || self.right && ordering == Ordering::Equal {
                    first += half + 1;
                    count -= half + 1;
                } else {
                    count = half;
                }
            }
            *to = first as u32;
        }
        Ok(())
    }
}

impl Stage for Searched {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        of_numbers!(inputs[0].aval().dtype, self.run(inputs, output))
    }
}
