//! Values with their structure: the arguments and the results of a traced function.

use mlx_rs::Array;

use crate::tree::{self, Arguments, Flattened, Open, TreeDef, Visitor};
use crate::{CompiledGraph, Error, Explanation, Result, Tree, Value, trace};

/// Values in their structure, implicit arrays closed.
#[derive(Clone)]
pub(crate) struct Values {
    pub(crate) values: Vec<Value>,
    pub(crate) def: TreeDef,
}

impl Values {
    /// The leaves of a tree, or of other arguments.
    pub(crate) fn from_arguments(args: &impl Arguments) -> Result<Self> {
        let (values, def) = Flattened::flatten(args, Open::Closed)?;
        Ok(Self { values, def })
    }

    /// The leaves of a state, but for those of the parts with these stamps, which are not given back to it.
    pub(crate) fn beside(state: &impl Arguments, passed: &[u64]) -> Result<Self> {
        let (values, def) = Flattened::beside(state, passed)?;
        Ok(Self { values, def })
    }

    /// The tree with other leaves.
    pub(crate) fn with<T: Tree>(&self, arrays: Vec<Array>) -> Result<T> {
        tree::unflatten(&self.def, arrays.into_iter().map(Value::from).collect())
    }

    /// Runs `f` on them, with every primitive on an implicit one intercepted.
    pub(crate) fn run<A: Tree, O: Tree, E: Into<Error>>(&self, f: impl FnOnce(A) -> Result<O, E>) -> Result<Self> {
        Self::traced(&self.values, |arrays| f(self.with(arrays)?).map_err(Into::into))
    }

    /// What `f` makes of the arrays that stand for `args`.
    pub(crate) fn traced<O: Tree>(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<O>) -> Result<Self> {
        let mut def = None;
        let values = trace::redispatch(args, |arrays| {
            let results = f(arrays)?;
            arrays_of(|visitor| results.flatten(visitor), &mut def)
        })?;
        Ok(Self { values, def: def.ok_or_else(never_called)? })
    }

    /// What happens when `f` runs on the arrays that stand for `args`.
    pub(crate) fn explained<O: Tree>(args: &[Value], f: impl FnOnce(Vec<Array>) -> Result<O>) -> Result<Explanation> {
        let (results, explanation) = trace::run_explained(args, |arrays| {
            let results = f(arrays)?;
            arrays_of(|visitor| results.flatten(visitor), &mut None)
        })?;
        let arrays = |values: &[Value]| -> Result<Vec<Array>> {
            let opened = tree::leaves(&values.to_vec(), Open::Fully)?;
            Ok(opened.iter().filter_map(|leaf| leaf.as_dense().cloned()).collect())
        };
        let compiled = CompiledGraph::from_graph(&arrays(args)?, arrays(&results)?)?;
        Ok(Explanation { compiled, ..explanation })
    }

    /// The values as arrays; an implicit one is materialized.
    pub(crate) fn dense(&self) -> Result<Vec<Array>> {
        self.values.iter().map(Value::dense).collect()
    }

    pub(crate) fn into_tree<T: Tree>(self) -> Result<T> {
        tree::unflatten(&self.def, self.values)
    }
}

/// The arrays of the results of a traced function, as `show` shows them; their structure goes to `structure`.
pub(crate) fn arrays_of<'a>(
    show: impl FnOnce(&mut dyn Visitor<'a>) -> Result<()>,
    structure: &mut Option<TreeDef>,
) -> Result<Vec<Array>> {
    let (leaves, def) = Flattened::shown(Open::Closed, show)?;
    *structure = Some(def);
    leaves
        .into_iter()
        .map(|leaf| match leaf {
            Value::Dense(array) => Ok(array),
            implicit @ Value::Implicit(_) => Err(Error::invalid(
                format!("the function returns {implicit}, and inside it every array is dense"),
                "return the implicit array beside the function, or open it with `implicit` inside",
            )),
        })
        .collect()
}

/// A trace that ends well has called its function.
pub(crate) fn never_called() -> Error {
    Error::invalid("the function was not called", "let the transform call it once")
}
