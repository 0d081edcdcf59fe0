//! Record a function on placeholders, walk the graph, interpret it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use mlx_rs::Array;
use tacit_bridge::mlx::{self, Refusal};
use tacit_bridge::{Aval, Kept, NameId, Scope, Slot, Tape};

use crate::counters::Counters;
use crate::dispatch::{self, Decline, Node, Taker};
use crate::explain::{Explanation, Scribe};
use crate::pattern::OperandType;
use crate::{Error, Primitive, Registry, Result, Value, materialize};

/// Runs `f` on `args`, with every primitive on an implicit one intercepted; results of deferred ops are computed.
pub(crate) fn run(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>) -> Result<Vec<Value>> {
    run_or_defer(args, f, false)
}

/// Runs `f` as [`run`] does; inside a handler, whose caller may look at the results, those that are deferred stay so.
pub(crate) fn redispatch(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>) -> Result<Vec<Value>> {
    run_or_defer(args, f, dispatch::is_handling())
}

fn run_or_defer(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>, defers: bool) -> Result<Vec<Value>> {
    if args.iter().all(|arg| !arg.is_implicit()) {
        let arrays = args.iter().filter_map(|arg| arg.as_dense().cloned()).collect();
        return Ok(record(|| f(arrays))?.into_iter().map(Value::from).collect());
    }
    trace(args, f, defers, None)
}

/// Runs `f` on `args` and tells what happened to each node, those on dense values included.
pub(crate) fn run_explained(
    args: &[Value],
    f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>,
) -> Result<(Vec<Value>, Explanation)> {
    let mut scribe = Scribe::default();
    let (results, counters) = Counters::of(|| trace(args, f, false, Some(&mut scribe)));
    Ok((results?, scribe.finish(counters)))
}

fn trace(
    args: &[Value],
    f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>,
    defers: bool,
    mut scribe: Option<&mut Scribe>,
) -> Result<Vec<Value>> {
    let scope = Scope::new()?;
    let mut placeholders = Vec::new();
    let mut held = Vec::new();
    let mut avals = Vec::new();
    let mut arrays = Vec::with_capacity(args.len());
    let mut boundaries = Vec::new();
    for arg in args {
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
                held.push(Held::Replaced(Layers::of(arg.clone())));
                avals.push(aval);
            }
        }
    }
    let outputs = {
        let _recording = Recording::enter();
        record(|| f(arrays))?
    };
    let tape = Tape::walk(&outputs, &placeholders, &boundaries)?;
    drop(placeholders);
    if let Some(scribe) = scribe.as_deref_mut() {
        scribe.begin(&held.iter().filter_map(Held::value).collect::<Vec<_>>());
    }
    held.resize_with(tape.slots(), || Held::Recorded);
    let mut interpreter = Interpreter {
        tape,
        held,
        node: 0,
        depths: Vec::new(),
        defers,
        taken: Vec::new(),
        registry: Registry::current(),
        counters: Counters::default(),
    };
    let results = interpreter.interpret(outputs, scribe);
    interpreter.counters.add();
    drop(interpreter);
    let results = results?;
    match scope.live() {
        0 => Ok(results),
        count => Err(Error::PlaceholderLeaked { count, avals }),
    }
}

/// Calls the user's function. mlx-rs panics in `item` and its like where it could return an error; such a panic about
/// a traced array becomes the error that it is, every other one goes on.
pub(crate) fn record<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result,
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
            let traced =
                |text: &str| mlx::refusal(text) == Refusal::Traced || (is_recording() && is_display_message(text));
            if text.is_some_and(traced) {
                return Err(Error::EvalInTrace);
            }
            resume_unwind(payload)
        }
    }
}

/// Whether a panic says that something could not be printed: an array of mlx-rs's evaluates itself to be.
fn is_display_message(text: &str) -> bool {
    text.contains("a Display implementation returned an error") || text.contains("formatter error")
}

/// Whether a function is being recorded on placeholders on this thread.
pub(crate) fn is_recording() -> bool {
    RECORDING.get() > 0
}

thread_local! {
    static RECORDING: Cell<usize> = const { Cell::new(0) };
}

/// Says that a function is being recorded, until it is dropped.
pub(crate) struct Recording;

impl Recording {
    pub(crate) fn enter() -> Self {
        RECORDING.set(RECORDING.get() + 1);
        Self
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        RECORDING.set(RECORDING.get() - 1);
    }
}

