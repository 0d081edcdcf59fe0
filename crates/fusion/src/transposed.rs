//! Products that are used transposed: `(a b)^T` becomes `b^T a^T`.
//!
//! The gradient of `x w^T` by `w` is recorded as the transpose of `x^T g`. As a view it would send every op on it, and the
//! optimizer's update, over memory column by column; `g^T x` comes in the rows that `w` has, and costs the same.

use mlx_rs::{Array, ops};
use tacit_core::pass::{Graph, Nodes, Slot, runs_here};
use tacit_core::{Param, Result};

pub(crate) fn run(graph: &mut Graph) -> Result<usize> {
    let mut nodes = graph.nodes()?;
    let transposes: Vec<(usize, Slot)> = (0..nodes.len())
        .filter(|&node| nodes.name(node) == "Transpose")
        .filter_map(|node| product(&nodes, node).map(|slot| (node, slot)))
        .collect();
    if transposes.is_empty() {
        return Ok(0);
    }
    // BLAS takes transposed operands as they are.
    let mut elsewhere = vec![false; nodes.values()];
    for node in (0..nodes.len()).filter(|&node| !matches!(nodes.name(node), "Matmul" | "AddMM")) {
        nodes.operands(node).flatten().for_each(|slot| elsewhere[slot.index()] = true);
    }
    let mut replaced = 0;
    for (node, product) in transposes {
        let Some(result) = nodes.results(node).next() else { continue };
        let Some(matmul) = nodes.maker(product) else { continue };
        let needed = elsewhere[result.index()] || nodes.is_output(result);
        if !needed || !swaps(&nodes, node)? || !runs_here(&nodes.result(matmul)?)? || !runs_here(&nodes.result(node)?)?
        {
            continue;
        }
        let (a, b) = (transposed(&nodes, matmul, 0)?, transposed(&nodes, matmul, 1)?);
        nodes.replace(result, ops::matmul(&b, &a)?);
        replaced += 1;
    }
    graph.rewire(nodes)?;
    Ok(replaced)
}

/// The product that a transpose alone takes.
fn product(nodes: &Nodes, transpose: usize) -> Option<Slot> {
    let slot = nodes.operands(transpose).next().flatten()?;
    let is_product = nodes.name(nodes.maker(slot)?) == "Matmul";
    (is_product && nodes.uses(slot) == 1 && !nodes.is_output(slot)).then_some(slot)
}

/// Whether a transpose swaps the last two axes and leaves the others.
fn swaps(nodes: &Nodes, transpose: usize) -> Result<bool> {
    let params = nodes.primitive(transpose)?.params()?;
    let Some(Param::Ints(axes)) = params.first() else { return Ok(false) };
    let Some(last) = axes.len().checked_sub(2) else { return Ok(false) };
    let swapped = [last as i64 + 1, last as i64];
    Ok(axes[last..] == swapped && axes[..last].iter().enumerate().all(|(i, &axis)| axis == i as i64))
}

/// The transpose of an operand: what that is the transpose of, where it is one.
fn transposed(nodes: &Nodes, matmul: usize, operand: usize) -> Result<Array> {
    let Some(slot) = nodes.operands(matmul).nth(operand).flatten() else {
        return Ok(nodes.operand(matmul, operand)?.swap_axes(-1, -2)?);
    };
    if let Some(maker) = nodes.maker(slot)
        && nodes.name(maker) == "Transpose"
        && swaps(nodes, maker)?
    {
        return match nodes.operands(maker).next().flatten() {
            Some(source) => nodes.current(source),
            None => nodes.operand(maker, 0),
        };
    }
    Ok(nodes.current(slot)?.swap_axes(-1, -2)?)
}
