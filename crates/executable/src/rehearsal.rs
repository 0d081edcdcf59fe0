//! The leading rows of a batch alone: whether a function computes the same for them as for the whole.
//!
//! A run on fewer rows is the function itself on cut inputs. Before, [`rehearse`] records it on placeholders of both
//! extents and lays the two graphs side by side. Where the shapes of a node differ, the rows lie: nothing has to know how
//! a primitive works out its shapes. What is left to check of each node is in [`rule`]: that rows do not mix where shapes
//! cannot show it. What depends on no input must be the same for both extents.

mod rule;

use std::collections::BTreeSet;

use mlx_rs::Array;
use tacit_bridge::typed::{Class, describe};
use tacit_bridge::{Scope, Slot, Tape, array_id};
use tacit_core::{Aval, Error, Result, embedding};

use crate::Named;
use crate::body::Body;
use crate::extent::{Extent, Mixed, Place, leading_part};

/// The avals of the outputs of the leading rows alone, if these are the leading rows of the outputs.
pub(crate) fn rehearse(extent: Extent, body: &Body<'_>) -> Result<Vec<Aval>> {
    scoped(body, |scope| compare(extent, body, scope))
}

/// The avals of the outputs, of a function that was not called.
pub(crate) fn avals(body: &Body<'_>) -> Result<Vec<Aval>> {
    scoped(body, |scope| {
        let Graph { outputs, .. } = Graph::record(body, scope, Aval::clone)?;
        body.signature.check_outputs(&outputs, None)?;
        Ok(outputs.iter().map(Aval::from).collect())
    })
}

/// What `record` makes with placeholders, none of which may outlive it.
fn scoped<R>(body: &Body<'_>, record: impl FnOnce(&Scope) -> Result<R>) -> Result<R> {
    let scope = Scope::new()?;
    let recorded = record(&scope);
    match scope.live() {
        _ if recorded.is_err() => recorded,
        0 => recorded,
        count => {
            let inputs = &body.signature.inputs;
            Err(Error::PlaceholderLeaked { count, avals: inputs.iter().map(|input| input.aval.clone()).collect() })
        }
    }
}

fn compare(extent: Extent, body: &Body<'_>, scope: &Scope) -> Result<Vec<Aval>> {
    let whole = Graph::record(body, scope, Aval::clone)?;
    body.signature.check_outputs(&whole.outputs, None)?;
    let cut = Graph::record(body, scope, |aval| extent.cut(aval)).map_err(|error| match error {
        Error::EvalInTrace | Error::PlaceholderLeaked { .. } => error,
        other => {
            let why = format!("the function fails on them: {}", other.clause());
            extent.refusal(&why, "let it read the extent, as `x.shape()[0]`, where it names one")
        }
    })?;
    let placeholders = body.signature.parameters.len() + body.signature.inputs.len();
    let pairs = (0..placeholders).map(|slot| (slot, slot)).collect();
    let results = cut.outputs.iter().map(Aval::from).collect();
    Sides { extent, whole, cut, pairs }.compare()?;
    Ok(results)
}

/// A function recorded on placeholders of some avals.
struct Graph {
    tape: Tape,
    outputs: Vec<Array>,
    /// The aval of each slot.
    avals: Vec<Aval>,
}

impl Graph {
    fn record(body: &Body<'_>, scope: &Scope, of: impl Fn(&Aval) -> Aval) -> Result<Self> {
        let placeholder = |aval: &Aval| Ok(scope.placeholder(aval)?);
        let parameters = body.signature.parameters.iter().map(|parameter| placeholder(&parameter.aval));
        let parameters = parameters.collect::<Result<Vec<Array>>>()?;
        let inputs = body.signature.inputs.iter().map(|input| placeholder(&of(&input.aval)));
        let inputs = inputs.collect::<Result<Vec<Array>>>()?;
        let outputs = embedding::record(|| (body.function)(&Named::new(&body.signature, &parameters, &inputs)))?;
        let placeholders = [parameters, inputs].concat();
        let tape = Tape::walk(&outputs, &placeholders, &[])?;
        let mut avals: Vec<Aval> = placeholders.iter().map(Aval::from).collect();
        for node in 0..tape.len() {
            for result in 0..tape.results(node).len() {
                avals.push(Aval::from(&tape.result(node, result)?));
            }
        }
        Ok(Self { tape, outputs, avals })
    }

    fn name(&self, node: usize) -> Option<&'static str> {
        (node < self.tape.len()).then(|| self.tape.name(node).text())
    }

    fn slots(&self, node: usize) -> Vec<Option<usize>> {
        self.tape.operands(node).map(|slot| slot.map(Slot::index)).collect()
    }

    /// The first operand and the first result of a node that MLX leaves out where it does nothing, if it is one: for one
    /// extent and not for the other.
    fn left_out(&self, node: usize) -> Option<(usize, usize)> {
        describe(self.name(node)?).filter(|row| matches!(row.class, Class::Moving | Class::Reshaping))?;
        Some((self.tape.operand_slot(node, 0)?.index(), self.tape.results(node).next()?.index()))
    }
}

