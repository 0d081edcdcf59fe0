//! A function over trees as one over the arrays of a graph's node.

use std::cell::RefCell;
use std::rc::Rc;

use mlx_rs::Array;

use super::opened::Opened;
use crate::tree::{self, TreeDef};
use crate::values::{Values, never_called};
use crate::{Error, Result, Tree, Value};

/// A function over trees that stays in a graph, with the structures of what it takes and makes.
pub(super) struct NodeFunction<F> {
    f: Rc<F>,
    args: TreeDef,
    structure: RefCell<Option<TreeDef>>,
}

impl<F> NodeFunction<F> {
    pub(super) fn new(f: &Rc<F>, args: &Opened) -> Self {
        Self { f: Rc::clone(f), args: args.def.clone(), structure: RefCell::default() }
    }

    /// Calls the function on the dense leaves of its arguments; the leaves of its results.
    pub(super) fn call<A, O, E>(&self, leaves: &[Array]) -> Result<Vec<Array>>
    where
        A: Tree,
        O: Tree,
        E: Into<Error>,
        F: Fn(A) -> Result<O, E>,
    {
        let args = self.arguments::<A>(leaves)?;
        let results = args.run(&*self.f)?;
        let dense = results.dense()?;
        if dense.is_empty() {
            return Err(Error::invalid("the function returns no array", "return at least one"));
        }
        self.structure.replace(Some(results.def));
        Ok(dense)
    }

    /// The arguments whose dense leaves are given.
    pub(super) fn arguments<A: Tree>(&self, leaves: &[Array]) -> Result<Values> {
        let args: A::With<Value> = tree::unflatten(&self.args, leaves.iter().map(Value::from).collect())?;
        Values::from_arguments(&args)
    }

    /// The structure of the results.
    pub(super) fn structure(&self) -> Result<TreeDef> {
        self.structure.borrow().clone().ok_or_else(never_called)
    }

    /// The results that the bridge gives for the function, as a tree of values.
    pub(super) fn results<T: Tree>(&self, results: Vec<Array>) -> Result<T> {
        let leaves = results.into_iter().map(Value::from).collect();
        tree::unflatten(&self.structure()?, leaves)
    }
}
