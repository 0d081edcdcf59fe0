//! The results of plans that the rest of a graph reads.

use tacit_core::pass::{Nodes, Slot};
use tacit_core::{Aval, Result};

use crate::needed::needed;

use super::groups::Groups;
use super::lay::{Elements, Lay};
use super::stage::Read;

/// The most bytes that a plan copies to spare a node, which takes about as long.
const COPIED: usize = 1 << 12;

/// The values that are needed beside the plans, and what takes them.
pub(super) struct Exported {
    needed: Vec<bool>,
    /// What takes each value, by slot.
    takers: Vec<Takers>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Takers {
    None,
    One(usize),
    /// Several nodes, another plan, or the caller.
    Many,
}

impl Exported {
    pub(super) fn new(nodes: &Nodes, read: &[Read], groups: &Groups) -> Self {
        let needed = needed(nodes, |node| groups.group_of(node), |group| groups.taken(nodes, read, group));
        let mut takers = vec![Takers::None; nodes.values()];
        nodes.outputs().for_each(|slot| takers[slot.index()] = Takers::Many);
        let groups_take = (0..groups.list().len()).flat_map(|group| groups.taken(nodes, read, group));
        groups_take.for_each(|slot| takers[slot.index()] = Takers::Many);
        let beside =
            |&node: &usize| groups.group_of(node).is_none() && nodes.results(node).any(|result| needed[result.index()]);
        for node in (0..nodes.len()).filter(beside) {
            for slot in nodes.operands(node).flatten() {
                let taker = &mut takers[slot.index()];
                *taker = if *taker == Takers::None { Takers::One(node) } else { Takers::Many };
            }
        }
        Self { needed, takers }
    }

    pub(super) fn is_needed(&self, slot: Slot) -> bool {
        self.needed[slot.index()]
    }

    /// The value as which alone this one is needed, if it is all of its elements in the same order, or few of them. An array that
    /// is `updated` is written in place only where it keeps the shape that it was given in.
    pub(super) fn needed_as<'r>(
        &self,
        nodes: &Nodes,
        read: &'r [Read],
        slot: Slot,
        updated: bool,
    ) -> Result<Option<(Slot, &'r Lay)>> {
        let Takers::One(node) = self.takers[slot.index()] else { return Ok(None) };
        let Read::Lay(lay) = &read[node] else { return Ok(None) };
        let before = Aval::from(&nodes.operand(node, 0)?);
        let bytes = lay.result.nbytes();
        let laid_alone = matches!(lay.elements, Elements::From(_)) && (bytes == before.nbytes() || bytes <= COPIED);
        let laid = nodes.results(node).next().filter(|_| laid_alone && (!updated || lay.result.shape == before.shape));
        Ok(laid.map(|laid| (laid, lay)))
    }
}
