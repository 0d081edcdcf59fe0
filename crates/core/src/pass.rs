//! Rewritings of the plain graph that a compiled function was traced to, before MLX compiles it.
//!
//! Compile is outermost: its graph holds what is left of the function, its gradients and the optimizer's update once
//! handlers have run, and nothing differentiates or maps it any more. A [`Pass`] replaces some nodes by others that
//! compute the same. Every crate may register one with [`register_pass!`](crate::register_pass); the facade brings
//! those of `tacit-fusion`. They run in the order of their numbers, on each trace whose inputs are tracers; a shapeless
//! trace stays as it was recorded, since a pass looks at shapes.
//! [`CompileOptions::passes`](crate::compile::CompileOptions) chooses among them, and so does [`PASSES_VARIABLE`] for a
//! whole process; [`CompileStats`](crate::compile::CompileStats) tells what they did (`rewritten`) and left (`nodes`).

mod graph;

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_rs::Array;
use tacit_bridge::any_tracer;

pub use graph::{Graph, Nodes};
pub use tacit_bridge::mlx::Feature;
pub use tacit_bridge::{Plan, PlanBuilder, PlanValue, Slot, Threads, arg_partition, scalar_value};

use crate::Result;
use crate::policy::warn;
use crate::scoped::traced_for;

/// Whether a pass may put a CPU kernel in the place of the primitive that makes `array`.
///
/// It may if the primitive runs on the CPU, on the stream on which a kernel would be put now, and no GPU is
/// [traced for](crate::kernel::trace_for).
pub fn runs_here(array: &Array) -> Result<bool> {
    Ok(traced_for().is_none() && tacit_bridge::runs_here(array)?)
}

/// The variable that chooses passes for the process: `off`, or their names with commas between them. Unset or empty, all.
pub const PASSES_VARIABLE: &str = "TACIT_PASSES";

/// A rewriting of a traced graph.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// What options and statistics call it.
    pub name: &'static str,
    /// Passes of smaller numbers come first.
    pub order: u32,
    /// Rewrites a graph, and returns the number of nodes that it replaced.
    pub run: fn(&mut Graph) -> Result<usize>,
    /// Says of each node of a graph, after all passes, why this pass left it; `None` for a node that it never takes.
    pub reasons: Option<Reasons>,
    place: &'static Location<'static>,
}

/// Tells why a pass left each node of a graph.
pub type Reasons = fn(&Nodes) -> Result<Vec<Option<&'static str>>>;

impl Pass {
    /// A pass. Passes of one number run in the order of their places in the sources, and those of one place, as where a macro has
    /// several, in that of their names.
    #[must_use]
    #[track_caller]
    pub const fn new(name: &'static str, order: u32, run: fn(&mut Graph) -> Result<usize>) -> Self {
        Self { name, order, run, reasons: None, place: Location::caller() }
    }

    /// Adds a function that says why the pass left nodes.
    #[must_use]
    pub const fn telling(self, reasons: Reasons) -> Self {
        Self { reasons: Some(reasons), ..self }
    }

    /// The registered passes, in the order in which they run.
    #[must_use]
    pub fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Pass>> = LazyLock::new(|| {
            let mut passes: Vec<Pass> = inventory::iter::<Pass>().copied().collect();
            // The linker decides the order of inventory.
            passes.sort_by_key(Pass::rank);
            passes
        });
        &ALL
    }

    /// The key that passes are sorted by.
    fn rank(&self) -> (u32, &'static str, u32, &'static str) {
        (self.order, self.place.file(), self.place.line(), self.name)
    }
}

inventory::collect!(Pass);

/// Registers a [`Pass`](crate::pass::Pass): its name, its number, its function, and what tells why it left nodes, if anything does.
///
/// ```
/// use tacit_core::pass::Graph;
///
/// fn looks(graph: &mut Graph) -> tacit_core::Result<usize> {
///     println!("{} results", graph.outputs().len());
///     Ok(0)
/// }
///
/// tacit_core::register_pass!("looks", 100, looks);
/// ```
#[macro_export]
macro_rules! register_pass {
    ($name:expr, $order:expr, $run:expr) => {
        $crate::__private::inventory::submit! { $crate::pass::Pass::new($name, $order, $run) }
    };
    ($name:expr, $order:expr, $run:expr, $reasons:expr) => {
        $crate::__private::inventory::submit! { $crate::pass::Pass::new($name, $order, $run).telling($reasons) }
    };
}

