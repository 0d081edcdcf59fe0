//! What goes from step to step of a loop.

use mlx_rs::Array;

use super::structure::Structure;
use crate::implicit::{arrays_of, never_called};
use crate::tree::{self, Open, TreeDef};
use crate::{Error, Result, Tree, Value, trace};

/// Values in their structure, implicit arrays closed: operands, or what a closure made of them.
#[derive(Clone)]
pub(super) struct Values {
    pub(super) values: Vec<Value>,
    pub(super) def: TreeDef,
}

impl Values {
    /// The leaves of a tree.
    pub(super) fn of(tree: &impl Tree) -> Result<Self> {
        let (values, def) = tree::flatten(tree, Open::Closed)?;
        Ok(Self { values, def })
    }

    /// The tree with other leaves.
    pub(super) fn with<T: Tree>(&self, arrays: Vec<Array>) -> Result<T> {
        tree::unflatten(&self.def, arrays.into_iter().map(Value::from).collect())
    }

    /// Runs `f` on them.
    pub(super) fn run<A, O, E>(&self, f: impl FnOnce(A) -> Result<O, E>) -> Result<Self>
    where
        A: Tree,
        O: Tree,
        E: Into<Error>,
    {
        let mut made = None;
        let values = trace::run(&self.values, |arrays| {
            let results = f(self.with(arrays)?).map_err(Into::into)?;
            arrays_of(|visitor| results.flatten(visitor), &mut made)
        })?;
        Ok(Self { values, def: made.ok_or_else(never_called)? })
    }

    pub(super) fn into_tree<T: Tree>(self) -> Result<T> {
        tree::unflatten(&self.def, self.values)
    }
}

/// The carry of a loop.
pub(super) struct Carry {
    pub(super) now: Values,
    first: Structure,
}

impl Carry {
    /// The carry that a loop begins with.
    pub(super) fn of(init: &impl Tree) -> Result<Self> {
        let now = Values::of(init)?;
        let (_, first) = Structure::of(&now.def, now.values.clone())?;
        Ok(Self { now, first })
    }

    /// Goes on with what a step made; the arrays in it.
    pub(super) fn advance(&mut self, made: Values) -> Result<Vec<Array>> {
        let (arrays, structure) = Structure::of(&made.def, made.values.clone())?;
        if let Some(change) = self.first.change(&structure) {
            let help = if self.now.values.iter().any(Value::is_implicit) {
                "return the carry as it came; an implicit array that the body computes anew is dense: begin with its `dense`"
            } else {
                "return the carry with the structure, shapes and dtypes that it came with, as by `as_dtype`"
            };
            return Err(Error::invalid(
                format!("the body changes the carry from {} to {}{}", change.from, change.to, change.place),
                help,
            ));
        }
        self.now = made;
        Ok(arrays)
    }
}
