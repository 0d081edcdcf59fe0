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
    pub(super) own: Rc<G>,
    types: PhantomData<T>,
}

/// What the graph holds of a rule.
pub(super) struct InGraph<F, G, T>(pub(super) Resident<Rule<F, G, T>>);

/// Puts a rule into a graph, on the dense leaves of its arguments.
type Put<F, G, T> = fn(InGraph<F, G, T>, &[Array]) -> Result<Vec<Array>, BridgeError>;

pub(super) fn with_rule<A: Tree, O: Tree, F: 'static, G: 'static, T: 'static>(
    f: F,
    own: G,
    put: Put<F, G, T>,
) -> Transformed<'static, A, O::With<Value>> {
    let (f, own) = (Rc::new(f), Rc::new(own));
    Transformed::new(move |given| {
        let opened = Opened::from_values(&given)?;
        drop(given);
        let function = NodeFunction::new(&f, &opened);
        let resident = Resident::new(Rule { function, own: Rc::clone(&own), types: PhantomData });
        let rule = resident.get()?;
        let result = put(InGraph(resident), &opened.leaves);
        rule.function.results(result?)
    })
}

/// The arrays of what a rule gave, which must have the structure of `of`; `unfit` is the message and what to do if not.
pub(super) fn fitting<T: Tree, E: Into<Error>>(
    given: Result<T, E>,
    of: &TreeDef,
    unfit: [&str; 2],
) -> Result<Vec<Array>> {
    let given = given.map_err(Into::into)?;
    let mut found = None;
    let arrays = arrays_of(|visitor| given.flatten(visitor), &mut found)?;
    match found.and_then(|found| of.difference(&found)) {
        None => Ok(arrays),
        Some(difference) => Err(Error::invalid(format!("{}: {difference}", unfit[0]), unfit[1])),
    }
}
