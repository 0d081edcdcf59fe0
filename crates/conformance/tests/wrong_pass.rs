//! A pass that computes something else is found by random programs, and they are made short.

use mlx_rs::ops;
use tacit_conformance::programs;
use tacit_core::Result;
use tacit_core::pass::Graph;

tacit_core::register_pass!("wrong", 10, minimum_for_maximum);

fn minimum_for_maximum(graph: &mut Graph) -> Result<usize> {
    let mut nodes = graph.nodes()?;
    let all: Vec<usize> = (0..nodes.len()).filter(|&node| nodes.name(node) == "Maximum").collect();
    for &node in &all {
        let operand = |at: usize| match nodes.operands(node).nth(at).flatten() {
            Some(slot) => nodes.current(slot),
            None => nodes.operand(node, at),
        };
        let wrong = ops::minimum(operand(0)?, operand(1)?)?;
        if let Some(slot) = nodes.results(node).next() {
            nodes.replace(slot, wrong);
        }
    }
    graph.rewire(nodes)?;
    Ok(all.len())
}

#[test]
fn a_wrong_pass_is_found_by_a_short_program() {
    tacit_core::compile::disable_fusion();
    let report = programs::programs(&[]);
    let steps = |finding: &str| finding.lines().filter(|line| line.contains(" | ")).count();
    let short = |finding: &&String| finding.contains("with Only([\"wrong\"])") && steps(finding) <= 2;
    assert!(report.findings().iter().any(|finding| short(&finding)), "{report}");
}
