//! Connected elementwise ops and reductions of rows as one kernel.
//!
//! [`node`] reads what a graph holds: which nodes compute what a program can, and what their operands are behind reshapes,
//! broadcasts and slices. [`groups`] puts connected ones together, and those that take the same, so that no group needs itself
//! by way of others. [`build`] makes the program of a group, and [`kernel`] puts it into the graph.

mod build;
mod groups;
mod kernel;
mod node;
mod view;

use tacit_core::Result;
use tacit_core::pass::{Graph, Nodes, Slot};

use crate::collectives;
use crate::needed::needed;

use build::Built;
use groups::Groups;
pub(crate) use node::keeps_order;
use node::{Base, Node};

pub(crate) fn run(graph: &mut Graph) -> Result<usize> {
    let mut nodes = graph.nodes()?;
    let read = node::read(&nodes)?;
    if read.iter().flatten().next().is_none() {
        return Ok(0);
    }
    let mut groups = Groups::form(&nodes, &read, &collectives::behind(&nodes)?);
    let built = build_all(&nodes, &read, &mut groups)?;
    let replaced = built.iter().flatten().map(|built| built.members).sum();
    let mut emitted = vec![false; built.len()];
    for group in 0..built.len() {
        emit(group, &built, &groups, &mut emitted, &mut nodes)?;
    }
    graph.rewire(nodes)?;
    Ok(replaced)
}

/// Whether programs have an op of MLX's of this name.
pub(crate) fn has(name: &str) -> bool {
    node::computes(name).is_some()
}

/// The program of each group that has one, with the results that are still needed then.
fn build_all(nodes: &Nodes, read: &[Option<Node>], groups: &mut Groups) -> Result<Vec<Option<Built>>> {
    for group in 0..groups.len() {
        // Whether a group has a program does not depend on which results are needed.
        if build::build(read, groups, group, &|_| true)?.is_none() {
            groups.dissolve(group);
        }
    }
    let needed = needed(nodes, |node| groups.group_of(node), |group| taken(nodes, read, groups, group));
    (0..groups.len())
        .map(|group| {
            if groups.members(group).is_empty() {
                return Ok(None);
            }
            build::build(read, groups, group, &|slot| needed[slot.index()])
        })
        .collect()
}

/// What a group takes from outside.
fn taken(nodes: &Nodes, read: &[Option<Node>], groups: &Groups, group: usize) -> Vec<Slot> {
    let members = groups.members(group).iter().filter_map(|&member| read[member].as_ref());
    let bases = members.flat_map(|node| &node.operands).filter_map(|operand| match operand.base {
        Base::Value(base) => Some(base),
        Base::Constant(_) => None,
    });
    bases.filter(|&base| !groups.makes(nodes, group, base)).collect()
}

/// Puts a group's kernel into the graph, after those that it takes results of.
fn emit(group: usize, built: &[Option<Built>], groups: &Groups, emitted: &mut [bool], nodes: &mut Nodes) -> Result<()> {
    let Some(program) = &built[group] else { return Ok(()) };
    if std::mem::replace(&mut emitted[group], true) || program.results.is_empty() {
        return Ok(());
    }
    let mut inputs = Vec::with_capacity(program.inputs.len());
    for input in &program.inputs {
        inputs.push(match input {
            Base::Constant(array) => array.clone(),
            Base::Value(slot) => {
                if let Some(before) = nodes.maker(*slot).and_then(|maker| groups.group_of(maker)) {
                    emit(before, built, groups, emitted, nodes)?;
                }
                nodes.current(*slot)?
            }
        });
    }
    let results = kernel::apply(program, &inputs)?;
    for ((slot, _), result) in program.results.iter().zip(results) {
        nodes.replace(*slot, result);
    }
    Ok(())
}
