//! How often a compiled function was called and traced.

use std::collections::{BTreeMap, VecDeque};

use crate::pass::Rewritten;
use crate::phases::Phases;

/// How many reasons are kept.
const KEPT: usize = 64;

/// How often a compiled function was called and traced, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileStats {
    /// Calls.
    pub calls: u64,
    /// Calls that traced.
    pub traces: u64,
    /// Calls that did not look at a part of the state, a model for example, whose [stamp](crate::tree::Stamp) was that of the calls
    /// before.
    pub steady: u64,
    /// Calls that ran the function without a compiled graph: inside another trace, with compilation switched off, by MLX too, or
    /// because the function holds an array of a transform around the call.
    pub inlined: u64,
    /// Shapes that a shapeless function was recorded on, to see that the graph is the same.
    pub checked: u64,
    /// Traces that were dropped because there were too many.
    pub evicted: u64,
    /// Where the time of the calls went; what they return is evaluated elsewhere, and [`Phases::during`] counts that as well.
    pub phases: Phases,
    /// What [passes](crate::pass) did to the graph of the latest trace.
    pub rewritten: Vec<Rewritten>,
    /// How many nodes of each primitive the latest trace gives MLX, once passes have rewritten it.
    ///
    /// A plan counts as one node. The other nodes are those that no stage of a plan computes, or that only say how an array lies.
    /// No pass rewrites a trace without shapes: its nodes are those that the function recorded.
    pub nodes: BTreeMap<&'static str, usize>,
    pub(super) retraces: VecDeque<String>,
}

impl CompileStats {
    /// Why each trace but the first was needed, oldest first; the latest 64 are kept.
    ///
    /// A reason reads as ``static block_size 64 -> 32 at `args.weight` ``, or ``shape of `args.0` f32[2,3] -> f32[4,3]``.
    pub fn retraces(&self) -> impl ExactSizeIterator<Item = &str> {
        self.retraces.iter().map(String::as_str)
    }

    /// A call took this, which counts in the place of what was counted within it, since `before`.
    pub(super) fn spent(&mut self, phases: Phases, before: Phases) {
        self.phases += phases;
        phases.add_to(before);
    }

    pub(super) fn retraced(&mut self, reason: String) {
        if self.retraces.len() == KEPT {
            self.retraces.pop_front();
        }
        self.retraces.push_back(reason);
    }
}
