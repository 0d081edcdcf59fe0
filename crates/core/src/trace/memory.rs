//! The memory of a trace, which serves the next one.

use std::cell::RefCell;

use super::slots::Slots;
use crate::Value;

/// What grows with the graph.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) slots: Slots,
    /// Which layer of each of its operands the node at hand sees.
    pub(super) depths: Vec<usize>,
    /// What stands in the place of operands of the node at hand, for it alone.
    pub(super) replaced: Vec<(usize, Value)>,
    /// The nodes that a handler took.
    pub(super) taken: Vec<usize>,
}

/// Slots that memory is kept for.
const MOST_SPARE: usize = 1 << 20;

thread_local! {
    /// Memory that is used again: one for each trace that was in use at a time, as those inside handlers are.
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

impl Memory {
    /// Memory of an earlier trace, if there is some.
    pub(super) fn again() -> Self {
        SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
    }

    /// Leaves the memory to the next trace.
    pub(super) fn spare(mut self) {
        self.slots.clear();
        self.replaced.clear();
        self.taken.clear();
        if self.slots.capacity() > MOST_SPARE {
            return;
        }
        // A thread that ends may be without it already.
        let _ = SPARE.try_with(|spare| spare.borrow_mut().push(self));
    }

    pub(super) fn replaced(&self, operand: usize) -> Option<&Value> {
        self.replaced.iter().find(|(at, _)| *at == operand).map(|(_, value)| value)
    }
}
