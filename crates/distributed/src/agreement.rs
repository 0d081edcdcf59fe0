//! Ranks compare what they are about to run before they run it.
//!
//! A pass over the graph of a compiled function lists its collectives, and the watch compares the lists of all ranks: whole,
//! since a checksum would not say what differs.

use std::sync::atomic::{AtomicBool, Ordering};

use tacit_core::pass::Graph;
use tacit_core::{Aval, Result, register_pass};

use crate::current::watch;

static COMPARES: AtomicBool = AtomicBool::new(false);

register_pass!("agreement", 1000, compare);

/// From now on, compiled functions of this process run only once every rank is about to run the same collectives.
pub(crate) fn compare_plans() {
    COMPARES.store(true, Ordering::Relaxed);
}

/// Rewrites nothing.
fn compare(graph: &mut Graph) -> Result<usize> {
    if !COMPARES.load(Ordering::Relaxed) || graph.is_only_told() {
        return Ok(0);
    }
    let watch = watch();
    let Some(watch) = watch.as_ref().and_then(|watch| watch.get()) else { return Ok(0) };
    let nodes = graph.nodes()?;
    let mut collectives = Vec::new();
    for node in 0..nodes.len() {
        let Some(kind) = kind(nodes.name(node)) else { continue };
        collectives.push(format!("{kind} {}", Aval::from(&nodes.operand(node, 0)?)));
    }
    if !collectives.is_empty() {
        watch.agree(collectives)?;
    }
    Ok(0)
}

/// What a collective of all ranks is called, by the name of its primitive.
fn kind(primitive: &str) -> Option<&'static str> {
    match primitive {
        "Sum AllReduce" => Some("all_sum"),
        "Max AllReduce" => Some("all_max"),
        "Min AllReduce" => Some("all_min"),
        "AllGather" => Some("all_gather"),
        "Sum ReduceScatter" => Some("sum_scatter"),
        _ => None,
    }
}
