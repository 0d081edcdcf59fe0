//! The program of a group.

use std::collections::HashMap;

use mlx_rs::Dtype;
use tacit_core::pass::{Slot, scalar_value};
use tacit_core::{Aval, Result};
use tacit_kernels::program::{Kind, Map, Op, Precision, Program, Source, Step, Value};

use super::groups::Groups;
use super::node::{Base, Computes, Node, Operand};
use super::view::{Domain, Role};

/// Bytes that a thread may work in. Rows of a megabyte, as the logits of large vocabularies are, leave the second-level cache, and
/// are still computed several times faster than by MLX, an element at a time; longer ones would take memory that nobody counts.
const WORKING_SET: usize = 16 << 20;

/// A program, and what it takes and makes in the graph.
pub(super) struct Built {
    pub(super) program: Program,
    pub(super) inputs: Vec<Base>,
    pub(super) results: Vec<(Slot, Aval)>,
    pub(super) members: usize,
}

/// The program of a group that writes what is `needed`; none where it would be one that does not pay.
pub(super) fn build(
    read: &[Option<Node>],
    groups: &Groups,
    group: usize,
    needed: &dyn Fn(Slot) -> bool,
) -> Result<Option<Built>> {
    let mut builder = Builder { domain: groups.domain(group), ..Builder::default() };
    let mut results = Vec::new();
    for &member in groups.members(group) {
        let Some(node) = &read[member] else { continue };
        let Some(values) = builder.node(node)? else { return Ok(None) };
        if let [value] = values[..] {
            builder.results.insert(node.result.index(), value);
        }
        if needed(node.result) {
            let role = builder.domain.role(node.size()).unwrap_or(Role::Each);
            let whole = |value| if role == Role::Each { builder.spread(value) } else { value };
            let values: Vec<Number> = values.into_iter().map(whole).collect();
            results.push((node.result, Aval::new(&node.shape, node.dtype), values));
        }
    }
    let written: Option<Vec<(Vec<Value>, Kind)>> = results
        .iter()
        .map(|(_, aval, values)| Some((values.iter().map(|&value| builder.number(value)).collect(), kind(aval.dtype)?)))
        .collect();
    let Some(written) = written else { return Ok(None) };
    let Builder { domain, sources, inputs, constants, steps, .. } = &builder;
    let size = [domain.rows(), domain.columns.unwrap_or(domain.elements)];
    let numbered: Vec<Step> = steps
        .iter()
        .map(|&(op, operands, precision)| {
            let operands = operands.map(|operand| builder.number(operand));
            Step { op, operands, precision }
        })
        .collect();
    let program = Program::joining(size, sources.clone(), constants, &numbered, &written)
        .map_err(|error| tacit_core::Error::Invalid { message: error.to_string(), help: None })?;
    if program.working_set() > WORKING_SET {
        return Ok(None);
    }
    let results = results.into_iter().map(|(slot, aval, _)| (slot, aval)).collect();
    Ok(Some(Built { program, inputs: inputs.clone(), results, members: groups.members(group).len() }))
}

pub(super) fn kind(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::Float32 => Kind::F32,
        Dtype::Float16 => Kind::F16,
        Dtype::Bfloat16 => Kind::Bf16,
        Dtype::Bool => Kind::Bool,
        Dtype::Int32 => Kind::I32,
        Dtype::Uint32 => Kind::U32,
        _ => return None,
    })
}

/// The type that a node computes in; truth needs no rounding.
fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::Float16 => Precision::F16,
        Dtype::Bfloat16 => Precision::Bf16,
        _ => Precision::Single,
    }
}

/// A value before all inputs and constants are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Number {
    Input(usize),
    Constant(usize),
    Step(usize),
}

#[derive(Default)]
struct Builder {
    domain: Domain,
    sources: Vec<Source>,
    inputs: Vec<Base>,
    constants: Vec<f32>,
    steps: Vec<(Op, [Number; 3], Precision)>,
    /// Whether a step has a number for each element.
    wide: Vec<bool>,
    known: HashMap<((bool, usize), Map), usize>,
    /// The value of each member's result.
    results: HashMap<usize, Number>,
}

impl Builder {
    fn number(&self, number: Number) -> Value {
        match number {
            Number::Input(at) => at,
            Number::Constant(at) => self.sources.len() + at,
            Number::Step(at) => self.sources.len() + self.constants.len() + at,
        }
    }

    fn is_wide(&self, number: Number) -> bool {
        match number {
            Number::Input(at) => self.sources[at].map.is_wide(),
            Number::Constant(_) => false,
            Number::Step(at) => self.wide[at],
        }
    }

    /// The value as one of each element.
    fn spread(&mut self, number: Number) -> Number {
        if self.is_wide(number) { number } else { self.step(Op::Spread, &[number]) }
    }

    fn constant(&mut self, value: f32) -> Number {
        let known = self.constants.iter().position(|constant| constant.to_bits() == value.to_bits());
        Number::Constant(known.unwrap_or_else(|| {
            self.constants.push(value);
            self.constants.len() - 1
        }))
    }

    /// A step in single precision.
    fn step(&mut self, op: Op, operands: &[Number]) -> Number {
        self.rounded(op, operands, Precision::Single)
    }

    fn rounded(&mut self, op: Op, operands: &[Number], precision: Precision) -> Number {
        let mut padded = [operands[0]; 3];
        padded[..operands.len()].copy_from_slice(operands);
        let wide = op == Op::Spread || !op.is_reduction() && operands.iter().any(|&operand| self.is_wide(operand));
        self.steps.push((op, padded, precision));
        self.wide.push(wide);
        Number::Step(self.steps.len() - 1)
    }

