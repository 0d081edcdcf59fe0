//! Elementwise ops on whole numbers and truth values.

use mlx_rs::{Array, Dtype};
use tacit_core::Aval;
use tacit_core::kernel::{Element, Input, Kernel, Output};

use super::refused::{BoxError, only_in_plans};
use super::steps::item;

/// An op of one, two or three operands of one shape.
pub(super) struct Integers {
    name: &'static str,
    op: Op,
    result: Aval,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Add,
    Subtract,
    Multiply,
    Maximum,
    Minimum,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    And,
    Or,
    Not,
    Select,
    Cast,
}

/// The ops by the names that MLX gives them.
const OPS: [(&str, Op); 16] = [
    ("Add", Op::Add),
    ("AsType", Op::Cast),
    ("Equal", Op::Equal),
    ("Greater", Op::Greater),
    ("GreaterEqual", Op::GreaterEqual),
    ("Less", Op::Less),
    ("LessEqual", Op::LessEqual),
    ("LogicalAnd", Op::And),
    ("LogicalNot", Op::Not),
    ("LogicalOr", Op::Or),
    ("Maximum", Op::Maximum),
    ("Minimum", Op::Minimum),
    ("Multiply", Op::Multiply),
    ("NotEqual", Op::NotEqual),
    ("Select", Op::Select),
    ("Subtract", Op::Subtract),
];

fn is_integer(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Int32 | Dtype::Uint32)
}

impl Integers {
    pub(super) fn new(name: &str, operands: &[Aval], result: Aval) -> Option<Self> {
        let &(name, op) = OPS.iter().find(|(known, _)| *known == name)?;
        let first = operands[0].dtype;
        let same = |operands: &[Aval], dtype| operands.iter().all(|operand| operand.dtype == dtype);
        let takes = match op {
            Op::Add | Op::Subtract | Op::Multiply | Op::Maximum | Op::Minimum => {
                is_integer(result.dtype) && same(operands, result.dtype)
            }
            Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => is_integer(first) && same(operands, first),
            Op::Equal | Op::NotEqual => (is_integer(first) || first == Dtype::Bool) && same(operands, first),
            Op::And | Op::Or | Op::Not => same(operands, Dtype::Bool),
            Op::Select => first == Dtype::Bool && same(&operands[1..], result.dtype) && item(&result) == 4,
            Op::Cast => {
                (is_integer(first) || first == Dtype::Bool) && (is_integer(result.dtype) || result.dtype == Dtype::Bool)
            }
        };
        let shaped = operands.iter().all(|operand| operand.shape == result.shape);
        (takes && shaped).then_some(Self { name, op, result })
    }

    fn of_integers<T: Integer>(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let (a, b) = (inputs[0].elements::<T>()?, inputs[1].elements::<T>()?);
        let pairs = a.iter().zip(b).map(|(a, b)| (*a, *b));
        let compared = |output: &mut Output<'_>, test: fn(&T, &T) -> bool| {
            output.bytes().iter_mut().zip(a.iter().zip(b)).for_each(|(to, (a, b))| *to = test(a, b).into());
        };
        match self.op {
            Op::Less => compared(output, T::lt),
            Op::LessEqual => compared(output, T::le),
            Op::Greater => compared(output, T::gt),
            Op::GreaterEqual => compared(output, T::ge),
            Op::Equal => compared(output, T::eq),
            Op::NotEqual => compared(output, T::ne),
            _ => {
                let op: fn(T, T) -> T = match self.op {
                    Op::Add => T::plus,
                    Op::Subtract => T::minus,
                    Op::Multiply => T::times,
                    Op::Maximum => T::max,
                    _ => T::min,
                };
                output.elements::<T>()?.iter_mut().zip(pairs).for_each(|(to, (a, b))| *to = op(a, b));
            }
        }
        Ok(())
    }

    fn of_truth(&self, inputs: &[Input<'_>], output: &mut Output<'_>) {
        let a = inputs[0].bytes();
        let b = inputs.get(1).map_or(a, Input::bytes);
        let op: fn(bool, bool) -> bool = match self.op {
            Op::And => |a, b| a && b,
            Op::Or => |a, b| a || b,
            Op::Equal => |a, b| a == b,
            Op::NotEqual => |a, b| a != b,
            _ => |a, _| !a,
        };
        let each = output.bytes().iter_mut().zip(a.iter().zip(b));
        each.for_each(|(to, (&a, &b))| *to = op(a != 0, b != 0).into());
    }

    fn cast(input: &Input<'_>, output: &mut Output<'_>) -> Result<(), BoxError> {
        let (from, to) = (input.aval().dtype, output.aval().dtype);
        match (from == Dtype::Bool, to == Dtype::Bool) {
            (true, false) => {
                let numbers = output.bytes().as_chunks_mut::<4>().0.iter_mut();
                numbers.zip(input.bytes()).for_each(|(to, &from)| *to = u32::from(from != 0).to_ne_bytes());
            }
            (false, true) => {
                let numbers = input.bytes().as_chunks::<4>().0;
                output.bytes().iter_mut().zip(numbers).for_each(|(to, from)| *to = (*from != [0; 4]).into());
            }
            // Numbers of both kinds have 32 bits, and keep them.
            (true, true) | (false, false) => output.bytes().copy_from_slice(input.bytes()),
        }
        Ok(())
    }
}

trait Integer: Element + Ord {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}

impl Integer for i32 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
    fn times(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
}

impl Integer for u32 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
    fn times(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
}

impl Kernel for Integers {
    fn name(&self) -> &'static str {
        self.name
    }

    fn output_avals(&self, _: &[Aval]) -> Result<Vec<Aval>, BoxError> {
        Ok(vec![self.result.clone()])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Result<(), BoxError> {
        let output = &mut outputs[0];
        match (self.op, inputs[0].aval().dtype) {
            (Op::Cast, _) => Self::cast(&inputs[0], output)?,
            (Op::Select, _) => {
                let items = |at: usize| inputs[at].bytes().as_chunks::<4>().0.iter();
                let each = output.bytes().as_chunks_mut::<4>().0.iter_mut().zip(inputs[0].bytes());
                let each = each.zip(items(1).zip(items(2)));
                each.for_each(|((to, &first), (a, b))| *to = if first == 0 { *b } else { *a });
            }
            (_, Dtype::Bool) => self.of_truth(inputs, output),
            (_, Dtype::Int32) => self.of_integers::<i32>(inputs, output)?,
            _ => self.of_integers::<u32>(inputs, output)?,
        }
        Ok(())
    }

    fn decompose(&self, _: &[Array]) -> Result<Vec<Array>, BoxError> {
        Err(only_in_plans())
    }
}
