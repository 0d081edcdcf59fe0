//! The graph that passes leave, as data and as text.

use std::any::Any;
use std::fmt;

use mlx_rs::Array;
use tacit_bridge::{Aval, Plan};

use crate::Result;
use crate::pass::{Graph, Passes, Reasons, Rewritten, computing, run};
use crate::printable::name;

/// What a compiled function gives MLX in the place of the graph that it was recorded as.
///
/// It prints each plan with its stages, and the nodes between plans with the reason why no stage computes them. Those of one
/// kind are counted. `{:#}` prints plans without their stages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompiledGraph {
    /// What each pass did, in order; empty unless a linked pass tells what it leaves, as those of `tacit-fusion` do.
    pub rewritten: Vec<Rewritten>,
    /// The nodes in order; empty in the same case.
    pub nodes: Vec<CompiledNode>,
}

/// One node that MLX is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledNode {
    /// The primitive, as MLX spells it.
    pub primitive: String,
    /// The first result.
    pub aval: Aval,
    /// What it computes one after the other, if it is a plan: the name of each stage with its first result.
    pub stages: Vec<(&'static str, Aval)>,
    /// How many of the stages run together with others, one piece of their elements after the other.
    pub pieced: usize,
    /// Why it is no stage of a plan, where a pass tells that.
    pub reason: Option<&'static str>,
}

impl CompiledGraph {
    /// What the passes make of the graph from `inputs` to `outputs`, which nobody else computes.
    pub(crate) fn from_graph(inputs: &[Array], outputs: Vec<Array>) -> Result<Self> {
        let telling: Vec<Reasons> = Passes::All.chosen().filter_map(|pass| pass.reasons).collect();
        if telling.is_empty() {
            return Ok(Self::default());
        }
        let mut graph = Graph::to_tell(inputs, outputs);
        let rewritten = run(&Passes::All, &mut graph)?;
        let nodes = graph.nodes()?;
        let mut reasons: Vec<Option<&'static str>> = vec![None; nodes.len()];
        for tell in telling {
            for (reason, told) in reasons.iter_mut().zip(tell(&nodes)?) {
                *reason = told.or(*reason);
            }
        }
        let node = |node: usize| {
            let kernel = nodes.primitive(node)?.shared_kernel();
            let plan = kernel.as_deref().and_then(|kernel| (kernel as &dyn Any).downcast_ref::<Plan>());
            let aval = Aval::from(&nodes.result(node)?);
            let stages = plan.into_iter().flat_map(Plan::stages);
            let stages = stages.filter_map(|(kernel, result)| Some((kernel.name(), result?.clone()))).collect();
            let (primitive, pieced) = (nodes.name(node).to_owned(), plan.map_or(0, Plan::pieced));
            Ok(CompiledNode { primitive, aval, stages, pieced, reason: reasons[node] })
        };
        let nodes = computing(&nodes).map(node).collect::<Result<_>>()?;
        Ok(Self { rewritten, nodes })
    }

    /// Whether there is more to tell than that it is one node, which the explanation shows.
    pub(super) fn is_told(&self) -> bool {
        self.nodes.len() > 1 || self.nodes.iter().any(|node| !node.stages.is_empty())
    }
}

/// Kinds with how many there are of each, in the order in which they come first.
fn counted<K: PartialEq>(items: impl IntoIterator<Item = K>) -> Vec<(K, usize)> {
    let mut kinds: Vec<(K, usize)> = Vec::new();
    for kind in items {
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    kinds
}

impl fmt::Display for CompiledGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passes: Vec<String> =
            self.rewritten.iter().map(|Rewritten { pass, nodes }| format!("{} {nodes}", name(pass))).collect();
        let plural = if self.nodes.len() == 1 { "" } else { "s" };
        write!(f, "compiled: {} node{plural} of MLX", self.nodes.len())?;
        if !passes.is_empty() {
            write!(f, " ({})", passes.join(", "))?;
        }
        for part in self.nodes.chunk_by(|a, b| a.stages.is_empty() && b.stages.is_empty()) {
            if let [CompiledNode { stages, pieced, .. }] = part
                && !stages.is_empty()
            {
                write!(f, "\n    a plan of {} stages", stages.len())?;
                if *pieced > 0 {
                    write!(f, ", {pieced} of them in pieces")?;
                }
                for ((stage, aval), count) in counted(if f.alternate() { &[] } else { &stages[..] }) {
                    write!(f, "\n        {count} {} {aval}", name(stage))?;
                }
                continue;
            }
            for (CompiledNode { primitive, aval, reason, .. }, count) in counted(part) {
                write!(f, "\n    {count} {} {aval}", name(primitive))?;
                if let Some(reason) = reason {
                    write!(f, ": {reason}")?;
                }
            }
        }
        Ok(())
    }
}
