//! What a result may differ by, as a pass over its graph: each op that passes compute in another way is made to err.
//!
//! A graph of random ops has no error bound that is worth writing down. Its results are computed again with the error that
//! is granted to each single op put into it: a few units in the last place of an elementary function, a unit for each term
//! of a sum. What comes of it at the end is what a result may be off.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::pass::{Graph, Nodes, Slot};
use tacit_core::{Result, array_id};

use super::draw::Rng;

/// How near a result is to what another pass makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// The same bits.
    Exact,
    /// The error that its ops are granted comes through.
    Near,
    /// It may be anything: a rounding or a comparison decides over it.
    Any,
}

tacit_core::register_pass!("perturbed", 1000, run);

thread_local! {
    /// The seed of the errors; without one the pass does nothing.
    static ARMED: Cell<Option<u64>> = const { Cell::new(None) };
    static CLASSES: RefCell<Vec<Class>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, whose compiled functions err where the pass `perturbed` is chosen, and gives the classes of the results of the
/// graph that was rewritten last; nothing where there was none.
pub(crate) fn armed<R>(seed: u64, f: impl FnOnce() -> R) -> (R, Vec<Class>) {
    CLASSES.take();
    ARMED.set(Some(seed));
    let result = f();
    ARMED.set(None);
    (result, CLASSES.take())
}

/// What passes compute otherwise than MLX: in another order, or by other approximations.
const NEAR: [&str; 24] = [
    "AddMM",
    "BlockMaskedMM",
    "Convolution",
    "Cos",
    "Erf",
    "Exp",
    "Expm1",
    "GatherMM",
    "Log",
    "Log1p",
    "LogAddExp",
    "LogSumExp",
    "Matmul",
    "Power",
    "QuantizedMatmul",
    "GatherQMM",
    "SegmentedMM",
    "Sigmoid",
    "Sin",
    "Softmax",
    "Sum",
    "Tanh",
    "Reduce",
    "LayerNorm",
];

/// What turns a small error into any other number, by the beginning of the name.
const JUMPS: [&str; 41] = [
    "ArgPartition",
    "ArgReduce",
    "ArgSort",
    "ArgMax",
    "ArgMin",
    "BitwiseBinary",
    "Bitwise",
    "Ceil",
    "Cholesky",
    "CumMax",
    "CumMin",
    "DivMod",
    "Eig",
    "Eigh",
    "Equal",
    "ErfInv",
    "Floor",
    "Greater",
    "Inverse",
    "LUF",
    "LeftShift",
    "Less",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "NaNEqual",
    "NotEqual",
    "Partition",
    "QRF",
    "Quantize",
    "RandomBits",
    "Remainder",
    "RightShift",
    "Round",
    "SVD",
    "SearchSorted",
    "Sign",
    "Tan",
    "ToFp8",
    "View",
    "fast::Quantize",
];

fn run(graph: &mut Graph) -> Result<usize> {
    let Some(seed) = ARMED.get() else { return Ok(0) };
    let mut rng = Rng::new(seed);
    let mut nodes = graph.nodes()?;
    let mut classes = vec![Class::Exact; nodes.values()];
    let mut slots = HashMap::new();
    let mut erring = Vec::new();
    for node in 0..nodes.len() {
        let worst = nodes.operands(node).flatten().map(|slot| classes[slot.index()]).max().unwrap_or(Class::Exact);
        let own = own_class(&nodes, node, worst)?;
        for slot in nodes.results(node) {
            classes[slot.index()] = worst.max(own);
            slots.insert(array_id(&nodes.current(slot)?), slot);
        }
        if own == Class::Near {
            erring.push(node);
        }
    }
    let of_output =
        |array: &Array| slots.get(&array_id(array)).map_or(Class::Exact, |slot: &Slot| classes[slot.index()]);
    CLASSES.set(graph.outputs().iter().map(of_output).collect());
    for &node in &erring {
        let erred: Vec<(Slot, Option<Array>)> = nodes
            .results(node)
            .map(|slot| Ok((slot, with_error(&nodes, node, &nodes.current(slot)?, &mut rng)?)))
            .collect::<Result<_>>()?;
        for (slot, array) in erred {
            if let Some(array) = array {
                nodes.replace(slot, array);
            }
        }
    }
    graph.rewire(nodes)?;
    Ok(erring.len())
}

fn own_class(nodes: &Nodes, node: usize, operands: Class) -> Result<Class> {
    let name = nodes.name(node);
    // The sign and the payload of a NaN are nobody's.
    if name.starts_with("View") {
        return Ok(Class::Any);
    }
    if operands > Class::Exact {
        let to_whole = name == "AsType" && !nodes.result(node)?.dtype().is_inexact();
        if to_whole || JUMPS.iter().any(|jumps| name.starts_with(jumps)) {
            return Ok(Class::Any);
        }
    }
    Ok(if NEAR.contains(&name) { Class::Near } else { Class::Exact })
}

/// The unit in the last place of 1.
pub(crate) fn unit(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Bfloat16 => 2f32.powi(-7),
        Dtype::Float16 => 2f32.powi(-10),
        _ => 2f32.powi(-23),
    }
}