/// Which passes rewrite what a compiled function was traced to; a pass runs if [`PASSES_VARIABLE`] chooses it as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Passes {
    /// All that are registered.
    #[default]
    All,
    /// None.
    Off,
    /// The passes of these names.
    Only(Vec<String>),
}

impl Passes {
    /// What [`PASSES_VARIABLE`] chooses, read once.
    fn of_process() -> &'static Self {
        static CHOSEN: LazyLock<Passes> = LazyLock::new(|| {
            std::env::var_os(PASSES_VARIABLE).map_or(Passes::All, |text| Passes::named(&text.to_string_lossy()))
        });
        static TOLD: AtomicBool = AtomicBool::new(false);
        // Who is told may compile a function itself, and so ask again.
        if !TOLD.swap(true, Ordering::Relaxed) {
            CHOSEN.warn_of_unknown();
        }
        &CHOSEN
    }

    /// What a text such as that of [`PASSES_VARIABLE`] chooses: `off`, or names with commas between them; all where it is empty.
    #[must_use]
    pub fn named(text: &str) -> Self {
        match text.trim() {
            "" => Self::All,
            "off" => Self::Off,
            names => Self::Only(names.split(',').map(|name| name.trim().to_owned()).collect()),
        }
    }

    /// The passes that are chosen by name.
    #[must_use]
    pub fn names(&self) -> &[String] {
        if let Self::Only(names) = self { names } else { &[] }
    }

    fn warn_of_unknown(&self) {
        let known: Vec<&str> = Pass::all().iter().map(|pass| pass.name).collect();
        for unknown in self.names().iter().filter(|name| !known.contains(&name.as_str())) {
            let all = known.join(", ");
            warn(&format!("{PASSES_VARIABLE} names the pass {unknown}, which is not one of {all}; `off` runs none"));
        }
    }

    /// The passes that run: the process has chosen them as well.
    pub(crate) fn chosen(&self) -> impl Iterator<Item = &'static Pass> + '_ {
        Pass::all().iter().filter(|pass| self.has(pass) && Self::of_process().has(pass))
    }

    fn has(&self, pass: &Pass) -> bool {
        match self {
            Self::All => true,
            Self::Off => false,
            Self::Only(names) => names.iter().any(|name| name == pass.name),
        }
    }
}

/// What a pass did to a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// The pass.
    pub pass: &'static str,
    /// The number of nodes that it replaced.
    pub nodes: usize,
}

/// What passes left of a graph.
#[derive(Default)]
pub(crate) struct PassStats {
    pub(crate) rewritten: Vec<Rewritten>,
    /// How many nodes there are of each primitive.
    pub(crate) nodes: BTreeMap<&'static str, usize>,
}

/// Runs the passes on the graph from `inputs` to `outputs`, in the place of which come the outputs that it gives.
pub(crate) fn rewrite(passes: &Passes, inputs: &[Array], outputs: Vec<Array>) -> Result<(Vec<Array>, PassStats)> {
    // Where MLX does not compile, it calls the function on arrays themselves, which others hold.
    if !any_tracer(&inputs.iter().collect::<Vec<_>>()) {
        return Ok((outputs, PassStats::default()));
    }
    let mut graph = Graph::new(inputs, outputs);
    let rewritten = run(passes, &mut graph)?;
    let mut pass_stats = PassStats { rewritten, ..PassStats::default() };
    let nodes = graph.nodes()?;
    computing(&nodes).for_each(|node| *pass_stats.nodes.entry(nodes.name(node)).or_default() += 1);
    drop(nodes);
    Ok((graph.outputs, pass_stats))
}

pub(crate) fn run(passes: &Passes, graph: &mut Graph) -> Result<Vec<Rewritten>> {
    let mut rewritten = Vec::new();
    for pass in passes.chosen() {
        let nodes = (pass.run)(graph)?;
        if nodes > 0 {
            rewritten.push(Rewritten { pass: pass.name, nodes });
        }
    }
    Ok(rewritten)
}

/// The nodes of a graph but for the results of plans, which compute nothing.
pub(crate) fn computing(nodes: &Nodes) -> impl Iterator<Item = usize> + '_ {
    (0..nodes.len()).filter(|&node| nodes.name(node) != "PlanResult")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_of_one_macro_call_run_in_the_order_of_their_names() {
        let [second, first] = ["second", "first"].map(|name| Pass::new(name, 5, |_| Ok(0)));
        assert!(first.rank() < second.rank());
        // Places are compared before.
        let later = Pass::new("a", 5, |_| Ok(0));
        assert!(second.rank() < later.rank() && later.rank() < Pass::new("a", 6, |_| Ok(0)).rank());
    }
}
