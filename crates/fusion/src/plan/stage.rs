//! What each node of a graph is to a plan: a stage, a view of another array, or an op that MLX computes.

use std::sync::Arc;

use mlx_rs::Array;
use tacit_core::kernel::Kernel;
use tacit_core::pass::{Nodes, Slot, runs_here};
use tacit_core::primitives as p;
use tacit_core::{Aval, Primitive, Result, broadcast_source};
use tacit_kernels::Factors;

use crate::programs;

use super::arg_reduce::ArgReduce;
use super::indexed::{Added, Indexed, Put, Taken};
use super::integers::Integers;
use super::lay::{Elements, Lay};
use super::product::Product;
use super::random::RandomBits;
use super::reduce::{Extreme, Sum, Truth};
use super::running::Running;
use super::sorted::{ArgPartitioned, ArgSorted, Searched, Sorted};
use super::staged::{Stage, staged};
use super::update::{Joined, PlacedAt, TakenAt, placed};

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

/// Why a node is not in a plan, beside the reasons that it names itself.
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
    let node = Node { nodes, before, at: node, primitive, result: Aval::from(&recorded) };
    if node.count() == 0 {
        return Ok(Read::Other(Reason::UNKNOWN));
    }
    for read in [Node::lay, Node::placed, Node::indexed, Node::ordered, Node::reduced, Node::product] {
        if let Some(read) = read(&node)? {
            return Ok(read);
        }
    }
    node.elementwise()
}

/// A node that is read.
struct Node<'n> {
    nodes: &'n Nodes,
    /// What those before it are.
    before: &'n [Read],
    /// Its number.
    at: usize,
    primitive: Primitive,
    result: Aval,
}

