//! The plan of a group.

use std::collections::HashMap;
use std::sync::Arc;

use mlx_rs::Array;
use tacit_core::pass::{Nodes, PlanBuilder, PlanValue, Threads};
use tacit_core::{Aval, Error, Result, array_id, broadcast_source};

use tacit_kernels::{Orientation, threads};

use super::exported::Exported;
use super::lay::{Elements, Lay};
use super::stage::{Read, Source, source};
use super::staged::staged;

/// Puts one node in the place of a group's members, and gives their number.
pub(super) fn build(nodes: &mut Nodes, read: &[Read], members: &[usize], exported: &Exported) -> Result<usize> {
    let threads = Threads { count: threads::count, run: threads::for_each_on };
    let mut builder = Builder { plan: PlanBuilder::default().in_pieces(threads), ..Builder::default() };
    let mut results = Vec::new();
    for &member in members {
        let stage_results = builder.stage(nodes, read, member)?;
        for (slot, value) in nodes.results(member).zip(stage_results) {
            builder.values.insert(slot.index(), value);
            if !exported.is_needed(slot) {
                continue;
            }
            let updated = matches!(read[member], Read::Update(_));
            let mut result = (slot, value);
            while let Some((slot, lay)) = exported.needed_as(nodes, read, result.0, updated)? {
                result = (slot, builder.laid(lay, result.1)?);
            }
            results.push(result);
        }
    }
    if results.is_empty() {
        return Ok(0);
    }
    let outputs: Vec<PlanValue> = results.iter().map(|&(_, value)| value).collect();
    let plan = builder.plan.finish(&outputs).map_err(refused)?;
    let arrays = plan.apply(&builder.inputs)?;
    for ((slot, _), array) in results.into_iter().zip(arrays) {
        nodes.replace(slot, array);
    }
    Ok(members.len())
}

