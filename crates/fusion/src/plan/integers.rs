//! Elementwise ops on integers and booleans.

use mlx_rs::Dtype;
use tacit_core::Aval;
use tacit_core::kernel::{Element, Input, Output};

use super::staged::{BoxError, Stage};

/// An op of one, two or three operands of one shape.
pub(super) struct Integers(Op);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Add,
    Subtract,
    Multiply,
    Remainder,
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
const OPS: [(&str, Op); 17] = [
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
    ("Remainder", Op::Remainder),
    ("Select", Op::Select),
    ("Subtract", Op::Subtract),
];

fn is_integer(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Int32 | Dtype::Uint32)
}

impl Integers {
    pub(super) fn has(name: &str) -> bool {
        OPS.iter().any(|(known, _)| *known == name)
    }

    pub(super) fn new(name: &str, operands: &[Aval], result: &Aval) -> Option<Self> {
        let &(_, op) = OPS.iter().find(|(known, _)| *known == name)?;
        let first = operands[0].dtype;
        let same = |operands: &[Aval], dtype| operands.iter().all(|operand| operand.dtype == dtype);
        let takes = match op {
            Op::Add | Op::Subtract | Op::Multiply | Op::Remainder | Op::Maximum | Op::Minimum => {
                is_integer(result.dtype) && same(operands, result.dtype)
            }
            Op::Less | Op::LessEqual | Op::Greater | Op::GreaterEqual => is_integer(first) && same(operands, first),
            Op::Equal | Op::NotEqual => (is_integer(first) || first == Dtype::Bool) && same(operands, first),
            Op::And | Op::Or | Op::Not => same(operands, Dtype::Bool),
            Op::Select => first == Dtype::Bool && same(&operands[1..], result.dtype) && result.item_size() == 4,
            Op::Cast => {
                (is_integer(first) || first == Dtype::Bool) && (is_integer(result.dtype) || result.dtype == Dtype::Bool)
            }
        };
        let shaped = operands.iter().all(|operand| operand.shape == result.shape);
        (takes && shaped).then_some(Self(op))
    }

    /// Ops in which the sign counts.
    fn ordered<T: Element + Ord>(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        let pairs = inputs[0].elements::<T>()?.iter().zip(inputs[1].elements::<T>()?);
        let test: fn(&T, &T) -> bool = match self.0 {
            Op::Less => T::lt,
            Op::LessEqual => T::le,
            Op::Greater => T::gt,
            Op::GreaterEqual => T::ge,
            Op::Equal => T::eq,
            Op::NotEqual => T::ne,
            op => {
                let chosen = if op == Op::Maximum { T::max } else { T::min };
                output.elements::<T>()?.iter_mut().zip(pairs).for_each(|(to, (a, b))| *to = chosen(*a, *b));
                return Ok(());
            }
        };
        output.bytes().iter_mut().zip(pairs).for_each(|(to, (a, b))| *to = test(a, b).into());
        Ok(())
    }

    /// Ops that wrap round, and so have the same bits with a sign and without one.
    fn wrapping(inputs: &[Input<'_>], output: &mut Output<'_>, op: fn(u32, u32) -> u32) {
        let pairs = words(&inputs[0]).iter().zip(words(&inputs[1]));
        let elements = output.bytes().as_chunks_mut::<4>().0.iter_mut().zip(pairs);
        elements.for_each(|(to, (a, b))| *to = op(u32::from_ne_bytes(*a), u32::from_ne_bytes(*b)).to_ne_bytes());
    }

    fn of_truth(&self, inputs: &[Input<'_>], output: &mut Output<'_>) {
        let a = inputs[0].bytes();
        let b = inputs.get(1).map_or(a, Input::bytes);
        let op: fn(bool, bool) -> bool = match self.0 {
            Op::And => |a, b| a && b,
            Op::Or => |a, b| a || b,
            Op::Equal => |a, b| a == b,
            Op::NotEqual => |a, b| a != b,
            _ => |a, _| !a,
        };
        let elements = output.bytes().iter_mut().zip(a.iter().zip(b));
        elements.for_each(|(to, (&a, &b))| *to = op(a != 0, b != 0).into());
    }

    fn cast(input: &Input<'_>, output: &mut Output<'_>) {
        let (from, to) = (input.aval().dtype, output.aval().dtype);
        match (from == Dtype::Bool, to == Dtype::Bool) {
            (true, false) => {
                let numbers = output.bytes().as_chunks_mut::<4>().0.iter_mut();
                numbers.zip(input.bytes()).for_each(|(to, &from)| *to = u32::from(from != 0).to_ne_bytes());
            }
            (false, true) => {
                output.bytes().iter_mut().zip(words(input)).for_each(|(to, from)| *to = (*from != [0; 4]).into());
            }
            // Numbers of both kinds have 32 bits, and keep them.
            (true, true) | (false, false) => output.bytes().copy_from_slice(input.bytes()),
        }
    }
}

/// Elements of 32 bits, whatever they stand for.
fn words<'a>(input: &'a Input<'_>) -> &'a [[u8; 4]] {
    input.bytes().as_chunks().0
}

impl Stage for Integers {
    fn compute(&self, inputs: &[Input<'_>], output: &mut Output<'_>) -> Result<(), BoxError> {
        match (self.0, inputs[0].aval().dtype) {
            (Op::Cast, _) => Self::cast(&inputs[0], output),
            (Op::Select, _) => {
                let elements = output.bytes().as_chunks_mut::<4>().0.iter_mut().zip(inputs[0].bytes());
                let elements = elements.zip(words(&inputs[1]).iter().zip(words(&inputs[2])));
                elements.for_each(|((to, &first), (a, b))| *to = if first == 0 { *b } else { *a });
            }
            (Op::Add, _) => Self::wrapping(inputs, output, u32::wrapping_add),
            (Op::Subtract, _) => Self::wrapping(inputs, output, u32::wrapping_sub),
            (Op::Multiply, _) => Self::wrapping(inputs, output, u32::wrapping_mul),
            // As MLX, of the sign of the divisor. MLX ends the program where that is 0.
            (Op::Remainder, Dtype::Int32) => Self::wrapping(inputs, output, |a, b| {
                let (a, b) = (a.cast_signed(), b.cast_signed());
                let remainder = a.checked_rem(b).unwrap_or(0);
                (if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder }).cast_unsigned()
            }),
            (Op::Remainder, _) => Self::wrapping(inputs, output, |a, b| a.checked_rem(b).unwrap_or(0)),
            (_, Dtype::Bool) => self.of_truth(inputs, output),
            (_, Dtype::Int32) => self.ordered::<i32>(inputs, output)?,
            _ => self.ordered::<u32>(inputs, output)?,
        }
        Ok(())
    }
}
