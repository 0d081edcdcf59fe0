//! Which values are needed once each group of nodes is one node.

use std::collections::HashSet;

use tacit_core::pass::{Nodes, Slot};

/// The values, by slot, that an output or another node takes, where `group_of` tells which nodes become one, and `taken` what
/// such a group takes from outside.
pub(crate) fn needed(
    nodes: &Nodes,
    group_of: impl Fn(usize) -> Option<usize>,
    taken: impl Fn(usize) -> Vec<Slot>,
) -> Vec<bool> {
    let mut needed = vec![false; nodes.values()];
    let mut groups = HashSet::new();
    let mut stack: Vec<Slot> = nodes.outputs().collect();
    while let Some(slot) = stack.pop() {
        if std::mem::replace(&mut needed[slot.index()], true) {
            continue;
        }
        let Some(maker) = nodes.maker(slot) else { continue };
        match group_of(maker) {
            None => stack.extend(nodes.operands(maker).flatten()),
            Some(group) if groups.insert(group) => stack.extend(taken(group)),
            Some(_) => {}
        }
    }
    needed
}
