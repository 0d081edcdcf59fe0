//! Running sums.

use std::convert::Infallible;

use half::{bf16, f16};
use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Element, Input, Output};

use super::along::Along;
use super::staged::{BoxError, Stage};

/// The sum of what stands before each number of a line, added one after the other as MLX does.
pub(super) struct RunningSum {
    along: Along,
    /// Whether the sum runs from the end.
    reverse: bool,
    /// Whether a number counts itself.
    inclusive: bool,
}

impl RunningSum {
    pub(super) fn new(operand: &Aval, axis: i32, [reverse, inclusive]: [bool; 2], result: &Aval) -> Option<Self> {
        let along = Along::new(&operand.shape, axis)?;
        let known =
            matches!(operand.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16 | Dtype::Int32 | Dtype::Uint32);
        (known && result == operand).then_some(Self { along, reverse, inclusive })
    }

    fn run<T: Element + Default>(
        &self,
        input: &Input<'_>,
        output: &mut Output<'_>,
        add: fn(T, T) -> T,
    ) -> Result<(), BoxError> {
        let line = |from: &[T], to: &mut [T]| {
            let last = from.len() - 1;
            let place = |at: usize| if self.reverse { last - at } else { at };
            let mut sum = if self.inclusive { from[place(0)] } else { T::default() };
            to[place(0)] = sum;
            for at in 1..from.len() {
                sum = add(sum, from[place(if self.inclusive { at } else { at - 1 })]);
                to[place(at)] = sum;
            }
            Ok::<(), Infallible>(())
        };
        Ok(self.along.map(input.elements()?, output.elements()?, line)?)
    }
}

impl Stage for RunningSum {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        match inputs[0].aval().dtype {
            Dtype::Float32 => self.run::<f32>(&inputs[0], output, |a, b| a + b),
            Dtype::Float16 => self.run::<f16>(&inputs[0], output, |a, b| a + b),
            Dtype::Bfloat16 => self.run::<bf16>(&inputs[0], output, |a, b| a + b),
            Dtype::Int32 => self.run::<i32>(&inputs[0], output, i32::wrapping_add),
            _ => self.run::<u32>(&inputs[0], output, u32::wrapping_add),
        }
    }
}
