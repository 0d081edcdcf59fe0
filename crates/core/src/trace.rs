//! Record a function on placeholders, walk the graph, interpret it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use mlx_rs::Array;
use tacit_bridge::mlx::{self, Refusal};
use tacit_bridge::{Aval, Kept, Scope, Slot, Tape};

use crate::counters::Counters;
use crate::dispatch::{self, Taker};
use crate::explain::{Explanation, Scribe};
use crate::pattern::OperandType;
use crate::{Error, Primitive, Registry, Result, Value};

/// Runs `f` on `args`, with every primitive on an implicit one intercepted.
pub(crate) fn run(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>) -> Result<Vec<Value>> {
    if args.iter().all(|arg| !arg.is_implicit()) {
        let arrays = args.iter().filter_map(|arg| arg.as_dense().cloned()).collect();
        return Ok(record(|| f(arrays))?.into_iter().map(Value::from).collect());
    }
    trace(args, f, None)
}

/// Runs `f` on `args` and tells what happened to each node, those on dense values included.
pub(crate) fn run_explained(
    args: &[Value],
    f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>,
) -> Result<(Vec<Value>, Explanation)> {
    let mut scribe = Scribe::default();
    let (results, counters) = Counters::of(|| trace(args, f, Some(&mut scribe)));
    Ok((results?, scribe.finish(counters)))
}

fn trace(
    args: &[Value],
    f: impl FnOnce(Vec<Array>) -> Result<Vec<Array>>,
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
        registry: Registry::current(),
        counters: Counters::default(),
        depths: Vec::new(),
        types: Vec::new(),
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
fn record<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result,
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
            if text.is_some_and(|text| mlx::refusal(text) == Refusal::Traced) {
                return Err(Error::EvalInTrace);
            }
            resume_unwind(payload)
        }
    }
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
    /// The last layer, once it is dense and on an edge.
    kept: Option<Kept>,
}

impl Layers {
    fn of(value: Value) -> Self {
        Self { values: vec![value], kept: None }
    }
}

struct Interpreter {
    tape: Tape,
    held: Vec<Held>,
    registry: std::sync::Arc<Registry>,
    counters: Counters,
    /// For the node at hand: which layer of each operand it sees, and its type.
    depths: Vec<usize>,
    types: Vec<OperandType>,
}