/// Sums of `n` terms in two orders are `n` units of the sum of their magnitudes apart, at most; of this an eighth is put in,
/// because eight times what comes of it is granted.
const SHARE: f32 = 0.125;

/// A result with the error that is granted to its op.
fn with_error(nodes: &Nodes, node: usize, result: &Array, rng: &mut Rng) -> Result<Option<Array>> {
    let dtype = result.dtype();
    if !dtype.is_float() || result.size() == 0 {
        return Ok(None);
    }
    let size = result.size();
    let signs: Vec<f32> = (0..size).map(|_| if rng.below(2) == 0 { 1.0 } else { -1.0 }).collect();
    let signs = Array::from_slice(&signs, result.shape());
    let wide = result.as_dtype(Dtype::Float32)?;
    let unit = unit(dtype);
    let first = nodes.operand(node, 0)?;
    let granted = match nodes.name(node) {
        "Sum" => {
            let terms = (first.size() / size).max(1) as f32;
            largest(&first)?.multiply(Array::from_f32(SHARE * terms * terms * unit))?
        }
        "Matmul" | "AddMM" | "GatherMM" | "SegmentedMM" | "BlockMaskedMM" | "Convolution" => {
            let at = usize::from(nodes.name(node) == "AddMM");
            let (a, b) = (nodes.operand(node, at)?, nodes.operand(node, at + 1)?);
            let terms = a.shape().last().copied().unwrap_or(1).max(1) as f32;
            largest(&a)?.multiply(largest(&b)?)?.multiply(Array::from_f32(SHARE * terms * terms * unit))?
        }
        // MLX's polynomial has an absolute error, also near zero.
        "Erf" => wide.abs()?.add(Array::from_f32(1.0))?.multiply(Array::from_f32(2.0 * unit))?,
        "LogSumExp" => ops::maximum(wide.abs()?, Array::from_f32(1.0))?.multiply(Array::from_f32(8.0 * unit))?,
        // The halves' elementary functions are rounded `f32`: the neighbor at most.
        _ => wide.abs()?.multiply(Array::from_f32(if dtype == Dtype::Float32 { 8.0 * unit } else { unit }))?,
    };
    // What is less than a unit of the result would be rounded away.
    let granted = ops::maximum(granted, wide.abs()?.multiply(Array::from_f32(unit))?)?;
    Ok(Some(wide.add(granted.multiply(signs)?)?.as_dtype(dtype)?))
}

/// The largest finite magnitude.
fn largest(array: &Array) -> Result<Array, Exception> {
    if array.size() == 0 {
        return Ok(Array::from_f32(0.0));
    }
    let magnitudes = array.as_dtype(Dtype::Float32)?.abs()?;
    ops::select(&magnitudes.is_finite()?, &magnitudes, Array::from_f32(0.0))?.max(None)
}