/// What a slot holds.
enum Held {
    /// The array that was recorded.
    Recorded,
    /// Something else in its place.
    Replaced(Layers),
}

impl Held {
    fn value(&self) -> Option<&Value> {
        match self {
            Self::Recorded => None,
            Self::Replaced(layers) => layers.values.first(),
        }
    }
}

/// A value and what it was materialized to, layer by layer: each layer is built once in a trace.
struct Layers {
    values: Vec<Value>,
    /// Which layer primitives are applied to, once one has asked.
    used: Option<usize>,
    /// The last layer, once it is dense and on an edge.
    kept: Option<Kept>,
}

impl Layers {
    fn of(value: Value) -> Self {
        Self { values: vec![value], used: None, kept: None }
    }

    /// The first layer that is not deferred, if it is there.
    fn computed(&self) -> Option<&Value> {
        self.values.iter().find(|value| !materialize::is_deferred(value))
    }

    /// The layer that primitives are applied to.
    fn used(&mut self) -> Result<usize> {
        if let Some(used) = self.used {
            return Ok(used);
        }
        let mut used = 0;
        while let Value::Implicit(array) = &self.values[used]
            && let Some(value) = materialize::used_as(&**array)?
        {
            self.values.push(value);
            used += 1;
        }
        self.used = Some(used);
        Ok(used)
    }
}

struct Interpreter {
    tape: Tape,
    held: Vec<Held>,
    /// The node at hand, and which layer of each of its operands it sees.
    node: usize,
    depths: Vec<usize>,
    /// Whether deferred results stay so.
    defers: bool,
    /// The nodes that a handler took.
    taken: Vec<usize>,
    registry: std::sync::Arc<Registry>,
    counters: Counters,
}

impl Interpreter {
    fn interpret(&mut self, outputs: Vec<Array>, mut scribe: Option<&mut Scribe>) -> Result<Vec<Value>> {
        let mut types = Vec::new();
        for node in 0..self.tape.len() {
            let (mut replaced, mut implicit) = (false, false);
            for slot in self.tape.operands(node).flatten() {
                if let Some(value) = self.held[slot.index()].value() {
                    replaced = true;
                    implicit |= value.is_implicit();
                }
            }
            let taken = match (replaced, implicit) {
                (false, _) => (Taker::Dense, Vec::new()),
                (true, false) => {
                    self.enter(node);
                    self.rewire();
                    (Taker::Dense, Vec::new())
                }
                (true, true) => self.dispatch(node, &mut types)?,
            };
            if let Some(scribe) = scribe.as_deref_mut() {
                self.note(scribe, node, taken)?;
            }
        }
        self.tape.rewire()?;
        if !self.defers {
            self.compute()?;
        }
        self.supersede()?;
        let slots: Vec<Option<Slot>> = self.tape.outputs().collect();
        let results: Vec<Value> = outputs
            .into_iter()
            .zip(&slots)
            .map(|(output, slot)| match slot.and_then(|slot| self.held[slot.index()].value()) {
                Some(value) if self.defers => value.clone(),
                Some(value) => self.layers(*slot).and_then(Layers::computed).unwrap_or(value).clone(),
                None => output.into(),
            })
            .collect();
        if let Some(scribe) = scribe {
            scribe.end(&slots, &results);
        }
        Ok(results)
    }

    /// Begins a node: every operand is seen in its outermost layer.
    fn enter(&mut self, node: usize) {
        self.node = node;
        self.depths.clear();
        self.depths.resize(self.tape.arity(node), 0);
    }

    /// The layers of an operand, where something stands in its place.
    fn layers(&self, slot: Option<Slot>) -> Option<&Layers> {
        match &self.held[slot?.index()] {
            Held::Recorded => None,
            Held::Replaced(layers) => Some(layers),
        }
    }

    fn dispatch(&mut self, node: usize, types: &mut Vec<OperandType>) -> Result<(Taker, Vec<Decline>)> {
        self.counters.seen += 1;
        self.enter(node);
        for operand in 0..self.depths.len() {
            let Some(slot) = self.tape.operand_slot(node, operand) else { continue };
            if let Held::Replaced(layers) = &mut self.held[slot.index()] {
                self.depths[operand] = layers.used()?;
            }
        }
        let registry = std::sync::Arc::clone(&self.registry);
        let outcome = dispatch::dispatch(self, &registry, types)?;
        let Some((results, taker)) = outcome.taken else {
            self.rewire();
            let taker = if outcome.materialized { Taker::Materialized } else { Taker::Computed };
            return Ok((taker, outcome.declined));
        };
        self.counters.handled += 1;
        self.taken.push(node);
        for (slot, value) in self.tape.results(node).zip(results) {
            self.held[slot.index()] = Held::Replaced(Layers::of(value));
        }
        Ok((taker, outcome.declined))
    }

