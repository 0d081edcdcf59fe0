//! Record a function on placeholders, walk the graph, interpret it.

mod after;
mod memory;
mod origins;
mod slots;

use mlx_rs::Array;
use tacit_bridge::{Aval, NameId, Scope, Slot, Tape};

use crate::counters::Counters;
use crate::dispatch::{self, Node, Outcome, Taker};
use crate::explain::{Explanation, Scribe};
use crate::indices;
use crate::lookup::Lookup;
use crate::pattern::OperandType;
use crate::recording::{Recording, guarded};
use crate::{Argument, Decline, Error, Policy, Primitive, Result, Value, handling};

pub(crate) use after::once_plain;
use memory::Memory;
use slots::{Layers, Passed};

/// Runs `f` on `args`, with every primitive on an implicit one intercepted; results of deferred ops are computed.
pub(crate) fn run(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>) -> Result<Vec<Value>> {
    run_or_defer(args, f, false)
}

/// Runs `f` as [`run`] does; inside a handler, whose caller may look at the results, those that are deferred stay so.
pub(crate) fn redispatch(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>) -> Result<Vec<Value>> {
    run_or_defer(args, f, handling::is_handling())
}

fn run_or_defer(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>, defers: bool) -> Result<Vec<Value>> {
    if args.iter().all(|arg| !arg.is_implicit()) {
        let arrays = args.iter().filter_map(|arg| arg.as_dense().cloned()).collect();
        return Ok(guarded(|| f(arrays))?.into_iter().map(Value::from).collect());
    }
    trace(args, f, defers, None)
}

/// Runs `f` on `args` and tells what happened to each node, those on dense values included.
pub(crate) fn run_explained(
    args: &[Value],
    f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>,
) -> Result<(Vec<Value>, Explanation)> {
    let mut scribe = Scribe::default();
    let (results, counters) = Counters::during(|| trace(args, f, false, Some(&mut scribe)));
    Ok((results?, scribe.finish(counters)))
}

fn trace(
    args: &[Value],
    f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>,
    defers: bool,
    mut scribe: Option<&mut Scribe>,
) -> Result<Vec<Value>> {
    let tracing = after::Tracing::enter();
    let scope = Scope::new()?;
    let mut placeholders = Vec::new();
    let mut traced = Vec::new();
    let mut numbers = Vec::new();
    let mut avals = Vec::new();
    let mut arrays = Vec::with_capacity(args.len());
    let mut boundaries = Vec::new();
    for (number, arg) in args.iter().enumerate() {
        match arg {
            // A dense argument goes in as it is; only an explanation wants to see the nodes that depend on it alone.
            Value::Dense(array) if scribe.is_none() => {
                arrays.push(array.clone());
                boundaries.push(array.clone());
            }
            _ => {
                let aval = arg.aval()?;
                let placeholder = scope.placeholder(&aval)?;
                arrays.push(placeholder.clone());
                placeholders.push(placeholder);
                traced.push(arg);
                numbers.push(number);
                avals.push(aval);
            }
        }
    }
    let outputs = {
        let _recording = Recording::enter();
        guarded(|| f(arrays))?
    };
    let tape = Tape::walk_in(&scope, &outputs, &placeholders, &boundaries)?;
    drop(placeholders);
    if let Some(scribe) = scribe.as_deref_mut() {
        scribe.begin(&traced);
    }
    let mut interpreter = Interpreter::new(tape, traced.into_iter().cloned(), defers);
    let results = guarded(|| interpreter.interpret(outputs, scribe));
    interpreter.counters.add();
    drop(interpreter);
    let results = results
        .map_err(|error| error.with_arguments(|slot| numbers.get(slot).map(|&number| Argument::Number(number))))?;
    tracing.end()?;
    match scope.live() {
        0 => Ok(results),
        count => Err(Error::PlaceholderLeaked { count, avals }),
    }
}

struct Interpreter {
    tape: Tape,
    node: usize,
    /// Whether deferred results stay so.
    defers: bool,
    memory: Memory,
    counters: Counters,
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        std::mem::take(&mut self.memory).spare();
    }
}

impl Interpreter {
    fn new(tape: Tape, arguments: impl Iterator<Item = Value>, defers: bool) -> Self {
        let mut memory = Memory::again();
        memory.slots.begin(arguments, tape.slots());
        Self { tape, node: 0, defers, memory, counters: Counters::default() }
    }