impl Interpreter {
    fn interpret(&mut self, outputs: Vec<Array>, mut scribe: Option<&mut Scribe>) -> Result<Vec<Value>> {
        for node in 0..self.tape.len() {
            let (mut replaced, mut implicit) = (false, false);
            for slot in self.tape.operands(node).flatten() {
                if let Some(value) = self.held[slot.index()].value() {
                    replaced = true;
                    implicit |= value.is_implicit();
                }
            }
            let taker = match (replaced, implicit) {
                (false, _) => Taker::Dense,
                (true, false) => {
                    self.enter(node);
                    self.rewire(node);
                    Taker::Dense
                }
                (true, true) => self.dispatch(node)?,
            };
            if let Some(scribe) = scribe.as_deref_mut() {
                self.note(scribe, node, taker)?;
            }
        }
        self.tape.rewire()?;
        let slots: Vec<Option<Slot>> = self.tape.outputs().collect();
        let results: Vec<Value> = outputs
            .into_iter()
            .zip(&slots)
            .map(|(output, slot)| match slot.and_then(|slot| self.held[slot.index()].value()) {
                Some(value) => value.clone(),
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

    fn dispatch(&mut self, node: usize) -> Result<Taker> {
        self.counters.seen += 1;
        self.enter(node);
        loop {
            self.types.clear();
            for (operand, slot) in self.tape.operands(node).enumerate() {
                let layers = self.layers(slot);
                let ty = layers.and_then(|layers| dispatch::operand_type(&layers.values[self.depths[operand]]));
                self.types.push(ty);
            }
            if self.types.iter().all(Option::is_none) {
                self.rewire(node);
                return Ok(Taker::Materialized);
            }
            let resolution = self.registry.resolve(self.tape.name(node), &self.types);
            if !resolution.is_empty() || self.any_default(node) {
                // Handlers run outside the interception: what they are given depends on no placeholder any more.
                if self.tape.has_plan() {
                    self.tape.rewire()?;
                }
                let primitive = self.primitive(node)?;
                let taken = self.with_operands(node, |operands| {
                    dispatch::offer(&resolution, &primitive, operands, &|| self.recorded_avals(node))
                })?;
                if let Some((results, taker)) = taken {
                    self.counters.handled += 1;
                    for (slot, value) in self.tape.results(node).zip(results) {
                        self.held[slot.index()] = Held::Replaced(Layers::of(value));
                    }
                    return Ok(taker);
                }
            }
            if dispatch::asks(&resolution) {
                self.with_operands(node, |operands| {
                    dispatch::permit(&self.registry, &resolution, &|| self.primitive(node), operands)
                })?;
            }
            self.lower(node)?;
        }
    }

    fn any_default(&self, node: usize) -> bool {
        self.tape.operands(node).enumerate().any(|(operand, slot)| {
            self.layers(slot).is_some_and(|layers| dispatch::has_default(&[&layers.values[self.depths[operand]]]))
        })
    }

    /// Moves every implicit operand of the node to its next layer, building the layers that are not there yet.
    fn lower(&mut self, node: usize) -> Result<()> {
        for operand in 0..self.types.len() {
            let Some(slot) = self.tape.operand_slot(node, operand) else { continue };
            if self.types[operand].is_none() {
                continue;
            }
            let depth = self.depths[operand];
            let Held::Replaced(layers) = &self.held[slot.index()] else { continue };
            if layers.values.len() == depth + 1 {
                let call =
                    || self.with_operands(node, |operands| Ok(dispatch::describe(&self.primitive(node)?, operands)));
                let next = dispatch::lower(&layers.values[depth], &call)?;
                if let Held::Replaced(layers) = &mut self.held[slot.index()] {
                    layers.values.push(next);
                }
            }
            self.depths[operand] = depth + 1;
        }
        Ok(())
    }

    /// Calls `f` with the operands of the node as it sees them now.
    fn with_operands<R>(&self, node: usize, f: impl FnOnce(&[&Value]) -> Result<R>) -> Result<R> {
        let recorded = self
            .tape
            .operands(node)
            .enumerate()
            .filter(|(_, slot)| self.layers(*slot).is_none())
            .map(|(operand, _)| Ok(Value::Dense(self.tape.operand(node, operand)?)))
            .collect::<Result<Vec<Value>>>()?;
        let mut recorded = recorded.iter();
        let operands: Vec<&Value> = self
            .tape
            .operands(node)
            .enumerate()
            .filter_map(|(operand, slot)| match self.layers(slot) {
                Some(layers) => layers.values.get(self.depths[operand]),
                None => recorded.next(),
            })
            .collect();
        f(&operands)
    }

    /// Plans the node's edges to the dense values that stand in for its recorded operands.
    fn rewire(&mut self, node: usize) {
        for operand in 0..self.depths.len() {
            let Some(slot) = self.tape.operand_slot(node, operand) else { continue };
            let Held::Replaced(layers) = &mut self.held[slot.index()] else { continue };
            let Some(Value::Dense(array)) = layers.values.get(self.depths[operand]) else { continue };
            let kept = *layers.kept.get_or_insert_with(|| self.tape.keep(array.clone()));
            self.tape.plan(node, operand, kept);
        }
    }

    fn primitive(&self, node: usize) -> Result<Primitive> {
        Ok(Primitive::new(self.tape.primitive(node)?))
    }

    fn recorded_avals(&self, node: usize) -> Result<Vec<Aval>> {
        (0..self.tape.results(node).len()).map(|i| Ok(Aval::from(&self.tape.result(node, i)?))).collect()
    }

    fn note(&self, scribe: &mut Scribe, node: usize, taker: Taker) -> Result<()> {
        let primitive = self.primitive(node)?.to_string();
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
        scribe.node(primitive, &operands, results, taker);
        Ok(())
    }
}
