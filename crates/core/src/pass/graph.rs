//! A graph while it is rewritten. Its questions fail where MLX has no memory left.

use std::collections::HashMap;

use mlx_rs::Array;
use tacit_bridge::typed::Class;
use tacit_bridge::{Slot, Tape, comes_of_collective, cse};

use crate::{Primitive, Result};

/// The plain graph of a function that is compiled, from its inputs to its outputs.
///
/// Its methods fail only where MLX has no memory left.
pub struct Graph {
    inputs: Vec<Array>,
    pub(super) outputs: Vec<Array>,
    only_told: bool,
}

impl Graph {
    pub(super) fn new(inputs: &[Array], outputs: Vec<Array>) -> Self {
        Self { inputs: inputs.to_vec(), outputs, only_told: false }
    }

    /// One that is rewritten to tell what passes make of it.
    pub(crate) fn to_tell(inputs: &[Array], outputs: Vec<Array>) -> Self {
        Self { only_told: true, ..Self::new(inputs, outputs) }
    }

    /// Whether the graph is rewritten for an explanation alone, and nobody runs it.
    #[must_use]
    pub fn is_only_told(&self) -> bool {
        self.only_told
    }

    /// The outputs.
    #[must_use]
    pub fn outputs(&self) -> &[Array] {
        &self.outputs
    }

    /// Eliminates common subexpressions: of nodes of the same primitive, state and inputs, at any depth, one is left.
    /// Returns how many are gone.
    pub fn cse(&mut self) -> Result<usize> {
        let (outputs, removed) = cse(&self.outputs, &self.inputs)?;
        self.outputs = outputs;
        Ok(removed)
    }

    /// The nodes that depend on an input, in topological order.
    pub fn nodes(&self) -> Result<Nodes> {
        let tape = Tape::walk(&self.outputs, &self.inputs, &[])?;
        let mut makers = vec![None; tape.slots()];
        let mut uses = vec![0; tape.slots()];
        for node in 0..tape.len() {
            tape.results(node).for_each(|slot| makers[slot.index()] = Some(node));
            tape.operands(node).flatten().for_each(|slot| uses[slot.index()] += 1);
        }
        let mut wanted = vec![false; tape.slots()];
        tape.outputs().flatten().for_each(|slot| wanted[slot.index()] = true);
        Ok(Nodes { tape, inputs: self.inputs.clone(), makers, uses, wanted, instead: HashMap::new() })
    }

    /// Puts what was noted with [`Nodes::replace`] into the graph.
    pub fn rewire(&mut self, nodes: Nodes) -> Result<()> {
        let Nodes { mut tape, instead, .. } = nodes;
        if instead.is_empty() {
            return Ok(());
        }
        for (output, slot) in self.outputs.iter_mut().zip(tape.outputs()) {
            if let Some(array) = slot.and_then(|slot| instead.get(&slot.index())) {
                *output = array.clone();
            }
        }
        let kept: HashMap<usize, _> = instead.into_iter().map(|(slot, array)| (slot, tape.keep(array))).collect();
        for node in 0..tape.len() {
            for operand in 0..tape.arity(node) {
                let slot = tape.operand_slot(node, operand);
                if let Some(&value) = slot.and_then(|slot| kept.get(&slot.index())) {
                    tape.plan(node, operand, value);
                }
            }
        }
        Ok(tape.rewire()?)
    }
}

/// The nodes of a graph, and what shall stand for their results.
///
/// A value is known by its [`Slot`]. Arrays that do not depend on an input have none.
pub struct Nodes {
    tape: Tape,
    inputs: Vec<Array>,
    makers: Vec<Option<usize>>,
    uses: Vec<u32>,
    wanted: Vec<bool>,
    instead: HashMap<usize, Array>,
}

impl Nodes {
    /// The number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tape.len()
    }

    /// Whether no output depends on an input.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tape.is_empty()
    }

    /// The number of values, each with the index of its slot below it.
    #[must_use]
    pub fn values(&self) -> usize {
        self.tape.slots()
    }

    /// The values that are outputs.
    pub fn outputs(&self) -> impl Iterator<Item = Slot> + '_ {
        self.tape.outputs().flatten()
    }

    /// The name of a node's primitive, as MLX spells it.
    #[must_use]
    pub fn name(&self, node: usize) -> &'static str {
        self.tape.name(node).text()
    }

    /// The primitive of a node.
    pub fn primitive(&self, node: usize) -> Result<Primitive> {
        Ok(Primitive::new(self.tape.primitive(node)?))
    }

    /// Whether processes compute a node together.
    #[must_use]
    pub fn is_collective(&self, node: usize) -> bool {
        self.tape.name(node).description().is_some_and(|description| description.class == Class::Distributed)
    }

    /// Whether an operand that does not depend on an input comes of what another process sends.
    pub fn is_received(&self, node: usize, operand: usize) -> Result<bool> {
        Ok(comes_of_collective(&self.tape.operand(node, operand)?)?)
    }

    /// The values that a node takes.
    #[must_use]
    pub fn operands(&self, node: usize) -> impl ExactSizeIterator<Item = Option<Slot>> + '_ {
        self.tape.operands(node)
    }

    /// An operand as it was recorded.
    ///
    /// # Errors
    ///
    /// The node has no such operand.
    pub fn operand(&self, node: usize, operand: usize) -> Result<Array> {
        Ok(self.tape.operand(node, operand)?)
    }

    /// The values that a node makes.
    #[must_use]
    pub fn results(&self, node: usize) -> impl ExactSizeIterator<Item = Slot> + use<> {
        self.tape.results(node)
    }

    /// The first result of a node as it was recorded.
    pub fn result(&self, node: usize) -> Result<Array> {
        Ok(self.tape.result(node, 0)?)
    }

    /// The node that makes a value; none for an input.
    #[must_use]
    pub fn maker(&self, slot: Slot) -> Option<usize> {
        self.makers[slot.index()]
    }

    /// The number of operands that a value is.
    #[must_use]
    pub fn uses(&self, slot: Slot) -> usize {
        self.uses[slot.index()] as usize
    }

    /// Whether a value is an output.
    #[must_use]
    pub fn is_output(&self, slot: Slot) -> bool {
        self.wanted[slot.index()]
    }

    /// What stands for a value now: what replaced it, or what was recorded.
    pub fn current(&self, slot: Slot) -> Result<Array> {
        if let Some(array) = self.instead.get(&slot.index()) {
            return Ok(array.clone());
        }
        let Some(node) = self.maker(slot) else { return Ok(self.inputs[slot.index()].clone()) };
        let position = self.tape.results(node).position(|result| result == slot).unwrap_or(0);
        Ok(self.tape.result(node, position)?)
    }

    /// Notes that `array` shall stand for a value, of whose aval it is.
    pub fn replace(&mut self, slot: Slot, array: Array) {
        self.instead.insert(slot.index(), array);
    }
}
