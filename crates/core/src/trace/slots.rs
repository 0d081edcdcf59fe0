//! The values in the slots of a tape.

use tacit_bridge::{Kept, NameId, Slot};

use crate::{Policy, Result, Value, materialize};

/// What stands in the slots of a tape: in most of them what was recorded.
#[derive(Default)]
pub(super) struct Slots {
    /// For each slot the number of its layers, counted from one; zero for what was recorded.
    numbers: Vec<u32>,
    layers: Vec<Layers>,
}

impl Slots {
    /// Has `count` slots, the first of which hold `values`.
    pub(super) fn begin(&mut self, values: impl IntoIterator<Item = Value>, count: usize) {
        self.clear();
        self.layers.extend(values.into_iter().map(Layers::new));
        self.numbers.extend(1..=self.layers.len() as u32);
        self.numbers.resize(count, 0);
    }

    /// Holds nothing any more but its memory.
    pub(super) fn clear(&mut self) {
        self.numbers.clear();
        self.layers.clear();
    }

    /// How many slots it has memory for.
    pub(super) fn capacity(&self) -> usize {
        self.numbers.capacity()
    }

    /// The layers in a slot, where something stands in the place of what was recorded.
    pub(super) fn get(&self, slot: Slot) -> Option<&Layers> {
        match self.numbers[slot.index()] {
            0 => None,
            number => self.layers.get(number as usize - 1),
        }
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Layers> {
        match self.numbers[slot.index()] {
            0 => None,
            number => self.layers.get_mut(number as usize - 1),
        }
    }

    /// Puts a value in the place of what was recorded.
    pub(super) fn put(&mut self, slot: Slot, value: Value) {
        self.layers.push(Layers::new(value));
        self.numbers[slot.index()] = self.layers.len() as u32;
    }
}

/// A value and what it was materialized to, layer by layer: each layer is built once in a trace.
pub(super) struct Layers {
    pub(super) outermost: Value,
    /// The layers below it that were built.
    below: Vec<Value>,
    /// Which layer primitives are applied to, once one has asked.
    used: Option<usize>,
    /// The last layer, once it is dense and on an edge.
    pub(super) kept: Option<Kept>,
    /// The latest call for which it was made dense because nobody was there to take it.
    pub(super) passed: Option<Passed>,
}

/// A call with one implicit operand, for which there is neither a handler nor a default.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) name: NameId,
    /// Which operand is implicit, and of how many.
    pub(super) operand: usize,
    pub(super) arity: usize,
    /// The policy of the guard: what else says one does not change in a trace.
    pub(super) policy: Option<Policy>,
}

impl Layers {
    fn new(value: Value) -> Self {
        Self { outermost: value, below: Vec::new(), used: None, kept: None, passed: None }
    }

    /// The layer at a depth, if it was built.
    pub(super) fn get(&self, depth: usize) -> Option<&Value> {
        match depth {
            0 => Some(&self.outermost),
            depth => self.below.get(depth - 1),
        }
    }

    /// The last layer that was built.
    pub(super) fn last(&self) -> &Value {
        self.below.last().unwrap_or(&self.outermost)
    }

    /// The first layer that is not deferred, if it is there.
    pub(super) fn computed(&self) -> Option<&Value> {
        let is_deferred = |value: &Value| matches!(value, Value::Implicit(array) if array.array_type().deferred);
        std::iter::once(&self.outermost).chain(&self.below).find(|value| !is_deferred(value))
    }

    /// The layer that primitives are applied to.
    pub(super) fn used(&mut self) -> Result<usize> {
        if let Some(used) = self.used {
            return Ok(used);
        }
        let mut used = 0;
        while let Value::Implicit(array) = self.last()
            && let Some(value) = materialize::used_as(&**array)?
        {
            self.below.push(value);
            used += 1;
        }
        self.used = Some(used);
        Ok(used)
    }

    /// Builds the layer below the one at a depth, if that is the last and implicit.
    pub(super) fn lower(&mut self, depth: usize) -> Result<()> {
        if self.below.len() == depth
            && let Value::Implicit(array) = self.last()
        {
            let value = materialize::build(&**array)?;
            self.below.push(value);
        }
        Ok(())
    }

    /// Computes what is deferred.
    pub(super) fn compute(&mut self) -> Result<()> {
        while let Value::Implicit(array) = self.last()
            && array.array_type().deferred
        {
            let value = materialize::build(&**array)?;
            self.below.push(value);
        }
        Ok(())
    }
}
