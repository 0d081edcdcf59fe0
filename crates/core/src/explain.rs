//! What a trace did, as data and as text.

use std::collections::HashMap;
use std::fmt;

use tacit_bridge::{Aval, Slot};

use crate::Value;
use crate::counters::Counters;
use crate::dispatch::{Decline, Taker};

/// What a trace did: each node, who took it, what was built.
///
/// It prints like a jaxpr, with the handler and its place beside each node that one took.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The arguments.
    pub inputs: Vec<Variable>,
    /// The nodes in order.
    pub equations: Vec<Equation>,
    /// The names of the results.
    pub outputs: Vec<String>,
    /// What was counted, in handlers that redispatched too.
    pub counters: Counters,
}

/// A value with its name and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// A letter.
    pub name: String,
    /// `f32[4,8]` dense, `Nf4(f32[4,8])` implicit.
    pub form: String,
}

/// One node.
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

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.form)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{ lambda")?;
        for input in &self.inputs {
            write!(f, " {input}")?;
        }
        f.write_str(" .\n")?;
        let lines: Vec<(String, String)> = self
            .equations
            .iter()
            .map(|equation| {
                let results: Vec<String> = equation.results.iter().map(ToString::to_string).collect();
                (results.join(" "), format!("{} {}", equation.primitive, equation.operands.join(" ")))
            })
            .collect();
        let left = lines.iter().map(|line| line.0.len()).max().unwrap_or(0);
        let right = lines.iter().map(|line| line.1.len()).max().unwrap_or(0);
        for (equation, (results, call)) in self.equations.iter().zip(&lines) {
            match &equation.taker {
                Taker::Dense => writeln!(f, "    {results:left$} = {call}")?,
                Taker::Materialized => writeln!(f, "    {results:left$} = {call:right$}   materialized")?,
                Taker::Computed => writeln!(f, "    {results:left$} = {call:right$}   computed")?,
                Taker::Default(ty) => writeln!(f, "    {results:left$} = {call:right$}   default of {ty}")?,
                Taker::Handler(site) => {
                    writeln!(f, "    {results:left$} = {call:right$}   {}   {}:{}", site.name, site.file, site.line)?;
                }
            }
            for decline in &equation.declined {
                writeln!(f, "        {decline}")?;
            }
        }
        write!(
            f,
            "    in ({}) }}   {} ops, {} handled, {} materialized ({} B)",
            self.outputs.join(" "),
            self.equations.len(),
            self.equations.iter().filter(|e| matches!(e.taker, Taker::Handler(_) | Taker::Default(_))).count(),
            self.counters.materialized,
            self.counters.materialized_bytes
        )
    }
}

/// Writes the explanation while the trace goes on.
#[derive(Default)]
pub(crate) struct Scribe {
    names: HashMap<usize, String>,
    inputs: Vec<Variable>,
    equations: Vec<Equation>,
    outputs: Vec<String>,
}

impl Scribe {
    /// Names the arguments, which have the first slots.
    pub(crate) fn begin(&mut self, inputs: &[&Value]) {
        for (slot, value) in inputs.iter().enumerate() {
            let name = self.name(slot);
            self.inputs.push(Variable { name, form: value.to_string() });
        }
    }

    pub(crate) fn node(
        &mut self,
        primitive: String,
        operands: &[(Option<Slot>, Aval)],
        results: Vec<(Slot, String)>,
        (taker, declined): (Taker, Vec<Decline>),
    ) {
        let operands = operands
            .iter()
            .map(|(slot, aval)| slot.map_or_else(|| aval.to_string(), |slot| self.name(slot.index())))
            .collect();
        let results =
            results.into_iter().map(|(slot, form)| Variable { name: self.name(slot.index()), form }).collect();
        self.equations.push(Equation { results, primitive, operands, taker, declined });
    }

    pub(crate) fn end(&mut self, slots: &[Option<Slot>], values: &[Value]) {
        for (slot, value) in slots.iter().zip(values) {
            let name = slot.map_or_else(|| value.to_string(), |slot| self.name(slot.index()));
            self.outputs.push(name);
        }
    }

    pub(crate) fn finish(self, counters: Counters) -> Explanation {
        Explanation { inputs: self.inputs, equations: self.equations, outputs: self.outputs, counters }
    }

    fn name(&mut self, slot: usize) -> String {
        let next = self.names.len();
        self.names.entry(slot).or_insert_with(|| letters(next)).clone()
    }
}

/// The n-th name: a to z, then aa, ab and so on.
fn letters(n: usize) -> String {
    let letter = char::from(b'a' + (n % 26) as u8);
    if n < 26 { letter.to_string() } else { format!("{}{letter}", letters(n / 26 - 1)) }
}
