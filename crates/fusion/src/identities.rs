//! Nodes that only pass an operand on: what they meant to a transform is over once the graph is compiled.

use tacit_core::Result;
use tacit_core::pass::Graph;

pub(crate) fn run(graph: &mut Graph) -> Result<usize> {
    let mut nodes = graph.nodes()?;
    let mut passed = 0;
    for node in 0..nodes.len() {
        let results = nodes.results(node);
        let first = match nodes.name(node) {
            "StopGradient" => 0,
            // The operands of the function come first, and then its results.
            "CustomTransforms" => nodes.operands(node).len() - results.len(),
            _ => continue,
        };
        let mut all = true;
        for (at, result) in results.enumerate() {
            // An output stays an array of its own, and what no input leads to is not in this graph.
            let operand = nodes.operands(node).nth(first + at).flatten().filter(|_| !nodes.is_output(result));
            match operand {
                Some(operand) => nodes.replace(result, nodes.current(operand)?),
                None => all = false,
            }
        }
        passed += usize::from(all);
    }
    graph.rewire(nodes)?;
    Ok(passed)
}
