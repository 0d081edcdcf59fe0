//! Common subexpressions, such as the sines that each layer of a decoder makes of the same positions.

use tacit_core::Result;
use tacit_core::pass::Graph;

pub(crate) fn run(graph: &mut Graph) -> Result<usize> {
    graph.cse()
}