    fn operand(&mut self, operand: &Operand, role: Role) -> Result<Option<Number>> {
        if let Base::Value(slot) = operand.base
            && let Some(&number) = self.results.get(&slot.index())
        {
            return Ok(Some(number));
        }
        if let Base::Constant(array) = &operand.base
            && array.size() == 1
            && let Some(value) = scalar_value(array)?
        {
            return Ok(Some(self.constant(value as f32)));
        }
        let (Some(map), Some(kind)) = (operand.view.map(role, self.domain), kind(operand.dtype)) else {
            return Ok(None);
        };
        let key = (operand.base.key(), map);
        if let Some(&known) = self.known.get(&key) {
            return Ok(Some(Number::Input(known)));
        }
        self.sources.push(Source { kind, map });
        self.inputs.push(operand.base.clone());
        self.known.insert(key, self.sources.len() - 1);
        Ok(Some(Number::Input(self.sources.len() - 1)))
    }

    /// The steps of a node: the values of a row of its result; none where an operand cannot be had.
    fn node(&mut self, node: &Node) -> Result<Option<Vec<Number>>> {
        let role = if node.is_reduction() { Role::Each } else { self.domain.role(node.size()).unwrap_or(Role::Each) };
        let mut from = Vec::with_capacity(node.operands.len());
        for operand in &node.operands {
            let Some(number) = self.operand(operand, role)? else { return Ok(None) };
            from.push(number);
        }
        // Each node is rounded to its own dtype, as where it is run by itself, also where what follows stays in registers.
        let node_precision = precision(node.dtype);
        let value = match node.computes {
            Computes::Join => return Ok(Some(from)),
            Computes::Op(op) if op.is_reduction() => {
                let row = self.spread(from[0]);
                self.rounded(op, &[row], node_precision)
            }
            Computes::Op(Op::Power) => self.power(&from, node_precision),
            Computes::Op(op) => self.rounded(op, &from, node_precision),
            Computes::Swapped(op) => self.step(op, &[from[1], from[0]]),
            Computes::Cast => match node.dtype {
                Dtype::Float16 | Dtype::Bfloat16 => self.rounded(Op::Copy, &from, node_precision),
                Dtype::Bool => self.step(Op::NotZero, &from),
                _ => from[0],
            },
            // One op each, which computes in `f32` inside and is rounded at its end.
            Computes::Softmax => {
                let row = self.spread(from[0]);
                let (weights, sum, _) = self.weights(row);
                let one = self.constant(1.0);
                let factor = self.step(Op::Divide, &[one, sum]);
                self.rounded(Op::Multiply, &[weights, factor], node_precision)
            }
            Computes::LogAddExp => self.log_add_exp([from[0], from[1]], node_precision),
            Computes::LogSumExp => {
                let row = self.spread(from[0]);
                let (_, sum, maximum) = self.weights(row);
                let log = self.step(Op::Log, &[sum]);
                let value = self.rounded(Op::Add, &[log, maximum], node_precision);
                // An infinity less itself is no number.
                let magnitude = self.step(Op::Abs, &[maximum]);
                let infinity = self.constant(f32::INFINITY);
                let infinite = self.step(Op::Equal, &[magnitude, infinity]);
                self.step(Op::Select, &[infinite, maximum, value])
            }
        };
        Ok(Some(vec![value]))
    }

    /// `log(e^a + e^b)`, as the greater one and what the other adds to it.
    fn log_add_exp(&mut self, [a, b]: [Number; 2], precision: Precision) -> Number {
        let (maximum, minimum) = (self.step(Op::Maximum, &[a, b]), self.step(Op::Minimum, &[a, b]));
        let shifted = self.step(Op::Subtract, &[minimum, maximum]);
        let weight = self.step(Op::Exp, &[shifted]);
        let added = self.step(Op::Log1p, &[weight]);
        let value = self.rounded(Op::Add, &[maximum, added], precision);
        // An infinity less itself is no number.
        let (infinity, none) = (self.constant(f32::INFINITY), self.constant(f32::NEG_INFINITY));
        let (above, below) = (self.step(Op::Equal, &[maximum, infinity]), self.step(Op::Equal, &[minimum, none]));
        let infinite = self.step(Op::Or, &[above, below]);
        self.step(Op::Select, &[infinite, maximum, value])
    }

    /// `e^(x - m)` with the greatest `m` of each row, their sum, and `m`.
    fn weights(&mut self, row: Number) -> (Number, Number, Number) {
        let maximum = self.step(Op::Max, &[row]);
        let shifted = self.step(Op::Subtract, &[row, maximum]);
        let weights = self.step(Op::Exp, &[shifted]);
        let sum = self.step(Op::Sum, &[weights]);
        (weights, sum, maximum)
    }

    /// Small whole powers as products.
    fn power(&mut self, from: &[Number], precision: Precision) -> Number {
        let exponent = if let Number::Constant(at) = from[1] { Some(self.constants[at]) } else { None };
        match exponent {
            Some(2.0) => self.rounded(Op::Square, &from[..1], precision),
            Some(3.0) => {
                let square = self.step(Op::Square, &from[..1]);
                self.rounded(Op::Multiply, &[square, from[0]], precision)
            }
            _ => self.rounded(Op::Power, from, precision),
        }
    }
}
