//! Kernels, and the plain ops between them, as one node.
//!
//! [`stage`] reads what a graph holds: which nodes a stage of a plan computes, and which only say how an array lies. What
//! lies between two stages is worked out where it is used ([`lay`]). [`groups`] puts stages together that no other node
//! lies between, [`exported`] tells what is needed of them, and [`build`] makes the plan of a group.

mod along;
mod arg_reduce;
mod build;
mod exported;
mod groups;
mod indexed;
mod integers;
mod lay;
mod product;
mod random;
mod reduce;
mod running;
mod sorted;
mod stage;
mod staged;
mod steps;
mod update;

use tacit_core::Result;
use tacit_core::pass::{Graph, Nodes};

use crate::collectives;

use exported::Exported;
use groups::Groups;
use stage::{Read, Reason};

pub(crate) fn run(graph: &mut Graph) -> Result<usize> {
    let mut nodes = graph.nodes()?;
    let read = stage::read(&nodes)?;
    let groups = Groups::form(&nodes, &read, &collectives::behind(&nodes)?);
    let exported = Exported::new(&nodes, &read, &groups);
    let mut replaced = 0;
    for group in groups.list() {
        replaced += build::build(&mut nodes, &read, group, &exported)?;
    }
    graph.rewire(nodes)?;
    Ok(replaced)
}

/// Why each node that is in no plan was left out.
pub(crate) fn reasons(nodes: &Nodes) -> Result<Vec<Option<&'static str>>> {
    let read = stage::read(nodes)?;
    let reason = |node: usize| match &read[node] {
        Read::Other(_) if nodes.is_collective(node) => Reason::TOGETHER.0,
        Read::Other(reason) => reason.0,
        Read::Lay(_) => Reason::LIES.0,
        Read::Stage(_) | Read::Update(_) | Read::Product(_) => Reason::ALONE.0,
    };
    let is_plan = |node: usize| matches!(nodes.name(node), "Plan" | "PlanResult");
    Ok((0..nodes.len()).map(|node| (!is_plan(node)).then(|| reason(node))).collect())
}
