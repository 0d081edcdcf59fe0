//! Kernels, and the plain ops between them, as one node.
//!
//! [`stage`] reads what a graph holds: which nodes a stage of a plan computes, and which only say how an array lies. What
//! lies between two stages is worked out where it is used ([`lay`]). [`groups`] puts stages together that no other node
//! lies between, and [`build`] makes the plan of a group.

mod arg_reduce;
mod build;
mod groups;
mod indexed;
mod integers;
mod lay;
mod product;
mod reduce;
mod stage;
mod staged;
mod steps;
mod update;

use tacit_core::Result;
use tacit_core::pass::Graph;

use crate::collectives;
use crate::needed::needed;

use groups::Groups;

pub(crate) fn run(graph: &mut Graph) -> Result<usize> {
    let mut nodes = graph.nodes()?;
    let read = stage::read(&nodes)?;
    let groups = Groups::form(&nodes, &read, &collectives::behind(&nodes)?);
    let exported = needed(&nodes, |node| groups.of(node), |group| groups.taken(&nodes, &read, group));
    let mut replaced = 0;
    for group in groups.list() {
        replaced += build::build(&mut nodes, &read, group, &exported)?;
    }
    graph.rewire(nodes)?;
    Ok(replaced)
}
