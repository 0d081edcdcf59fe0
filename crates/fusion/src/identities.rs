//! Nodes that only pass an operand on, or parts of it: they serve transforms, and no transform follows once the graph
//! is compiled.

use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, TryIndexOp};
use tacit_core::Result;
use tacit_core::pass::{Graph, Nodes, runs_here};
use tacit_core::primitives as p;

pub(crate) fn run(graph: &mut Graph) -> Result<usize> {
    let mut nodes = graph.nodes()?;
    let mut passed = 0;
    for node in 0..nodes.len() {
        let results = nodes.results(node);
        let first = match nodes.name(node) {
            "StopGradient" => 0,
            // The operands of the function come first, and then its results.
            "CustomTransforms" => nodes.operands(node).len() - results.len(),
            "Split" => {
                passed += usize::from(cut(&mut nodes, node)?);
                continue;
            }
            _ => continue,
        };
        let mut all_passed = true;
        for (at, result) in results.enumerate() {
            // An output stays an array of its own, and what no input leads to is not in this graph.
            let operand = nodes.operands(node).nth(first + at).flatten().filter(|_| !nodes.is_output(result));
            match operand {
                Some(operand) => nodes.replace(result, nodes.current(operand)?),
                None => all_passed = false,
            }
        }
        passed += usize::from(all_passed);
    }
    graph.rewire(nodes)?;
    Ok(passed)
}

/// Puts slices in the place of a split, of which each says for itself how it lies.
fn cut(nodes: &mut Nodes, node: usize) -> Result<bool> {
    let Some(operand) = nodes.operands(node).next().flatten() else {
        return Ok(false);
    };
    if !runs_here(&nodes.result(node)?)? {
        return Ok(false);
    }
    let p::Split { indices, axis } = nodes.primitive(node)?.view()?;
    let whole = nodes.current(operand)?;
    let mut first = 0;
    for (part, result) in nodes.results(node).enumerate() {
        let end = indices.get(part).copied().unwrap_or(whole.dim(axis));
        let whole_axes = (0..axis).map(|_| (..).index_op());
        let place: Vec<ArrayIndexOp<'_>> = whole_axes.chain([(first..end).index_op()]).collect();
        nodes.replace(result, whole.try_index(&place[..])?);
        first = end;
    }
    Ok(true)
}
