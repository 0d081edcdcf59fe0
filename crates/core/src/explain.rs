//! What a trace did, as data and as text.

mod explanation;
mod fold;
mod layout;
mod page;
mod picture;
mod rewritten;

use std::collections::{HashMap, HashSet};
use std::fmt;

use tacit_bridge::{Aval, Slot};

pub use self::explanation::{Equation, Explanation, Variable};
use self::fold::Repeat;
pub use self::rewritten::{CompiledGraph, CompiledNode};
use crate::counters::Counters;
use crate::dispatch::Taker;
use crate::printable::name;
use crate::{Decline, Value};

impl Explanation {
    /// The graph as an SVG: inputs above, results below, and each node in the color of who took it.
    ///
    /// A green node was taken by a handler, a blue one by a type's default. A red node needed a materialization. A gray one had dense
    /// operands only, or [deferred](crate::Materialize::DEFERRED) ones. A block of nodes that repeats, such as a layer of a model, is
    /// drawn once in a frame with the number of times. The title of a node has its parameters and the place of the handler.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::Array;
    /// use tacit_core::explain;
    ///
    /// let told = explain(Array::from_f32(1.0), |x| x.exp())?;
    /// assert!(told.to_svg().starts_with("<svg"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn to_svg(&self) -> String {
        picture::svg(self, false)
    }

    /// Gives the inputs names, such as the paths of parameters, in their order.
    ///
    /// Results of ops are then named from `a` on, without the names of inputs.
    #[must_use]
    pub fn with_input_names(mut self, names: impl IntoIterator<Item = String>) -> Self {
        let mut renamed: HashMap<String, String> = HashMap::new();
        for (input, name) in self.inputs.iter_mut().zip(names) {
            renamed.insert(std::mem::replace(&mut input.name, name.clone()), name);
        }
        let taken: HashSet<String> = self.inputs.iter().map(|input| input.name.clone()).collect();
        let mut free = (0..).map(letters).filter(|name| !taken.contains(name));
        for result in self.equations.iter_mut().flat_map(|equation| &mut equation.results) {
            let name = free.next().unwrap_or_default();
            renamed.insert(std::mem::replace(&mut result.name, name.clone()), name);
        }
        let operands = self.equations.iter_mut().flat_map(|equation| &mut equation.operands);
        for name in operands.chain(&mut self.outputs) {
            if let Some(other) = renamed.get(name) {
                name.clone_from(other);
            }
        }
        self
    }

    /// A page with the drawing of [`to_svg`](Self::to_svg), each box a link to its line in a list of all nodes.
    #[must_use]
    pub fn to_html(&self) -> String {
        page::html(self)
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
            self.equations.iter().map(|equation| (equation.result_text(), equation.call())).collect();
        let widest = |width: fn(&(String, String)) -> usize| {
            lines.iter().enumerate().filter(|(at, _)| shown(*at)).map(|(_, line)| width(line)).max().unwrap_or(0)
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
            "    in ({}) }}   {} ops, {} handled, {} materialized ({} B){}",
            self.outputs.iter().map(|output| name(output)).collect::<Vec<_>>().join(" "),
            self.equations.len(),
            self.handled(),
            self.counters.materialized,
            self.counters.materialized_bytes,
            self.counters.elsewhere()
        )?;
        if self.compiled.is_told() { write!(f, "\n{}", self.compiled) } else { Ok(()) }
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
        let Self { inputs, equations, outputs, .. } = self;
        Explanation { inputs, equations, outputs, counters, compiled: CompiledGraph::default() }
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
