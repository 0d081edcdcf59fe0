//! Which stages go together.

use std::collections::BTreeMap;

use tacit_core::pass::{Nodes, Slot};

use crate::collectives::Behind;

use super::stage::Read;

/// A plan of fewer stages is no fewer nodes.
const FEW: usize = 2;

/// Stages that no other node lies between. Seen as one node each, groups are still a graph without cycles.
pub(super) struct Groups {
    /// The group of each stage.
    group_of: Vec<Option<usize>>,
    /// The members of each, in topological order.
    list: Vec<Vec<usize>>,
}

impl Groups {
    /// Puts all stages of one phase together that have the same collectives behind them.
    pub(super) fn form(nodes: &Nodes, read: &[Read], collectives: &[Behind]) -> Self {
        let phases = phases(nodes, read);
        let mut by_phase: BTreeMap<(usize, Behind), Vec<usize>> = BTreeMap::new();
        for node in (0..nodes.len()).filter(|&node| read[node].is_stage()) {
            by_phase.entry((phases[node], collectives[node])).or_default().push(node);
        }
        let list: Vec<Vec<usize>> = by_phase.into_values().filter(|members| members.len() >= FEW).collect();
        let mut group_of = vec![None; nodes.len()];
        for (group, members) in list.iter().enumerate() {
            for &member in members {
                group_of[member] = Some(group);
            }
        }
        Self { group_of, list }
    }

    pub(super) fn list(&self) -> &[Vec<usize>] {
        &self.list
    }

    pub(super) fn group_of(&self, node: usize) -> Option<usize> {
        self.group_of[node]
    }

    /// What a group takes from outside, behind what only says how it lies.
    pub(super) fn taken(&self, nodes: &Nodes, read: &[Read], group: usize) -> Vec<Slot> {
        let operands = self.list[group].iter().flat_map(|&member| nodes.operands(member).flatten());
        let sources = operands.map(|slot| laid_from(nodes, read, slot));
        sources.filter(|&slot| nodes.maker(slot).is_none_or(|maker| self.group_of[maker] != Some(group))).collect()
    }
}

/// The value whose elements these are.
fn laid_from(nodes: &Nodes, read: &[Read], mut slot: Slot) -> Slot {
    while let Some(maker) = nodes.maker(slot)
        && let Read::Lay(_) = read[maker]
        && let Some(source) = nodes.operands(maker).next().flatten()
    {
        slot = source;
    }
    slot
}

/// How often a path to each node changes between stages and nodes of MLX: stages are of even phases, and MLX's nodes of odd
/// ones. What lies between two stages of one phase is of that phase too. What only says how an array lies is of its
/// operand's.
fn phases(nodes: &Nodes, read: &[Read]) -> Vec<usize> {
    let mut phases = vec![0_usize; nodes.len()];
    for node in 0..nodes.len() {
        let before = nodes.operands(node).flatten().filter_map(|slot| nodes.maker(slot));
        let latest = before.map(|maker| phases[maker]).max().unwrap_or(0);
        phases[node] = match read[node] {
            Read::Lay(_) => latest,
            // Those that take no stage come before the first phase, as the inputs do.
            Read::Other(_) if latest == 0 && !takes_stage(nodes, read, node) => 0,
            Read::Other(_) => latest | 1,
            _ => latest.next_multiple_of(2),
        };
    }
    phases
}

/// Whether a stage is among what a node takes.
fn takes_stage(nodes: &Nodes, read: &[Read], node: usize) -> bool {
    let before = nodes.operands(node).flatten().map(|slot| laid_from(nodes, read, slot));
    before.filter_map(|slot| nodes.maker(slot)).any(|maker| read[maker].is_stage())
}
