//! Which collectives lie behind a node.
//!
//! A kernel that stands for several nodes runs when all that any of them takes is there. If one took what another process
//! sends, and another one sent what that process waits for first, both would wait for ever. So only nodes with the same
//! collectives behind them go together.

use std::collections::HashMap;

use tacit_core::pass::Nodes;
use tacit_core::{Result, array_id};

/// Sets of collectives, by number.
type Set = Vec<u64>;

/// What stands for a collective.
#[derive(PartialEq, Eq, Hash)]
enum Member {
    Node(usize),
    /// An array that comes of one and does not depend on an input, by its identity.
    Constant(usize),
}

/// What tells sets of collectives apart: how many there are, and a number that only equal sets share.
pub(crate) type Behind = (usize, usize);

/// The set of collectives behind each node. The set behind what a node takes is the same or has fewer members.
pub(crate) fn behind(nodes: &Nodes) -> Result<Vec<Behind>> {
    let mut members: HashMap<Member, usize> = HashMap::new();
    let mut numbers: HashMap<Set, usize> = HashMap::from([(Set::new(), 0)]);
    let mut sets: Vec<Set> = vec![Set::new()];
    let mut set_of = vec![0; nodes.len()];
    for node in 0..nodes.len() {
        let mut set = Set::new();
        for (at, slot) in nodes.operands(node).enumerate() {
            match slot {
                Some(slot) => {
                    if let Some(maker) = nodes.maker(slot) {
                        join(&mut set, &sets[set_of[maker]]);
                    }
                }
                // What is received does not depend on what is traced; each array that comes of it counts by itself.
                None if nodes.is_received(node, at)? => {
                    let next = members.len();
                    add(
                        &mut set,
                        *members.entry(Member::Constant(array_id(&nodes.operand(node, at)?))).or_insert(next),
                    );
                }
                None => {}
            }
        }
        if nodes.is_collective(node) {
            let next = members.len();
            add(&mut set, *members.entry(Member::Node(node)).or_insert(next));
        }
        set_of[node] = *numbers.entry(set).or_insert_with_key(|set| {
            sets.push(set.clone());
            sets.len() - 1
        });
    }
    let count = |number: usize| sets[number].iter().map(|word| word.count_ones() as usize).sum();
    Ok(set_of.into_iter().map(|number| (count(number), number)).collect())
}

fn join(set: &mut Set, other: &Set) {
    if set.len() < other.len() {
        set.resize(other.len(), 0);
    }
    set.iter_mut().zip(other).for_each(|(word, other)| *word |= other);
}

fn add(set: &mut Set, member: usize) {
    let word = member / 64;
    if set.len() <= word {
        set.resize(word + 1, 0);
    }
    set[word] |= 1 << (member % 64);
}