    fn interpret(&mut self, outputs: Vec<Array>, mut scribe: Option<&mut Scribe>) -> Result<Vec<Value>> {
        let (mut lookup, mut outcome) = (Lookup::current(), Outcome::default());
        for node in 0..self.tape.len() {
            let (mut replaced, mut implicit) = (false, None);
            for (operand, slot) in self.tape.operands(node).enumerate() {
                if let Some(layers) = slot.and_then(|slot| self.memory.slots.get(slot)) {
                    replaced = true;
                    if layers.outermost.is_implicit() {
                        implicit = Some(if implicit.is_none() { Implicit::Only(operand) } else { Implicit::Several });
                    }
                }
            }
            let done = match implicit {
                None if replaced => {
                    self.rewire(node);
                    Ok(())
                }
                None => Ok(()),
                // An explanation tells of each node.
                Some(Implicit::Only(operand)) if scribe.is_none() => {
                    self.pass(node, operand, &mut lookup, &mut outcome)
                }
                Some(_) => self.dispatch(node, &mut lookup, &mut outcome),
            };
            done.map_err(|error| origins::told(error, &self.tape, &self.memory.slots, node))?;
            if let Some(scribe) = scribe.as_deref_mut() {
                let taken = if implicit.is_some() { told(&mut outcome) } else { (Taker::Dense, Vec::new()) };
                self.note(scribe, node, taken)?;
            }
        }
        drop(lookup);
        self.tape.rewire()?;
        if !self.defers {
            self.compute()?;
        }
        let slots: Vec<Option<Slot>> = self.tape.outputs().collect();
        let results: Vec<Value> = outputs
            .into_iter()
            .zip(&slots)
            .map(|(output, slot)| match self.layers(*slot) {
                Some(layers) if self.defers => layers.outermost.clone(),
                Some(layers) => layers.computed().unwrap_or(&layers.outermost).clone(),
                None => output.into(),
            })
            .collect();
        self.supersede()?;
        if let Some(scribe) = scribe {
            scribe.end(&slots, &results);
        }
        Ok(results)
    }

    /// Begins a node: every operand is seen in its outermost layer.
    fn enter(&mut self, node: usize) {
        self.node = node;
        let depths = &mut self.memory.depths;
        depths.clear();
        depths.resize(self.tape.arity(node), 0);
        self.memory.replaced.clear();
    }

    /// The layers of an operand, where something stands in its place.
    fn layers(&self, slot: Option<Slot>) -> Option<&Layers> {
        self.memory.slots.get(slot?)
    }

    /// Dispatches a node with one implicit operand, unless the same was asked before in vain: that nobody takes a call
    /// follows from its primitive, the types of its operands and the policy.
    fn pass(&mut self, node: usize, operand: usize, lookup: &mut Lookup, outcome: &mut Outcome) -> Result<()> {
        let Some(slot) = self.tape.operand_slot(node, operand) else { return Ok(()) };
        let (name, arity) = (self.tape.name(node), self.tape.arity(node));
        let passed = Passed { name, operand, arity, policy: Policy::guarded() };
        if self.memory.slots.get(slot).is_some_and(|layers| layers.passed == Some(passed)) {
            self.counters.seen += 1;
            self.rewire(node);
            return Ok(());
        }
        self.dispatch(node, lookup, outcome)?;
        // Indices are to be checked whoever takes the call.
        if outcome.taker.is_none()
            && !outcome.offered
            && !indices::are_in(name)
            && let Some(layers) = self.memory.slots.get_mut(slot)
        {
            layers.passed = Some(passed);
        }
        Ok(())
    }

    fn dispatch(&mut self, node: usize, lookup: &mut Lookup, outcome: &mut Outcome) -> Result<()> {
        self.counters.seen += 1;
        self.enter(node);
        for (slot, depth) in self.tape.operands(node).zip(&mut self.memory.depths) {
            if let Some(layers) = slot.and_then(|slot| self.memory.slots.get_mut(slot)) {
                *depth = layers.used()?;
            }
        }
        dispatch::dispatch(self, lookup, outcome)?;
        if outcome.taker.is_none() {
            self.rewire(node);
            // What stands in the place of operands of this node, after the edges of all.
            for (operand, value) in self.memory.replaced.drain(..) {
                if let Value::Dense(array) = value {
                    let kept = self.tape.keep(array);
                    self.tape.plan(self.node, operand, kept);
                }
            }
            return Ok(());
        }
        self.memory.replaced.clear();
        self.counters.handled += 1;
        self.memory.taken.push(node);
        for (slot, value) in self.tape.results(node).zip(outcome.results.drain(..)) {
            self.memory.slots.put(slot, value);
        }
        Ok(())
    }

    /// Computes the results that are deferred.
    fn compute(&mut self) -> Result<()> {
        let Self { tape, memory, .. } = self;
        tape.outputs().flatten().filter_map(|slot| memory.slots.get_mut(slot).map(Layers::compute)).collect()
    }