#[derive(Default)]
struct Builder {
    plan: PlanBuilder,
    inputs: Vec<Array>,
    /// By the indices of slots.
    values: HashMap<usize, PlanValue>,
    /// By the identities of arrays, of which `inputs` and `kept` keep others from having the same.
    constants: HashMap<usize, PlanValue>,
    kept: Vec<Array>,
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` has it")]
fn refused(error: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Invalid { message: error.to_string(), help: None }
}

impl Builder {
    fn stage(&mut self, nodes: &Nodes, read: &[Read], node: usize) -> Result<Vec<PlanValue>> {
        match &read[node] {
            Read::Stage(kernel) => {
                let operands = self.operands(nodes, read, node)?;
                self.plan.stage(Arc::clone(kernel), &operands).map_err(refused)
            }
            Read::Update(kernel) => {
                let operands = self.operands(nodes, read, node)?;
                Ok(vec![self.plan.update(Arc::clone(kernel), operands[0], &operands[1..])])
            }
            Read::Product(product) => {
                let (a, b) = (self.side(nodes, read, node, 0)?, self.side(nodes, read, node, 1)?);
                let mut operands = vec![a.0, b.0];
                if product.is_added() {
                    operands.push(self.addend(nodes, read, node)?);
                }
                if product.is_gathered() {
                    operands.push(self.operand(nodes, read, source(nodes, node, 2)?)?);
                    operands.push(self.operand(nodes, read, source(nodes, node, 3)?)?);
                }
                let (product, result) = (product.with([a.1, b.1]), Aval::from(&nodes.result(node)?));
                self.plan.stage(staged(nodes.name(node), product, &result), &operands).map_err(refused)
            }
            Read::Lay(_) | Read::Other(_) => Ok(Vec::new()),
        }
    }

    /// An operand of a product: what it is a broadcast of, and what that is the transpose of.
    fn side(&mut self, nodes: &Nodes, read: &[Read], node: usize, at: usize) -> Result<(PlanValue, Orientation)> {
        let Read::Product(product) = &read[node] else { return Err(Error::decline("it is no product")) };
        let maker = |operand: &Source| match operand {
            Source::Value(slot) => nodes.maker(*slot),
            Source::Constant(_) => None,
        };
        let mut operand = source(nodes, node, at)?;
        if product.is_shared(at)
            && let Some(broadcast) = maker(&operand)
        {
            operand = source(nodes, broadcast, 0)?;
        }
        if product.takes_transposed(at)
            && let Some(maker) = maker(&operand)
            && let Read::Lay(Lay { turns: true, .. }) = &read[maker]
        {
            return Ok((self.operand(nodes, read, source(nodes, maker, 0)?)?, Orientation::Transposed));
        }
        Ok((self.operand(nodes, read, operand)?, Orientation::Plain))
    }

    /// What a product is added to: one row of it, where all are the same.
    fn addend(&mut self, nodes: &Nodes, read: &[Read], node: usize) -> Result<PlanValue> {
        match source(nodes, node, 2)? {
            Source::Constant(array) => {
                let row = broadcast_source(&array)?;
                let repeats = Lay::broadcast(&Aval::from(&row), &Aval::from(&array)).repeats;
                if repeats { Ok(self.constant(row)) } else { self.repeated(array) }
            }
            Source::Value(slot) => match nodes.maker(slot).map(|maker| (maker, &read[maker])) {
                Some((maker, Read::Lay(Lay { repeats: true, .. }))) => {
                    self.operand(nodes, read, source(nodes, maker, 0)?)
                }
                _ => self.operand(nodes, read, Source::Value(slot)),
            },
        }
    }

    fn operands(&mut self, nodes: &Nodes, read: &[Read], node: usize) -> Result<Vec<PlanValue>> {
        (0..nodes.operands(node).len()).map(|at| self.operand(nodes, read, source(nodes, node, at)?)).collect()
    }

    /// The value of an operand, however it lies.
    fn operand(&mut self, nodes: &Nodes, read: &[Read], operand: Source) -> Result<PlanValue> {
        let slot = match operand {
            Source::Constant(array) => return self.repeated(array),
            Source::Value(slot) => slot,
        };
        if let Some(&known) = self.values.get(&slot.index()) {
            return Ok(known);
        }
        let value = match nodes.maker(slot).map(|maker| (maker, &read[maker])) {
            Some((maker, Read::Lay(lay))) => {
                let from = self.operand(nodes, read, source(nodes, maker, 0)?)?;
                self.laid(lay, from)?
            }
            _ => self.input(nodes.current(slot)?),
        };
        self.values.insert(slot.index(), value);
        Ok(value)
    }

    fn laid(&mut self, lay: &Lay, from: PlanValue) -> Result<PlanValue> {
        match &lay.elements {
            Elements::From(offset) => self.plan.view(from, *offset, lay.result.clone()).map_err(refused),
            Elements::Copied(kernel) => Ok(self.plan.stage(Arc::clone(kernel), &[from]).map_err(refused)?[0]),
        }
    }

    fn input(&mut self, array: Array) -> PlanValue {
        let value = self.plan.input(Aval::from(&array));
        self.inputs.push(array);
        value
    }

    /// A constant, which is repeated in the plan if it is a broadcast one.
    fn repeated(&mut self, array: Array) -> Result<PlanValue> {
        let source = broadcast_source(&array)?;
        if source.size() >= array.size() {
            return Ok(self.constant(array));
        }
        let id = array_id(&array);
        if let Some(&known) = self.constants.get(&id) {
            return Ok(known);
        }
        let lay = Lay::broadcast(&Aval::from(&source), &Aval::from(&array));
        let source = self.constant(source);
        let value = self.laid(&lay, source)?;
        self.constants.insert(id, value);
        self.kept.push(array);
        Ok(value)
    }

    fn constant(&mut self, array: Array) -> PlanValue {
        let id = array_id(&array);
        if let Some(&known) = self.constants.get(&id) {
            return known;
        }
        let value = self.input(array);
        self.constants.insert(id, value);
        value
    }
}
