//! What functions with a vjp or a jvp of their own have in common.

use std::marker::PhantomData;
use std::rc::Rc;

use mlx_rs::Array;
use tacit_bridge::BridgeError;

use super::Transformed;
use super::node::NodeFunction;
use super::opened::Opened;
use super::resident::Resident;
use crate::tree::TreeDef;
use crate::values::arrays_of;
use crate::{Error, Result, Tree, Value};

/// A function and its own transform, whose types `T` names.
pub(super) struct Rule<F, G, T> {
    pub(super) function: NodeFunction<F>,
    pub(super) transform: Rc<G>,
    types: PhantomData<T>,
}

/// What the graph holds of a rule.
pub(super) struct InGraph<F, G, T>(pub(super) Resident<Rule<F, G, T>>);

/// Puts a rule into a graph, on the dense leaves of its arguments.
type Put<F, G, T> = fn(InGraph<F, G, T>, &[Array]) -> Result<Vec<Array>, BridgeError>;

pub(super) fn with_rule<A: Tree, O: Tree, F: 'static, G: 'static, T: 'static>(
    f: F,
    transform: G,
    put: Put<F, G, T>,
) -> Transformed<'static, A, O::With<Value>> {
    let (f, transform) = (Rc::new(f), Rc::new(transform));
    Transformed::new(move |arguments| {
        let opened = Opened::from_values(&arguments)?;
        drop(arguments);
        let function = NodeFunction::new(&f, &opened);
        let resident = Resident::new(Rule { function, transform: Rc::clone(&transform), types: PhantomData });
        let rule = resident.get()?;
        let result = put(InGraph(resident), &opened.leaves);
        rule.function.results(result?)
    })
}

/// The arrays of what a rule gave, which must have the structure of `of`; `unfit` is the message and what to do if not.
pub(super) fn fitting<T: Tree, E: Into<Error>>(
    tree: Result<T, E>,
    of: &TreeDef,
    unfit: [&str; 2],
) -> Result<Vec<Array>> {
    let tree = tree.map_err(Into::into)?;
    let mut structure = None;
    let arrays = arrays_of(|visitor| tree.flatten(visitor), &mut structure)?;
    match structure.and_then(|structure| of.difference(&structure)) {
        None => Ok(arrays),
        Some(difference) => Err(Error::invalid(format!("{}: {difference}", unfit[0]), unfit[1])),
    }
}