    /// Computes the results that are deferred.
    fn compute(&mut self) -> Result<()> {
        for slot in self.tape.outputs().flatten() {
            let Held::Replaced(layers) = &mut self.held[slot.index()] else { continue };
            while let Some(Value::Implicit(array)) = layers.values.last()
                && array.array_type().deferred
            {
                let value = materialize::build(&**array)?;
                layers.values.push(value);
            }
        }
        Ok(())
    }

    /// Gives what handlers made to the recorded results as well, for a function that keeps one of them, such as a cache
    /// of a model. One that is implicit has no data to give.
    fn supersede(&mut self) -> Result<()> {
        let Self { tape, held, taken, .. } = self;
        let dense = |slot: Slot| match &held[slot.index()] {
            Held::Replaced(layers) => layers.values.last().and_then(Value::as_dense),
            Held::Recorded => None,
        };
        let superseded: Vec<(usize, Vec<&Array>)> = taken
            .iter()
            .filter_map(|&node| Some((node, tape.results(node).map(dense).collect::<Option<_>>()?)))
            .collect();
        Ok(tape.supersede(superseded)?)
    }

    /// Plans the node's edges to the dense values that stand in for its recorded operands.
    fn rewire(&mut self) {
        let node = self.node;
        for operand in 0..self.depths.len() {
            let Some(slot) = self.tape.operand_slot(node, operand) else { continue };
            let Held::Replaced(layers) = &mut self.held[slot.index()] else { continue };
            let Some(Value::Dense(array)) = layers.values.get(self.depths[operand]) else { continue };
            let kept = *layers.kept.get_or_insert_with(|| self.tape.keep(array.clone()));
            self.tape.plan(node, operand, kept);
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
            let form = match self.held[slot.index()].value() {
                Some(value) => value.to_string(),
                None => Aval::from(&self.tape.result(node, i)?).to_string(),
            };
            results.push((slot, form));
        }
        scribe.node(primitive, &operands, results, taken);
        Ok(())
    }
}

/// The node at hand.
impl Node for Interpreter {
    fn name(&self) -> NameId {
        self.tape.name(self.node)
    }

    fn types(&self, types: &mut Vec<OperandType>) {
        types.clear();
        for (operand, slot) in self.tape.operands(self.node).enumerate() {
            let layers = self.layers(slot);
            types.push(layers.and_then(|layers| dispatch::operand_type(&layers.values[self.depths[operand]])));
        }
    }

    fn primitive(&self) -> Result<Primitive> {
        Ok(Primitive::new(self.tape.primitive(self.node)?))
    }

    fn results(&self) -> Result<Vec<Aval>> {
        let results = 0..self.tape.results(self.node).len();
        results.map(|i| Ok(Aval::from(&self.tape.result(self.node, i)?))).collect()
    }

    fn with_operands<R>(&self, f: impl FnOnce(&[&Value]) -> Result<R>) -> Result<R> {
        let slots = || self.tape.operands(self.node).enumerate();
        let recorded = slots()
            .filter(|(_, slot)| self.layers(*slot).is_none())
            .map(|(operand, _)| Ok(Value::Dense(self.tape.operand(self.node, operand)?)))
            .collect::<Result<Vec<Value>>>()?;
        let mut recorded = recorded.iter();
        let operands: Vec<&Value> = slots()
            .filter_map(|(operand, slot)| match self.layers(slot) {
                Some(layers) => layers.values.get(self.depths[operand]),
                None => recorded.next(),
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
        let Held::Replaced(layers) = &mut self.held[slot.index()] else { return Ok(()) };
        let depth = self.depths[operand];
        if layers.values.len() == depth + 1
            && let Value::Implicit(array) = &layers.values[depth]
        {
            layers.values.push(materialize::build(&**array)?);
        }
        self.depths[operand] = depth + 1;
        Ok(())
    }
}
