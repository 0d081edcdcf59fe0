//! The nodes that a program can stand for, and what their operands are.

use mlx_rs::{Array, Dtype};
use tacit_core::pass::{Nodes, Slot, runs_here};
use tacit_core::{Param, Result, array_id, broadcast_source};
use tacit_kernels::program::Op;

use super::view::{Domain, View};

/// What a node computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Computes {
    Op(Op),
    /// An op of its operands the other way round.
    Swapped(Op),
    /// A conversion to the dtype of the result.
    Cast,
    Softmax,
    LogAddExp,
    LogSumExp,
}

/// Where the numbers of an operand come from.
#[derive(Clone, Debug)]
pub(super) enum Base {
    Value(Slot),
    /// An array that does not depend on what is traced.
    Constant(Array),
}

impl Base {
    /// What tells bases apart.
    pub(super) fn key(&self) -> (bool, usize) {
        match self {
            Self::Value(slot) => (true, slot.index()),
            Self::Constant(array) => (false, array_id(array)),
        }
    }
}

/// An operand behind its views.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) base: Base,
    pub(super) view: View,
    pub(super) dtype: Dtype,
}

/// A node that a program can stand for.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) computes: Computes,
    pub(super) operands: Vec<Operand>,
    pub(super) result: Slot,
    pub(super) shape: Vec<i32>,
    pub(super) dtype: Dtype,
    /// The domain that it needs: that of its operand where it reduces rows.
    pub(super) domain: Domain,
}

impl Node {
    pub(super) fn is_reduction(&self) -> bool {
        match self.computes {
            Computes::Op(op) => op.is_reduction(),
            Computes::LogSumExp => true,
            _ => false,
        }
    }

    pub(super) fn size(&self) -> usize {
        size(&self.shape)
    }
}

fn size(shape: &[i32]) -> usize {
    shape.iter().map(|&extent| extent as usize).product()
}

/// The primitives of MLX that programs have, by name.
pub(super) fn computes(name: &str) -> Option<Computes> {
    Some(Computes::Op(match name {
        "Abs" => Op::Abs,
        "Add" => Op::Add,
        "AsType" => return Some(Computes::Cast),
        "Ceil" => Op::Ceil,
        "Cos" => Op::Cos,
        "Divide" => Op::Divide,
        "Equal" => Op::Equal,
        "Erf" => Op::Erf,
        "ErfInv" => Op::ErfInv,
        "Exp" => Op::Exp,
        "Expm1" => Op::Expm1,
        "Floor" => Op::Floor,
        "Greater" => return Some(Computes::Swapped(Op::Less)),
        "GreaterEqual" => return Some(Computes::Swapped(Op::LessEqual)),
        "Less" => Op::Less,
        "LessEqual" => Op::LessEqual,
        "Log" => Op::Log,
        "Log1p" => Op::Log1p,
        "LogAddExp" => return Some(Computes::LogAddExp),
        "LogSumExp" => return Some(Computes::LogSumExp),
        "LogicalAnd" => Op::And,
        "LogicalNot" => Op::Not,
        "LogicalOr" => Op::Or,
        "Max" => Op::Max,
        "Maximum" => Op::Maximum,
        "Min" => Op::Min,
        "Minimum" => Op::Minimum,
        "Multiply" => Op::Multiply,
        "Negative" => Op::Negate,
        "NotEqual" => Op::NotEqual,
        "Power" => Op::Power,
        "Round" => Op::Round,
        "Rsqrt" => Op::Rsqrt,
        "Select" => Op::Select,
        "Sigmoid" => Op::Sigmoid,
        "Sign" => Op::Sign,
        "Sin" => Op::Sin,
        "Softmax" => return Some(Computes::Softmax),
        "Sqrt" => Op::Sqrt,
        "Square" => Op::Square,
        "Subtract" => Op::Subtract,
        "Sum" => Op::Sum,
        "Tanh" => Op::Tanh,
        _ => return None,
    }))
}

/// Whether a node's result has the elements of its first operand, in the same order.
pub(crate) fn keeps_order(name: &str) -> bool {
    matches!(
        name,
        "Contiguous"
            | "Copy"
            | "ExpandDims"
            | "Flatten"
            | "Full"
            | "Reshape"
            | "Squeeze"
            | "StopGradient"
            | "Unflatten"
    )
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16)
}

