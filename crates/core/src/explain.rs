//! What a trace did, as data and as text.

mod equation;
mod fold;
mod layout;
mod page;
mod picture;

use std::collections::HashMap;
use std::fmt;

use tacit_bridge::{Aval, Slot};

pub use self::equation::{Equation, Variable};
use self::fold::Repeat;
use crate::Value;
use crate::counters::Counters;
use crate::dispatch::{Decline, Taker};
use crate::printable::name;

/// What a trace did: each node, who took it, what was built.
///
/// It prints like a jaxpr, with the handler and its place beside each node that one took. `{:#}` prints a block of nodes that
/// repeats, such as a layer of a model, once, and tells how many more there are.
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

impl Explanation {
    /// Whether only equations for which others stand take an input, such as the weight of a layer that is not shown.
    fn is_folded(&self, repeat: Option<&Repeat>, input: &str) -> bool {
        let Some(folded) = repeat.map(Repeat::folded) else { return false };
        let takes = |equation: &Equation| equation.operands.iter().any(|operand| operand == input);
        let mut taken = self.equations.iter().enumerate().filter(|(_, equation)| takes(equation)).peekable();
        taken.peek().is_some()
            && taken.all(|(at, _)| folded.contains(&at))
            && !self.outputs.iter().any(|output| output == input)
    }

    fn handled(&self) -> usize {
        self.equations.iter().filter(|e| matches!(e.taker, Taker::Handler(_) | Taker::Default(_))).count()
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repeat = if f.alternate() { Repeat::find(&self.equations) } else { None };
        f.write_str("{ lambda")?;
        for input in self.inputs.iter().filter(|input| !self.is_folded(repeat.as_ref(), &input.name)) {
            write!(f, " {input}")?;
        }
        f.write_str(" .\n")?;
        let folded = repeat.as_ref().map(Repeat::folded).unwrap_or_default();
        let shown = |at: usize| !folded.contains(&at);
        let lines: Vec<(String, String)> =
            self.equations.iter().map(|equation| (equation.made(), equation.call())).collect();
        let widest = |of: fn(&(String, String)) -> usize| {
            lines.iter().enumerate().filter(|(at, _)| shown(*at)).map(|(_, line)| of(line)).max().unwrap_or(0)
        };
        let (left, right) = (widest(|line| line.0.len()), widest(|line| line.1.len()));
        for (at, (equation, (results, call))) in self.equations.iter().zip(&lines).enumerate() {
            if let Some(repeat) = repeat.as_ref().filter(|_| at == folded.start) {
                writeln!(f, "    .. the last {} ops {} times more", repeat.block.len(), repeat.times - 1)?;
            }
            if !shown(at) {
                continue;
            }
            match equation.taken_by() {
                taker if taker.is_empty() => writeln!(f, "    {results:left$} = {call}")?,
                taker => writeln!(f, "    {results:left$} = {call:right$}   {taker}")?,
            }
            for decline in &equation.declined {
                writeln!(f, "        {decline}")?;
            }
        }
        write!(
            f,
            "    in ({}) }}   {} ops, {} handled, {} materialized ({} B)",
            self.outputs.iter().map(|output| name(output)).collect::<Vec<_>>().join(" "),
            self.equations.len(),
            self.handled(),
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
