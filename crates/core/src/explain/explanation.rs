//! What a trace did, as data.

use std::fmt;

use crate::Decline;
use crate::counters::Counters;
use crate::dispatch::Taker;
use crate::printable::name;

use super::rewritten::CompiledGraph;

/// What a trace did: each node, who took it, what was built.
///
/// It prints like a jaxpr, with the handler and its place beside each node that one took. `{:#}` prints a block of nodes that
/// repeats, such as a layer of a model, once, and tells how many more there are. What a [compiled](crate::compile()) function
/// gives MLX follows, where that is not a single node without stages.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The arguments.
    pub inputs: Vec<Variable>,
    /// The nodes in order.
    pub equations: Vec<Equation>,
    /// The names of the results.
    pub outputs: Vec<String>,
    /// What was counted, inside handlers too.
    pub counters: Counters,
    /// What passes make of it where it is compiled.
    pub compiled: CompiledGraph,
}

/// A value with its name and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name: `a` to `z`, then `aa` and so on, or what [`Explanation::with_input_names`] gave an input.
    pub name: String,
    /// The value in jaxpr notation: `f32[4,8]` dense, `Nf4(f32[4,8])` implicit.
    pub form: String,
}

/// One node of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Equation {
    /// The results.
    pub results: Vec<Variable>,
    /// The primitive with its parameters.
    pub primitive: String,
    /// The operands: names, or the aval of a constant.
    pub operands: Vec<String>,
    /// Who took it.
    pub taker: Taker,
    /// The handlers that matched it and declined, before.
    pub declined: Vec<Decline>,
}

impl Explanation {
    pub(super) fn handled(&self) -> usize {
        self.equations.iter().filter(|e| matches!(e.taker, Taker::Handler(_) | Taker::Default(_))).count()
    }
}

impl Equation {
    pub(super) fn taken_by(&self) -> String {
        match &self.taker {
            Taker::Dense => String::new(),
            Taker::Materialized => "materialized".to_owned(),
            Taker::Computed => "computed".to_owned(),
            Taker::Default(ty) => format!("default of {ty}"),
            Taker::Handler(site) => format!("{}   {}:{}", site.name, site.file, site.line),
        }
    }

    pub(super) fn call(&self) -> String {
        let operands: Vec<_> = self.operands.iter().map(|operand| name(operand)).collect();
        format!("{} {}", self.primitive, operands.join(" "))
    }

    pub(super) fn result_text(&self) -> String {
        self.results.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Equation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}   {}", self.result_text(), self.call(), self.taken_by())
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", name(&self.name), self.form)
    }
}
