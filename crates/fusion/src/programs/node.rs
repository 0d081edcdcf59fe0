//! The nodes that a program can stand for, and what their operands are.

use mlx_rs::{Array, Dtype};
use tacit_core::pass::{Nodes, Slot, runs_here};
use tacit_core::primitives as p;
use tacit_core::{Param, Result, array_id, broadcast_source};
use tacit_kernels::program::Op;

use super::view::{Domain, View};

/// Columns of rows that a program reads or writes beside others, at least: shorter ones are not worth a loop for each row.
const LEAST: i32 = 2;

/// And of a row of which it reads some, for each of these, at most: the whole array may have to be copied for it.
const MOST: i32 = 8;

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
    /// Nothing: the rows of its operands are side by side in those of the result.
    Join,
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
        .map(|node| match nodes.name(node) {
            "Concatenate" => read_join(nodes, node),
            name => computes(name).map_or(Ok(None), |computes| read_node(nodes, node, computes)),
        })
        .collect()
}

/// A concatenation of values of one shape along their last axis.
fn read_join(nodes: &Nodes, node: usize) -> Result<Option<Node>> {
    let (recorded, first) = (nodes.result(node)?, nodes.operand(node, 0)?);
    let (shape, dtype) = (recorded.shape().to_vec(), recorded.dtype());
    let axis = nodes.primitive(node)?.view::<p::Concatenate>()?.axis as usize;
    let (Some(result), Some(&columns)) = (nodes.results(node).next(), first.shape().last()) else { return Ok(None) };
    if axis + 1 != shape.len() || columns < LEAST || recorded.size() == 0 || !runs_here(&recorded)? {
        return Ok(None);
    }
    let mut operands = Vec::with_capacity(nodes.operands(node).len());
    for (at, slot) in nodes.operands(node).enumerate() {
        let Some(slot) = slot else { return Ok(None) };
        if nodes.operand(node, at)?.shape() != first.shape() {
            return Ok(None);
        }
        operands.push(Operand { base: Base::Value(slot), view: View::Same, dtype });
    }
    let domain = Domain { elements: first.size(), columns: Some(columns as usize) };
    Ok(Some(Node { computes: Computes::Join, operands, result, shape, dtype, domain }))
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
    let all_operands = |test: &dyn Fn(Dtype) -> bool| operands.iter().all(|operand| test(operand.dtype));
    match computes {
        Computes::Cast => {
            all_operands(&|dtype| is_float(dtype) || matches!(dtype, Dtype::Bool | Dtype::Int32 | Dtype::Uint32))
        }
        Computes::Op(Op::Select) => {
            operands[0].dtype == Dtype::Bool && operands[1..].iter().all(|operand| operand.dtype == result)
        }
        Computes::Op(Op::And | Op::Or | Op::Not | Op::Equal | Op::NotEqual) => {
            all_operands(&|dtype| is_float(dtype) || dtype == Dtype::Bool)
        }
        Computes::Op(Op::Less | Op::LessEqual) | Computes::Swapped(_) => all_operands(&is_float),
        _ => is_float(result) && all_operands(&is_float),
    }
}

/// An operand behind reshapes, at most one broadcast or slice, and reshapes again.
fn operand(nodes: &Nodes, node: usize, at: usize) -> Result<Operand> {
    let array = nodes.operand(node, at)?;
    let dtype = array.dtype();
    let Some(mut slot) = nodes.operands(node).nth(at).flatten() else {
        let base = broadcast_source(&array)?;
        let view = view(base.shape(), array.shape());
        return Ok(Operand { base: Base::Constant(base), view, dtype });
    };
    let mut view_of = View::Same;
    while let Some(maker) = nodes.maker(slot) {
        view_of = match nodes.name(maker) {
            name if keeps_order(name) => view_of,
            "Broadcast" if view_of == View::Same => {
                view(nodes.operand(maker, 0)?.shape(), nodes.result(maker)?.shape())
            }
            "Slice" if view_of == View::Same => match part(nodes, maker, array.shape())? {
                Some(part) => part,
                None => break,
            },
            _ => break,
        };
        let Some(next) = nodes.operands(maker).next().flatten() else {
            // Behind it lies what does not belong to the trace; a second broadcast stays a node.
            let source = nodes.operand(maker, 0)?;
            return Ok(Operand { base: Base::Constant(source), view: view_of, dtype });
        };
        slot = next;
    }
    Ok(Operand { base: Base::Value(slot), view: view_of, dtype })
}

/// What a slice is to an op that sees it in `shape`: some columns of several rows, which are rows there too.
fn part(nodes: &Nodes, slice: usize, shape: &[i32]) -> Result<Option<View>> {
    let (source, result) = (nodes.operand(slice, 0)?, nodes.result(slice)?);
    let p::Slice { start_indices, strides, .. } = nodes.primitive(slice)?.view()?;
    let (Some((of, rows)), Some((columns, own_rows)), Some(first)) =
        (source.shape().split_last(), result.shape().split_last(), start_indices.last())
    else {
        return Ok(None);
    };
    let cuts_columns = rows == own_rows && shape.last() == Some(columns) && strides.iter().all(|&stride| stride == 1);
    // The columns of a single row lie together, and are read as any other array.
    if !cuts_columns || size(rows) < 2 || *columns < LEAST || *of > MOST.saturating_mul(*columns) {
        return Ok(None);
    }
    Ok(Some(View::Part { first: *first as usize, columns: *columns as usize, of: *of as usize }))
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
