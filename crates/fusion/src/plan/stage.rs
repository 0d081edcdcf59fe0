//! What each node is to a plan.

use std::sync::Arc;

use mlx_rs::{Array, Dtype};
use tacit_core::kernel::Kernel;
use tacit_core::pass::{Nodes, Slot, runs_here};
use tacit_core::primitives as p;
use tacit_core::{Aval, Result, broadcast_source};
use tacit_kernels::Factors;

use super::arg_reduce::ArgReduce;
use super::indexed::{Added, Taken};
use super::integers::Integers;
use super::lay::{Elements, Lay};
use super::product::Product;
use super::reduce::Sum;
use super::staged::staged;
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
    /// MLX computes it.
    Other,
}

impl Read {
    pub(super) fn is_stage(&self) -> bool {
        !matches!(self, Self::Lay(_) | Self::Other)
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
        read.push(read_node(nodes, &read, node)?.unwrap_or(Read::Other));
    }
    Ok(read)
}

/// What a node is, where those before it are known.
fn read_node(nodes: &Nodes, before: &[Read], node: usize) -> Result<Option<Read>> {
    let recorded = nodes.result(node)?;
    if !runs_here(&recorded)? {
        return Ok(None);
    }
    let primitive = nodes.primitive(node)?;
    if let Some(kernel) = primitive.shared_kernel() {
        return Ok(Some(Read::Stage(kernel)));
    }
    let result = Aval::from(&recorded);
    let operand = |at: usize| Ok::<_, tacit_core::Error>(Aval::from(&nodes.operand(node, at)?));
    let count = nodes.operands(node).len();
    if count == 0 {
        return Ok(None);
    }
    Ok(match nodes.name(node) {
        "Transpose" => Some(Read::Lay(Lay::transpose(&operand(0)?, &primitive.view::<p::Transpose>()?.axes))),
        "Slice" => {
            let slice = primitive.view::<p::Slice>()?;
            Some(Read::Lay(Lay::slice(&operand(0)?, &slice.start_indices, &slice.strides, &result)))
        }
        "Broadcast" if count == 1 => Some(Read::Lay(Lay::broadcast(&operand(0)?, &result))),
        "Copy" | "ExpandDims" | "Flatten" | "Reshape" | "Squeeze" | "StopGradient" | "Unflatten" => {
            Some(Read::Lay(Lay::same(&result)))
        }
        "Concatenate" => {
            let axis = primitive.view::<p::Concatenate>()?.axis as usize;
            let parts = (0..count).map(operand).collect::<Result<Vec<_>>>()?;
            Some(Read::Stage(staged(Joined::new(&parts, axis, &result), &result)))
        }
        "SliceUpdate" => {
            let update = primitive.view::<p::SliceUpdate>()?;
            let placed = Placed::new(&operand(1)?, &update.start_indices, &update.strides, &result);
            placed.map(|placed| Read::Update(staged(placed, &result)))
        }
        "DynamicSliceUpdate" => {
            let axes = primitive.view::<p::DynamicSliceUpdate>()?.axes;
            let placed = PlacedAt::new(&operand(1)?, &operand(2)?, &axes, &result);
            placed.map(|placed| Read::Update(staged(placed, &result)))
        }
        "DynamicSlice" => {
            let axes = primitive.view::<p::DynamicSlice>()?.axes;
            let taken = TakenAt::new(&operand(0)?, &operand(1)?, &axes, &result);
            taken.map(|taken| Read::Stage(staged(taken, &result)))
        }
        "ArgReduce" => {
            let reduce = primitive.view::<p::ArgReduce>()?;
            let found = ArgReduce::new(&operand(0)?, &reduce.reduce_type, reduce.axis, &result);
            found.map(|found| Read::Stage(staged(found, &result)))
        }
        // MLX reads what is broadcast or lies in steps where it is, and a plan would copy it.
        "Gather" if count == 2 && lies_together(nodes, before, node)? => {
            let gather = primitive.view::<p::Gather>()?;
            let rows = gather.axes == [0] && gather.slice_sizes[1..] == operand(0)?.shape[1..];
            let taken = if rows { Taken::rows(&operand(0)?, &operand(1)?, &result) } else { None };
            taken.map(|taken| Read::Stage(staged(taken, &result)))
        }
        "GatherAxis" if lies_together(nodes, before, node)? => {
            let axis = primitive.view::<p::GatherAxis>()?.axis;
            let taken = Taken::along(&operand(0)?, &operand(1)?, axis);
            taken.map(|taken| Read::Stage(staged(taken, &result)))
        }
        "Scatter Sum" if count == 3 => {
            let axes = primitive.view::<p::ScatterSum>()?.axes;
            let added = if axes == [0] { Added::rows(&result, &operand(1)?, &operand(2)?) } else { None };
            added.map(|added| Read::Update(staged(added, &result)))
        }
        "ScatterAxis Sum" => {
            let axis = primitive.view::<p::ScatterAxisSum>()?.axis;
            let added = Added::along(&result, &operand(1)?, axis);
            added.map(|added| Read::Update(staged(added, &result)))
        }
        "Sum" if lies_together(nodes, before, node)? => {
            let sum = Sum::new(&operand(0)?, &primitive.view::<p::Sum>()?.axes, &result);
            sum.map(|sum| Read::Stage(staged(sum, &result)))
        }
        // MLX multiplies what is broadcast without making it.
        "Matmul" if result.dtype == Dtype::Float32 && !is_repeated(nodes, node)? => {
            Some(Read::Product(Product::new(&operand(0)?, &operand(1)?, None)))
        }
        "AddMM" if result.dtype == Dtype::Float32 && !is_repeated(nodes, node)? => {
            let p::AddMM { alpha, beta } = primitive.view::<p::AddMM>()?;
            Some(Read::Product(Product::new(&operand(0)?, &operand(1)?, Some(Factors { alpha, beta }))))
        }
        name => {
            let operands = (0..count).map(operand).collect::<Result<Vec<_>>>()?;
            Integers::new(name, &operands, &result).map(|integers| Read::Stage(staged(integers, &result)))
        }
    })
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

/// Whether a factor is broadcast.
fn is_repeated(nodes: &Nodes, node: usize) -> Result<bool> {
    for at in 0..2 {
        let operand = nodes.operand(node, at)?;
        if broadcast_source(&operand)?.size() != operand.size() {
            return Ok(true);
        }
    }
    Ok(false)
}