/// Each node of a graph that a program can stand for.
pub(super) fn read(nodes: &Nodes) -> Result<Vec<Option<Node>>> {
    (0..nodes.len())
        .map(|node| match computes(nodes.name(node)) {
            Some(computes) => read_node(nodes, node, computes),
            None => Ok(None),
        })
        .collect()
}

fn read_node(nodes: &Nodes, node: usize, computes: Computes) -> Result<Option<Node>> {
    let recorded = nodes.result(node)?;
    let (shape, dtype) = (recorded.shape().to_vec(), recorded.dtype());
    let Some(result) = nodes.results(node).next() else { return Ok(None) };
    if recorded.size() == 0 || !is_float(dtype) && dtype != Dtype::Bool || !runs_here(&recorded)? {
        return Ok(None);
    }
    let mut operands = Vec::with_capacity(nodes.operands(node).len());
    for at in 0..nodes.operands(node).len() {
        operands.push(operand(nodes, node, at)?);
    }
    if !takes(computes, &operands, dtype) {
        return Ok(None);
    }
    let first = nodes.operand(node, 0)?;
    let columns = first.shape().last().map_or(1, |&extent| extent as usize);
    let rowwise = match computes {
        Computes::Op(op) if op.is_reduction() => {
            let axes = nodes.primitive(node)?.params()?;
            let last = first.shape().len() as i64 - 1;
            if columns < 2 || !matches!(axes.first(), Some(Param::Ints(axes)) if axes[..] == [last]) {
                return Ok(None);
            }
            true
        }
        Computes::LogSumExp | Computes::Softmax => true,
        _ => false,
    };
    let domain = if rowwise {
        Domain { elements: first.size(), columns: Some(columns) }
    } else {
        Domain { elements: recorded.size(), columns: None }
    };
    // Rows of which a reduction sees another broadcast than its own are left to MLX.
    if rowwise && operands.iter().any(|operand| operand.view.columns().is_some_and(|seen| seen != columns)) {
        return Ok(None);
    }
    Ok(Some(Node { computes, operands, result, shape, dtype, domain }))
}

/// Whether a program computes this on such dtypes.
fn takes(computes: Computes, operands: &[Operand], result: Dtype) -> bool {
    let all = |test: &dyn Fn(Dtype) -> bool| operands.iter().all(|operand| test(operand.dtype));
    match computes {
        Computes::Cast => all(&|dtype| is_float(dtype) || matches!(dtype, Dtype::Bool | Dtype::Int32 | Dtype::Uint32)),
        Computes::Op(Op::Select) => {
            operands[0].dtype == Dtype::Bool && operands[1..].iter().all(|operand| operand.dtype == result)
        }
        Computes::Op(Op::And | Op::Or | Op::Not | Op::Equal | Op::NotEqual) => {
            all(&|dtype| is_float(dtype) || dtype == Dtype::Bool)
        }
        Computes::Op(Op::Less | Op::LessEqual) | Computes::Swapped(_) => all(&is_float),
        _ => is_float(result) && all(&is_float),
    }
}

/// An operand behind reshapes, at most one broadcast, and reshapes again.
fn operand(nodes: &Nodes, node: usize, at: usize) -> Result<Operand> {
    let seen = nodes.operand(node, at)?;
    let dtype = seen.dtype();
    let Some(mut slot) = nodes.operands(node).nth(at).flatten() else {
        let base = broadcast_source(&seen)?;
        let view = view(base.shape(), seen.shape());
        return Ok(Operand { base: Base::Constant(base), view, dtype });
    };
    let mut view_of = View::Same;
    while let Some(maker) = nodes.maker(slot) {
        let name = nodes.name(maker);
        let broadcast = name == "Broadcast" && view_of == View::Same;
        if !keeps_order(name) && !broadcast {
            break;
        }
        let source = nodes.operand(maker, 0)?;
        if broadcast {
            view_of = view(source.shape(), nodes.result(maker)?.shape());
        }
        match nodes.operands(maker).next().flatten() {
            Some(next) => slot = next,
            None => {
                // Behind it lies what does not belong to the trace; a second broadcast stays a node.
                return Ok(Operand { base: Base::Constant(source), view: view_of, dtype });
            }
        }
    }
    Ok(Operand { base: Base::Value(slot), view: view_of, dtype })
}

fn view(from: &[i32], to: &[i32]) -> View {
    if size(from) == size(to) {
        View::Same
    } else if size(from) == 1 {
        View::Scalar
    } else {
        View::Broadcast { from: from.to_vec(), to: to.to_vec() }
    }
}