impl Node<'_> {
    fn name(&self) -> &'static str {
        self.nodes.name(self.at)
    }

    fn count(&self) -> usize {
        self.nodes.operands(self.at).len()
    }

    fn operand(&self, at: usize) -> Result<Aval> {
        Ok(Aval::from(&self.nodes.operand(self.at, at)?))
    }

    fn operands(&self) -> Result<Vec<Aval>> {
        (0..self.count()).map(|at| self.operand(at)).collect()
    }

    fn computed(&self, stage: Option<impl Stage>, reason: Reason) -> Read {
        stage.map_or(Read::Other(reason), |stage| Read::Stage(staged(self.name(), stage, &self.result)))
    }

    fn updated(&self, stage: Option<impl Stage>, reason: Reason) -> Read {
        stage.map_or(Read::Other(reason), |stage| Read::Update(staged(self.name(), stage, &self.result)))
    }

    /// What only says how an operand lies.
    fn lay(&self) -> Result<Option<Read>> {
        let Self { primitive, result, .. } = self;
        Ok(Some(match self.name() {
            "Transpose" => Read::Lay(Lay::transpose(&self.operand(0)?, &primitive.view::<p::Transpose>()?.axes)),
            "Slice" => {
                let slice = primitive.view::<p::Slice>()?;
                Read::Lay(Lay::slice(&self.operand(0)?, &slice.start_indices, &slice.strides, result))
            }
            "Broadcast" if self.count() == 1 => Read::Lay(Lay::broadcast(&self.operand(0)?, result)),
            name if programs::keeps_order(name) => Read::Lay(Lay::same(result)),
            name if name.starts_with("View") => {
                let same = self.operand(0)?.item_size() == result.item_size();
                if same { Read::Lay(Lay::same(result)) } else { Read::Other(Reason::DTYPES) }
            }
            _ => return Ok(None),
        }))
    }

    /// Parts of arrays that are joined, written and taken.
    fn placed(&self) -> Result<Option<Read>> {
        let Self { primitive, result, .. } = self;
        Ok(Some(match self.name() {
            "Concatenate" => {
                let axis = primitive.view::<p::Concatenate>()?.axis as usize;
                Read::Stage(staged(self.name(), Joined::new(&self.operands()?, axis, result), result))
            }
            "SliceUpdate" => {
                let update = primitive.view::<p::SliceUpdate>()?;
                let part = placed(&self.operand(1)?, &update.start_indices, &update.strides, result);
                self.updated(part, Reason::PLACES)
            }
            "DynamicSliceUpdate" => {
                let axes = primitive.view::<p::DynamicSliceUpdate>()?.axes;
                self.updated(PlacedAt::new(&self.operand(1)?, &self.operand(2)?, &axes, result), Reason::PLACES)
            }
            "DynamicSlice" => {
                let axes = primitive.view::<p::DynamicSlice>()?.axes;
                self.computed(TakenAt::new(&self.operand(0)?, &self.operand(1)?, &axes, result), Reason::PLACES)
            }
            _ => return Ok(None),
        }))
    }

    /// What indices choose.
    fn indexed(&self) -> Result<Option<Read>> {
        let Self { primitive, result, .. } = self;
        Ok(Some(match self.name() {
            // MLX reads what is broadcast or lies in steps where it is, and a plan would copy it.
            "Gather" | "GatherAxis" if !self.lies_together()? => Read::Other(Reason::REPEATED),
            "Gather" if self.count() == 2 => {
                let gather = primitive.view::<p::Gather>()?;
                let whole = self.operand(0)?;
                let rows = gather.axes == [0] && gather.slice_sizes[1..] == whole.shape[1..];
                let indexed = if rows { Indexed::rows(&whole, &self.operand(1)?, result) } else { None };
                self.computed(indexed.map(Taken), Reason::PLACES)
            }
            "GatherAxis" => {
                let axis = primitive.view::<p::GatherAxis>()?.axis;
                let indexed = Indexed::along(&self.operand(0)?, &self.operand(1)?, axis);
                self.computed(indexed.map(Taken), Reason::PLACES)
            }
            "Scatter" if self.count() == 3 => {
                let rows = primitive.view::<p::Scatter>()?.axes == [0];
                let indexed = if rows { Indexed::rows(result, &self.operand(1)?, &self.operand(2)?) } else { None };
                self.updated(indexed.map(Put), Reason::PLACES)
            }
            "ScatterAxis" => {
                let axis = primitive.view::<p::ScatterAxis>()?.axis;
                self.updated(Indexed::along(result, &self.operand(1)?, axis).map(Put), Reason::PLACES)
            }
            "Scatter Sum" if self.count() == 3 => {
                let rows = primitive.view::<p::ScatterSum>()?.axes == [0];
                let indexed = if rows { Indexed::rows(result, &self.operand(1)?, &self.operand(2)?) } else { None };
                self.updated(indexed.and_then(|indexed| Added::new(indexed, result)), Reason::PLACES)
            }
            "ScatterAxis Sum" => {
                let axis = primitive.view::<p::ScatterAxisSum>()?.axis;
                let indexed = Indexed::along(result, &self.operand(1)?, axis);
                self.updated(indexed.and_then(|indexed| Added::new(indexed, result)), Reason::PLACES)
            }
            _ => return Ok(None),
        }))
    }

    /// Sorts, searches and running sums, and random bits, of which samplers are made.
    fn ordered(&self) -> Result<Option<Read>> {
        let Self { primitive, result, .. } = self;
        let first = self.operand(0)?;
        Ok(Some(match self.name() {
            "ArgPartition" => {
                let p::ArgPartition { kth, axis } = primitive.view()?;
                self.computed(ArgPartitioned::new(&first, kth, axis), Reason::DTYPES)
            }
            "ArgSort" => {
                let axis = primitive.view::<p::ArgSort>()?.axis;
                self.computed(ArgSorted::new(&first, axis), Reason::DTYPES)
            }
            "Sort" => self.computed(Sorted::new(&first, primitive.view::<p::Sort>()?.axis), Reason::DTYPES),
            "SearchSorted" => {
                let right = primitive.view::<p::SearchSorted>()?.right;
                self.computed(Searched::new(&first, &self.operand(1)?, result, right), Reason::DTYPES)
            }
            "CumSum" => {
                let p::CumSum { axis, reverse, inclusive } = primitive.view()?;
                self.computed(Running::new(&first, axis, [reverse, inclusive], result), Reason::DTYPES)
            }
            "CumProd" => {
                let p::CumProd { axis, reverse, inclusive } = primitive.view()?;
                let sums = Running::new(&first, axis, [reverse, inclusive], result);
                self.computed(sums.map(Running::multiplying), Reason::DTYPES)
            }
            "RandomBits" => self.computed(RandomBits::new(&first, result), Reason::DTYPES),
            _ => return Ok(None),
        }))
    }

    /// Reductions along axes.
    fn reduced(&self) -> Result<Option<Read>> {
        let Self { primitive, result, .. } = self;
        let first = self.operand(0)?;
        Ok(Some(match self.name() {
            "Sum" | "Max" | "Min" | "And" | "Or" if !self.lies_together()? => Read::Other(Reason::REPEATED),
            "ArgReduce" => {
                let reduce = primitive.view::<p::ArgReduce>()?;
                let found = ArgReduce::new(&first, &reduce.reduce_type, reduce.axis, result);
                self.computed(found, Reason::AXES)
            }
            "Sum" => self.computed(Sum::new(&first, &primitive.view::<p::Sum>()?.axes, result), Reason::AXES),
            "Max" => self.computed(Extreme::new(&first, &primitive.view::<p::Max>()?.axes, true), Reason::AXES),
            "Min" => self.computed(Extreme::new(&first, &primitive.view::<p::Min>()?.axes, false), Reason::AXES),
            "And" => self.computed(Truth::new(&first, &primitive.view::<p::And>()?.axes, true), Reason::AXES),
            "Or" => self.computed(Truth::new(&first, &primitive.view::<p::Or>()?.axes, false), Reason::AXES),
            _ => return Ok(None),
        }))
    }

    fn product(&self) -> Result<Option<Read>> {
        let result = &self.result;
        let product = match self.name() {
            "Matmul" => Product::new(&self.operand(0)?, &self.operand(1)?, None, result),
            "AddMM" => {
                let p::AddMM { alpha, beta } = self.primitive.view()?;
                Product::new(&self.operand(0)?, &self.operand(1)?, Some(Factors { alpha, beta }), result)
            }
            "GatherMM" if self.count() == 4 => {
                let [a, b, of_a, of_b] = [self.operand(0)?, self.operand(1)?, self.operand(2)?, self.operand(3)?];
                Product::gathered(&a, &b, [&of_a, &of_b], result)
            }
            _ => return Ok(None),
        };
        Ok(Some(match product {
            Some(product) => self.shared(product)?.map_or(Read::Other(Reason::REPEATED), Read::Product),
            None => Read::Other(Reason::DTYPES),
        }))
    }

    /// A product with matrices of which a batch shares some; none where MLX multiplies what is broadcast without making it.
    fn shared(&self, product: Product) -> Result<Option<Product>> {
        let mut product = Some(product);
        for at in 0..2 {
            let operand = self.nodes.operand(self.at, at)?;
            if broadcast_source(&operand)?.size() == operand.size() {
                continue;
            }
            let maker = match source(self.nodes, self.at, at)? {
                Source::Value(slot) => self.nodes.maker(slot),
                Source::Constant(_) => None,
            };
            let Some(maker) = maker.filter(|&maker| self.nodes.name(maker) == "Broadcast") else { return Ok(None) };
            let from = self.nodes.operand(maker, 0)?;
            product = product.and_then(|product| product.sharing(at, from.shape(), operand.shape()));
        }
        Ok(product)
    }

    fn elementwise(&self) -> Result<Read> {
        let name = self.name();
        if name.starts_with("Compiled") {
            return Ok(Read::Other(Reason::FUSED));
        }
        let known = programs::has(name) || Integers::has(name);
        let reason = if known { Reason::ELEMENTS } else { Reason::UNKNOWN };
        Ok(self.computed(Integers::new(name, &self.operands()?, &self.result), reason))
    }

    /// Whether the first operand is no view whose elements would be copied.
    fn lies_together(&self) -> Result<bool> {
        Ok(match source(self.nodes, self.at, 0)? {
            Source::Constant(array) => broadcast_source(&array)?.size() == array.size(),
            Source::Value(slot) => match self.nodes.maker(slot).map(|maker| &self.before[maker]) {
                Some(Read::Lay(lay)) => matches!(lay.elements, Elements::From(_)),
                _ => true,
            },
        })
    }
}