    /// Gives the handlers' results to the recorded nodes as well, for a function that keeps one of them, such as a cache
    /// of a model. One that is implicit has no data to give.
    fn supersede(&mut self) -> Result<()> {
        let Self { tape, memory: Memory { slots, taken, .. }, .. } = self;
        let dense = |slot: Slot| slots.get(slot).and_then(|layers| layers.last().as_dense());
        let results: Vec<_> = taken.iter().map(|&node| (node, tape.results(node).map(dense))).collect();
        Ok(tape.supersede(results)?)
    }

    /// Plans the node's edges to the dense values that stand in for its recorded operands: the last layer of each.
    fn rewire(&mut self, node: usize) {
        let Self { tape, memory: Memory { slots, .. }, .. } = self;
        for operand in 0..tape.arity(node) {
            let Some(layers) = tape.operand_slot(node, operand).and_then(|slot| slots.get_mut(slot)) else { continue };
            if layers.kept.is_none() {
                let Value::Dense(array) = layers.last() else { continue };
                layers.kept = Some(tape.keep(array.clone()));
            }
            if let Some(kept) = layers.kept {
                tape.plan(node, operand, kept);
            }
        }
    }

    fn note(&self, scribe: &mut Scribe, node: usize, taken: (Taker, Vec<Decline>)) -> Result<()> {
        let primitive = Primitive::new(self.tape.primitive(node)?).to_string();
        let slots: Vec<Option<Slot>> = self.tape.operands(node).collect();
        let mut operands = Vec::with_capacity(slots.len());
        for (operand, slot) in slots.into_iter().enumerate() {
            operands.push((slot, Aval::from(&self.tape.operand(node, operand)?)));
        }
        let mut results = Vec::new();
        for (i, slot) in self.tape.results(node).enumerate() {
            let form = match self.layers(Some(slot)) {
                Some(layers) => layers.outermost.to_string(),
                None => self.tape.aval(node, i)?.to_string(),
            };
            results.push((slot, form));
        }
        scribe.node(primitive, &operands, results, taken);
        Ok(())
    }
}

/// Which operands of a node are implicit.
enum Implicit {
    Only(usize),
    Several,
}

/// What an explanation tells of a call.
fn told(outcome: &mut Outcome) -> (Taker, Vec<Decline>) {
    let emitted = if outcome.materialized { Taker::Materialized } else { Taker::Computed };
    (outcome.taker.take().unwrap_or(emitted), std::mem::take(&mut outcome.declined))
}

impl Node for Interpreter {
    fn name(&self) -> NameId {
        self.tape.name(self.node)
    }

    fn types(&self, types: &mut Vec<OperandType>) {
        let operands = self.tape.operands(self.node).zip(&self.memory.depths);
        types.extend(operands.map(|(slot, &depth)| dispatch::operand_type(self.layers(slot)?.get(depth)?)));
    }

    fn primitive(&self) -> Result<Primitive> {
        Ok(Primitive::new(self.tape.primitive(self.node)?))
    }

    fn results(&self) -> Result<Vec<Aval>> {
        let results = 0..self.tape.results(self.node).len();
        results.map(|i| Ok(self.tape.aval(self.node, i)?)).collect()
    }

    fn with_operands<R>(&self, f: impl FnOnce(&[&Value]) -> Result<R>) -> Result<R> {
        let slots = || self.tape.operands(self.node).enumerate();
        let recorded = slots()
            .filter(|(operand, slot)| self.memory.replaced(*operand).is_none() && self.layers(*slot).is_none())
            .map(|(operand, _)| Ok(Value::Dense(self.tape.operand(self.node, operand)?)))
            .collect::<Result<Vec<Value>>>()?;
        let mut recorded = recorded.iter();
        let operands: Vec<&Value> = slots()
            .filter_map(|(operand, slot)| match (self.memory.replaced(operand), self.layers(slot)) {
                (Some(replaced), _) => Some(replaced),
                (None, Some(layers)) => layers.get(self.memory.depths[operand]),
                (None, None) => recorded.next(),
            })
            .collect();
        f(&operands)
    }

    /// What a handler is given depends on no placeholder any more.
    fn settle(&mut self) -> Result<()> {
        if self.tape.has_plan() {
            self.tape.rewire()?;
        }
        Ok(())
    }

    /// A layer is built once in a trace.
    fn lower(&mut self, operand: usize) -> Result<()> {
        let Some(slot) = self.tape.operand_slot(self.node, operand) else { return Ok(()) };
        let Memory { slots, depths, .. } = &mut self.memory;
        let Some(layers) = slots.get_mut(slot) else { return Ok(()) };
        layers.lower(depths[operand])?;
        depths[operand] += 1;
        Ok(())
    }

    fn replace(&mut self, operand: usize, array: Array) {
        self.memory.replaced.push((operand, array.into()));
    }
}
