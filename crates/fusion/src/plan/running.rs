//! Cumulative sums and products.

use std::convert::Infallible;

use half::{bf16, f16};
use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Element, Input, Output};

use super::along::Along;
use super::staged::{BoxError, Stage};

/// The sum or the product of what stands before each number of a line, taken one after the other as MLX does.
pub(super) struct Running {
    along: Along,
    /// Whether it runs from the end.
    reverse: bool,
    /// Whether a number counts itself.
    inclusive: bool,
    multiplies: bool,
}

/// What there is before the first number of a line, and how each is taken in.
type Taking<T> = (T, fn(T, T) -> T);

impl Running {
    pub(super) fn new(operand: &Aval, axis: i32, [reverse, inclusive]: [bool; 2], result: &Aval) -> Option<Self> {
        let along = Along::new(&operand.shape, axis)?;
        let known =
            matches!(operand.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16 | Dtype::Int32 | Dtype::Uint32);
        (known && result == operand).then_some(Self { along, reverse, inclusive, multiplies: false })
    }

    /// The same of products.
    pub(super) fn multiplying(self) -> Self {
        Self { multiplies: true, ..self }
    }

    fn run<T: Element + Default>(
        &self,
        input: &Input<'_>,
        output: &mut Output<'_>,
        sum: Taking<T>,
        product: Taking<T>,
    ) -> Result<(), BoxError> {
        let (start, take) = if self.multiplies { product } else { sum };
        let line = |from: &[T], to: &mut [T]| {
            let last = from.len() - 1;
            let place = |at: usize| if self.reverse { last - at } else { at };
            let mut running = if self.inclusive { from[place(0)] } else { start };
            to[place(0)] = running;
            for at in 1..from.len() {
                running = take(running, from[place(if self.inclusive { at } else { at - 1 })]);
                to[place(at)] = running;
            }
            Ok::<(), Infallible>(())
        };
        Ok(self.along.map(input.elements()?, output.elements()?, line)?)
    }
}

impl Stage for Running {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let input = &inputs[0];
        match input.aval().dtype {
            Dtype::Float32 => self.run::<f32>(input, output, (0.0, |a, b| a + b), (1.0, |a, b| a * b)),
            Dtype::Float16 => self.run::<f16>(input, output, (f16::ZERO, |a, b| a + b), (f16::ONE, |a, b| a * b)),
            Dtype::Bfloat16 => self.run::<bf16>(input, output, (bf16::ZERO, |a, b| a + b), (bf16::ONE, |a, b| a * b)),
            Dtype::Int32 => self.run::<i32>(input, output, (0, i32::wrapping_add), (1, i32::wrapping_mul)),
            _ => self.run::<u32>(input, output, (0, u32::wrapping_add), (1, u32::wrapping_mul)),
        }
    }
}
