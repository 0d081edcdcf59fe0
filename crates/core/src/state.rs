//! A state that a traced function changes.

use std::cell::Cell;

use crate::tree::{Arguments, Labels, Node, Reader, TreeDef, Visitor};
use crate::values::Values;
use crate::{Error, Result, Tree, Value};

/// The tree of what a call is given, and of what it gives.
pub(crate) const CALL: &str = "call";
pub(crate) const GIVEN: &[&str] = &["state", "args"];
pub(crate) const MADE: &[&str] = &["results", "state"];

pub(crate) fn show<'a>(
    labels: &'static [&'static str],
    first: &'a impl Arguments,
    second: &'a impl Arguments,
    visitor: &mut dyn Visitor<'a>,
) -> Result<()> {
    visitor.node(&Node::new(CALL, Labels::Fields(labels)));
    first.flatten(visitor)?;
    second.flatten(visitor)
}

thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// A function of a state that runs, until it is dropped.
pub(crate) struct Step;

impl Step {
    pub(crate) fn enter() -> Self {
        STEPS.set(STEPS.get() + 1);
        Self
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        STEPS.set(STEPS.get() - 1);
    }
}

/// Whether a function of a state runs on this thread.
pub(crate) fn in_step() -> bool {
    STEPS.get() > 0
}

/// Why a call failed, once its state is what it was before, by the leaves and the structure that it had then.
pub fn given_back<S: Tree>(state: &mut S, (values, def): (Vec<Value>, TreeDef), error: Error) -> Error {
    Lent::new(state, Values { values, def }).failed(error)
}

/// A state that holds the arrays of a trace, until it is dropped.
pub(crate) struct Lent<'s, S: Tree> {
    pub(crate) state: &'s mut S,
    before: Option<Values>,
}

impl<'s, S: Tree> Lent<'s, S> {
    /// The state, which is given these leaves of its own back.
    pub(crate) fn new(state: &'s mut S, before: Values) -> Self {
        Self { state, before: Some(before) }
    }

    /// Leaves the state as it is now.
    pub(crate) fn keep(mut self) {
        self.before = None;
    }

    /// Why a function of the state failed, once that has its own leaves again; where it cannot have them, that too.
    pub(crate) fn failed(mut self, error: Error) -> Error {
        match self.give_back() {
            Ok(()) => error,
            Err(lost) => Error::NotGivenBack { error: Box::new(error), lost: Box::new(lost) },
        }
    }

    fn give_back(&mut self) -> Result<()> {
        match self.before.take() {
            Some(Values { values, def }) => self.state.assign(&mut Reader::new(&def, values)?.given_back()),
            None => Ok(()),
        }
    }
}

impl<S: Tree> Drop for Lent<'_, S> {
    fn drop(&mut self) {
        // Whoever runs the function tells of what cannot be given back.
        let _ = self.give_back();
    }
}
