//! What each node is to a plan.

use std::sync::Arc;

use mlx_rs::Array;
use tacit_core::kernel::Kernel;
use tacit_core::pass::{Nodes, Slot, runs_here};
use tacit_core::primitives as p;
use tacit_core::{Aval, Result, broadcast_source};
use tacit_kernels::Factors;

use crate::programs;

use super::arg_reduce::ArgReduce;
use super::indexed::{Added, Put, Taken};
use super::integers::Integers;
use super::lay::{Elements, Lay};
use super::product::Product;
use super::random::RandomBits;
use super::reduce::{Extreme, Sum, Truth};
use super::running::RunningSum;
use super::sorted::{ArgPartitioned, ArgSorted, Searched, Sorted};
use super::staged::{Stage, staged};
use super::steps::item;
use super::update::{Joined, Placed, PlacedAt, TakenAt};

/// A node of the graph, as far as plans know it.
pub(super) enum Read {
    /// It only says how its operand lies.
    Lay(Lay),
    /// A kernel computes it of all its operands.
    Stage(Arc<dyn Kernel>),
    /// A kernel of the other operands writes a part of the first one.
    Update(Arc<dyn Kernel>),
    /// A product, which takes its operands as they are stored.
    Product(Product),
    /// MLX computes it, for this reason.
    Other(Reason),
}