/// The graph of all rows beside that of the leading ones.
struct Sides {
    extent: Extent,
    whole: Graph,
    cut: Graph,
    /// The slots of either that stand for each other.
    pairs: BTreeSet<(usize, usize)>,
}

impl Sides {
    fn compare(mut self) -> Result<()> {
        let (mut node, mut other) = (0, 0);
        while node < self.whole.tape.len() || other < self.cut.tape.len() {
            if self.are_one(node, other) {
                self.check(node, other)?;
                (node, other) = (node + 1, other + 1);
                continue;
            }
            let more = self.cut.tape.len() - other > self.whole.tape.len() - node;
            let (alone, pair, result) = match (self.whole.left_out(node), self.cut.left_out(other)) {
                (Some((from, to)), _) if !more => {
                    node += 1;
                    let pair = self.pairs.iter().rev().find(|pair| pair.0 == from).copied();
                    ((&self.whole, node - 1), pair, pair.map(|pair| (to, pair.1)))
                }
                (_, Some((from, to))) => {
                    other += 1;
                    let pair = self.pairs.iter().rev().find(|pair| pair.1 == from).copied();
                    ((&self.cut, other - 1), pair, pair.map(|pair| (pair.0, to)))
                }
                _ => return Err(self.differs(node, other)),
            };
            let (Some(pair), Some(result)) = (pair, result) else { return Err(self.differs(node, other)) };
            let primitive = alone.0.tape.primitive(alone.1)?;
            rule::check(self.extent, primitive, None, &[self.avals(pair)], &[self.avals(result)])?;
            self.pairs.insert(result);
        }
        let outputs = self
            .whole
            .tape
            .outputs()
            .zip(self.cut.tape.outputs())
            .zip(self.whole.outputs.iter().zip(&self.cut.outputs));
        for ((slot, other), (whole, cut)) in outputs {
            match (slot.map(Slot::index), other.map(Slot::index)) {
                (Some(slot), Some(other)) if self.pairs.contains(&(slot, other)) => {}
                (None, None) => check_constant(self.extent, whole, cut, "an output")?,
                _ => return Err(self.differs(node, self.cut.tape.len())),
            }
        }
        Ok(())
    }

    /// Whether two nodes are one primitive on operands that stand for each other.
    fn are_one(&self, node: usize, other: usize) -> bool {
        let (name, named) = (self.whole.name(node), self.cut.name(other));
        name.is_some() && name == named && {
            let (slots, others) = (self.whole.slots(node), self.cut.slots(other));
            slots.len() == others.len()
                && slots.into_iter().zip(others).all(|pair| match pair {
                    (Some(slot), Some(other)) => self.pairs.contains(&(slot, other)),
                    (slot, other) => slot == other,
                })
        }
    }

    /// Checks a node that both have.
    fn check(&mut self, node: usize, other: usize) -> Result<()> {
        let primitive = self.whole.tape.primitive(node)?;
        let mut operands = Vec::with_capacity(self.whole.tape.arity(node));
        for (operand, slot) in self.whole.tape.operands(node).enumerate() {
            let (whole, cut) = (self.whole.tape.operand(node, operand)?, self.cut.tape.operand(other, operand)?);
            if slot.is_none() {
                check_constant(self.extent, &whole, &cut, &format!("an operand of {primitive}"))?;
            }
            operands.push((Aval::from(&whole), Aval::from(&cut)));
        }
        let slots = self.whole.tape.results(node).map(Slot::index).zip(self.cut.tape.results(other).map(Slot::index));
        let slots: Vec<(usize, usize)> = slots.collect();
        let results: Vec<(Aval, Aval)> = slots.iter().map(|pair| self.avals(*pair)).collect();
        self.pairs.extend(slots);
        rule::check(self.extent, primitive, Some(self.cut.tape.primitive(other)?), &operands, &results)
    }

    fn avals(&self, pair: (usize, usize)) -> (Aval, Aval) {
        (self.whole.avals[pair.0].clone(), self.cut.avals[pair.1].clone())
    }

    fn differs(&self, node: usize, other: usize) -> Error {
        let name = |graph: &Graph, node| graph.name(node).unwrap_or("nothing");
        let (all, these) = (name(&self.whole, node), name(&self.cut, other));
        self.extent.refusal(
            &format!("the function has {these} for them where it has {all} for all"),
            "let it do the same for every extent, or run all of them",
        )
    }
}

/// What depends on no input must be the same for these rows as for all, or the leading part of it.
fn check_constant(extent: Extent, whole: &Array, cut: &Array, of: &str) -> Result<()> {
    if array_id(whole) == array_id(cut) {
        return Ok(());
    }
    let same = match extent.place(whole.shape(), cut.shape()) {
        Err(Mixed) => false,
        Ok(place) => {
            let part = match place {
                Some(Place { axis, .. }) => &leading_part(whole, axis, cut.shape()[axis])?,
                None => whole,
            };
            embedding::same_bits(part, cut)?
        }
    };
    if same {
        return Ok(());
    }
    Err(extent.refusal(
        &format!("{of} is a constant {} that is another for them", Aval::from(whole)),
        "let the function read no extent into a value and draw no random numbers, or run all rows",
    ))
}
