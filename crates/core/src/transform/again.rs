//! Functions that are called again for their gradients, and draw the same random numbers then.

use std::cell::Cell;
use std::iter;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use tacit_bridge::{BoxError, BridgeError, apart, in_transform};

use super::node::NodeFunction;
use super::opened::Opened;
use super::resident::Resident;
use crate::compile::drawn::{drawing, fresh, watched};
use crate::compile::holds_tracer;
use crate::{Error, Result, Tree};

/// A function over the leaves of a tree, before which there are keys if it draws random numbers without one.
struct CalledAgain<F> {
    function: NodeFunction<F>,
    /// Whether the first leaf has the keys, one in each row. A call draws from the first.
    keyed: bool,
    drew: Cell<bool>,
}

impl<F> CalledAgain<F> {
    /// Calls the function on the leaves, those of a chunk or all.
    fn call<A, O, E>(&self, leaves: &[Array]) -> Result<Vec<Array>>
    where
        A: Tree,
        O: Tree,
        E: Into<Error>,
        F: Fn(A) -> Result<O, E>,
    {
        match leaves {
            [keys, leaves @ ..] if self.keyed && keys.dim(0) > 0 => {
                let key = keys.try_index(0)?;
                let _inside = Inside(DRAWING.replace(true));
                drawing(&key, || self.function.call(leaves))
            }
            [_, leaves @ ..] if self.keyed => self.function.call(leaves),
            leaves => {
                let (result, drew) = watched(|| self.function.call(leaves))?;
                self.drew.set(drew || self.drew.get());
                result
            }
        }
    }
}

thread_local! {
    /// Whether a function that draws is called now.
    static DRAWING: Cell<bool> = const { Cell::new(false) };
}

/// A call of a function that draws, within what is called now.
struct Inside(bool);

impl Drop for Inside {
    fn drop(&mut self) {
        DRAWING.set(self.0);
    }
}

/// What was put into the graph, and what it gave.
type Called<F> = (Rc<CalledAgain<F>>, Result<Vec<Array>>);

/// What is called again for a gradient.
pub(super) type Body = Box<dyn Fn(&[Array]) -> Result<Vec<Array>, BoxError> + Send + Sync>;

/// The results of a node for `f`, which `place` puts into the graph with the leaves that the node takes. Among them are `keys` keys
/// where `f` draws random numbers without one, as many as there are rows that may have a call of their own.
///
/// A function that draws is called twice at first: only a call tells whether it does, and the state of the thread stays as it is
/// where it does not. One that captured a tracer of a transform around this call runs as it is, because MLX keeps what it computes
/// again apart from the rest of the graph: the tracer would get no derivative.
pub(super) fn put<A, O, E, F, T>(
    f: &Rc<F>,
    opened: &Opened,
    keys: i32,
    place: impl Fn(Body, &[Array]) -> Result<Vec<Array>, BridgeError>,
) -> Result<T>
where
    A: Tree + 'static,
    O: Tree + 'static,
    E: Into<Error> + 'static,
    F: Fn(A) -> Result<O, E> + 'static,
    T: Tree,
{
    let called = |keyed, leaves: &[Array]| -> Result<Called<F>> {
        let function = NodeFunction::new(f, opened);
        let resident = Resident::new(CalledAgain { function, keyed, drew: Cell::new(false) });
        let node = resident.get()?;
        let (inside, holds) = (in_transform(), Arc::new(AtomicBool::new(false)));
        // What the function captured may depend on an argument: nodes of their own tell that from what it computes of the argument.
        let leaves = &if inside { apart(leaves)? } else { leaves.to_vec() };
        let found_tracer = Arc::clone(&holds);
        let body = move |arrays: &[Array]| -> Result<Vec<Array>, BoxError> {
            let result = resident.get()?.call::<A, O, E>(arrays)?;
            found_tracer.fetch_or(inside && holds_tracer(arrays, &result)?, Ordering::Relaxed);
            Ok(result)
        };
        let result = place(Box::new(body), leaves).map_err(Error::from);
        let result = match result {
            Ok(_) if holds.load(Ordering::Relaxed) => node.call::<A, O, E>(leaves),
            result => result,
        };
        Ok((node, result))
    };
    // Inside a function that draws nobody need know whether this one does, and each level would call the next one twice.
    if !DRAWING.get() {
        let (node, result) = called(false, &opened.leaves)?;
        if result.is_err() || !node.drew.get() {
            return node.function.results(result?);
        }
    }
    let leaves: Vec<Array> = iter::once(fresh(&[keys])?).chain(opened.leaves.iter().cloned()).collect();
    let (node, result) = called(true, &leaves)?;
    node.function.results(result?)
}