/// Why a node is none of a plan's, beside those that it names.
#[derive(Clone, Copy)]
pub(super) struct Reason(pub(super) &'static str);

impl Reason {
    pub(super) const ALONE: Self = Self("no other stage is beside it");
    pub(super) const AXES: Self = Self("no stage computes it of this dtype along these axes");
    pub(super) const DTYPES: Self = Self("no stage computes it of these dtypes");
    pub(super) const ELEMENTS: Self =
        Self("no stage computes it of these dtypes, and no program of these shapes, or of rows as long");
    pub(super) const ELSEWHERE: Self = Self("it runs on another device or stream");
    pub(super) const FUSED: Self =
        Self("MLX fused it while it was recorded; in a compiled function its ops are stages and programs");
    pub(super) const LIES: Self = Self("it only says how an array lies");
    pub(super) const PLACES: Self = Self("no stage computes it of these dtypes and places");
    pub(super) const REPEATED: Self = Self("an operand is broadcast or lies in steps, and MLX reads it where it is");
    pub(super) const TOGETHER: Self = Self("all processes compute it together");
    pub(super) const UNKNOWN: Self = Self("no stage computes it");
}

impl Read {
    pub(super) fn is_stage(&self) -> bool {
        !matches!(self, Self::Lay(_) | Self::Other(_))
    }
}

/// Where an operand comes from.
pub(super) enum Source {
    Value(Slot),
    /// An array that does not depend on what is traced.
    Constant(Array),
}

pub(super) fn source(nodes: &Nodes, node: usize, operand: usize) -> Result<Source> {
    Ok(match nodes.operands(node).nth(operand).flatten() {
        Some(slot) => Source::Value(slot),
        None => Source::Constant(nodes.operand(node, operand)?),
    })
}

pub(super) fn read(nodes: &Nodes) -> Result<Vec<Read>> {
    let mut read = Vec::with_capacity(nodes.len());
    for node in 0..nodes.len() {
        read.push(read_node(nodes, &read, node)?);
    }
    Ok(read)
}

/// What a node is, where those before it are known.
fn read_node(nodes: &Nodes, before: &[Read], node: usize) -> Result<Read> {
    let recorded = nodes.result(node)?;
    if !runs_here(&recorded)? {
        return Ok(Read::Other(Reason::ELSEWHERE));
    }
    let primitive = nodes.primitive(node)?;
    if let Some(kernel) = primitive.shared_kernel() {
        return Ok(Read::Stage(kernel));
    }
    let result = Aval::from(&recorded);
    let operand = |at: usize| Ok::<_, tacit_core::Error>(Aval::from(&nodes.operand(node, at)?));
    let count = nodes.operands(node).len();
    if count == 0 {
        return Ok(Read::Other(Reason::UNKNOWN));
    }
    Ok(match nodes.name(node) {
        "Transpose" => Read::Lay(Lay::transpose(&operand(0)?, &primitive.view::<p::Transpose>()?.axes)),
        "Slice" => {
            let slice = primitive.view::<p::Slice>()?;
            Read::Lay(Lay::slice(&operand(0)?, &slice.start_indices, &slice.strides, &result))
        }
        "Broadcast" if count == 1 => Read::Lay(Lay::broadcast(&operand(0)?, &result)),
        "Copy" | "ExpandDims" | "Flatten" | "Reshape" | "Squeeze" | "StopGradient" | "Unflatten" => {
            Read::Lay(Lay::same(&result))
        }
        name if name.starts_with("View") => {
            if item(&operand(0)?) == item(&result) {
                Read::Lay(Lay::same(&result))
            } else {
                Read::Other(Reason::DTYPES)
            }
        }
        "Concatenate" => {
            let axis = primitive.view::<p::Concatenate>()?.axis as usize;
            let parts = (0..count).map(operand).collect::<Result<Vec<_>>>()?;
            Read::Stage(staged(Joined::new(&parts, axis, &result), &result))
        }
        "SliceUpdate" => {
            let update = primitive.view::<p::SliceUpdate>()?;
            let placed = Placed::new(&operand(1)?, &update.start_indices, &update.strides, &result);
            updated(placed, &result, Reason::PLACES)
        }
        "DynamicSliceUpdate" => {
            let axes = primitive.view::<p::DynamicSliceUpdate>()?.axes;
            updated(PlacedAt::new(&operand(1)?, &operand(2)?, &axes, &result), &result, Reason::PLACES)
        }
        "DynamicSlice" => {
            let axes = primitive.view::<p::DynamicSlice>()?.axes;
            computed(TakenAt::new(&operand(0)?, &operand(1)?, &axes, &result), &result, Reason::PLACES)
        }
        "ArgReduce" => {
            let reduce = primitive.view::<p::ArgReduce>()?;
            let found = ArgReduce::new(&operand(0)?, &reduce.reduce_type, reduce.axis, &result);
            computed(found, &result, Reason::AXES)
        }
        "ArgPartition" => {
            let p::ArgPartition { kth, axis } = primitive.view()?;
            computed(ArgPartitioned::new(&operand(0)?, kth, axis), &result, Reason::DTYPES)
        }
        "ArgSort" => {
            let sorted = ArgSorted::new(&operand(0)?, primitive.view::<p::ArgSort>()?.axis);
            computed(sorted, &result, Reason::DTYPES)
        }
        "Sort" => computed(Sorted::new(&operand(0)?, primitive.view::<p::Sort>()?.axis), &result, Reason::DTYPES),
        "SearchSorted" => {
            let right = primitive.view::<p::SearchSorted>()?.right;
            computed(Searched::new(&operand(0)?, &operand(1)?, &result, right), &result, Reason::DTYPES)
        }
        "CumSum" => {
            let p::CumSum { axis, reverse, inclusive } = primitive.view()?;
            computed(RunningSum::new(&operand(0)?, axis, [reverse, inclusive], &result), &result, Reason::DTYPES)
        }
        "RandomBits" => computed(RandomBits::new(&operand(0)?, &result), &result, Reason::DTYPES),
        // MLX reads what is broadcast or lies in steps where it is, and a plan would copy it.
        "Gather" | "GatherAxis" | "Sum" | "Max" | "Min" | "And" | "Or" if !lies_together(nodes, before, node)? => {
            Read::Other(Reason::REPEATED)
        }
        "Gather" if count == 2 => {
            let gather = primitive.view::<p::Gather>()?;
            let rows = gather.axes == [0] && gather.slice_sizes[1..] == operand(0)?.shape[1..];
            let taken = if rows { Taken::rows(&operand(0)?, &operand(1)?, &result) } else { None };
            computed(taken, &result, Reason::PLACES)
        }
        "GatherAxis" => {
            let axis = primitive.view::<p::GatherAxis>()?.axis;
            computed(Taken::along(&operand(0)?, &operand(1)?, axis), &result, Reason::PLACES)
        }
        "Scatter" if count == 3 => {
            let rows = primitive.view::<p::Scatter>()?.axes == [0];
            let put = if rows { Put::rows(&result, &operand(1)?, &operand(2)?) } else { None };
            updated(put, &result, Reason::PLACES)
        }
        "ScatterAxis" => {
            let axis = primitive.view::<p::ScatterAxis>()?.axis;
            updated(Put::along(&result, &operand(1)?, axis), &result, Reason::PLACES)
        }
        "Scatter Sum" if count == 3 => {
            let rows = primitive.view::<p::ScatterSum>()?.axes == [0];
            let added = if rows { Added::rows(&result, &operand(1)?, &operand(2)?) } else { None };
            updated(added, &result, Reason::PLACES)
        }
        "ScatterAxis Sum" => {
            let axis = primitive.view::<p::ScatterAxisSum>()?.axis;
            updated(Added::along(&result, &operand(1)?, axis), &result, Reason::PLACES)
        }
        "Sum" => {
            let sum = Sum::new(&operand(0)?, &primitive.view::<p::Sum>()?.axes, &result);
            computed(sum, &result, Reason::AXES)
        }
        "Max" => {
            let extreme = Extreme::new(&operand(0)?, &primitive.view::<p::Max>()?.axes, true);
            computed(extreme, &result, Reason::AXES)
        }
        "Min" => {
            let extreme = Extreme::new(&operand(0)?, &primitive.view::<p::Min>()?.axes, false);
            computed(extreme, &result, Reason::AXES)
        }
        "And" => computed(Truth::new(&operand(0)?, &primitive.view::<p::And>()?.axes, true), &result, Reason::AXES),
        "Or" => computed(Truth::new(&operand(0)?, &primitive.view::<p::Or>()?.axes, false), &result, Reason::AXES),
        name @ ("Matmul" | "AddMM") => {
            let added = if name == "AddMM" {
                let p::AddMM { alpha, beta } = primitive.view()?;
                Some(Factors { alpha, beta })
            } else {
                None
            };
            match Product::new(&operand(0)?, &operand(1)?, added, &result) {
                Some(product) => shared(nodes, node, product)?.map_or(Read::Other(Reason::REPEATED), Read::Product),
                None => Read::Other(Reason::DTYPES),
            }
        }
        name if name.starts_with("Compiled") => Read::Other(Reason::FUSED),
        name => {
            let operands = (0..count).map(operand).collect::<Result<Vec<_>>>()?;
            let known = programs::has(name) || Integers::has(name);
            let reason = if known { Reason::ELEMENTS } else { Reason::UNKNOWN };
            computed(Integers::new(name, &operands, &result), &result, reason)
        }
    })
}

fn computed(stage: Option<impl Stage>, result: &Aval, reason: Reason) -> Read {
    stage.map_or(Read::Other(reason), |stage| Read::Stage(staged(stage, result)))
}

fn updated(stage: Option<impl Stage>, result: &Aval, reason: Reason) -> Read {
    stage.map_or(Read::Other(reason), |stage| Read::Update(staged(stage, result)))
}

/// Whether the first operand is no view whose elements would be copied.
fn lies_together(nodes: &Nodes, before: &[Read], node: usize) -> Result<bool> {
    Ok(match source(nodes, node, 0)? {
        Source::Constant(array) => broadcast_source(&array)?.size() == array.size(),
        Source::Value(slot) => match nodes.maker(slot).map(|maker| &before[maker]) {
            Some(Read::Lay(lay)) => matches!(lay.elements, Elements::From(_)),
            _ => true,
        },
    })
}

/// A product with matrices of which a batch shares some; none where MLX multiplies what is broadcast without making it.
fn shared(nodes: &Nodes, node: usize, product: Product) -> Result<Option<Product>> {
    let mut product = Some(product);
    for at in 0..2 {
        let operand = nodes.operand(node, at)?;
        if broadcast_source(&operand)?.size() == operand.size() {
            continue;
        }
        let maker = match source(nodes, node, at)? {
            Source::Value(slot) => nodes.maker(slot).filter(|&maker| nodes.name(maker) == "Broadcast"),
            Source::Constant(_) => None,
        };
        let Some(maker) = maker else { return Ok(None) };
        let from = nodes.operand(maker, 0)?;
        product = product.and_then(|product| product.sharing(at, from.shape(), operand.shape()));
    }
    Ok(product)
}
