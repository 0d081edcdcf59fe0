//! Functions whose inside is computed again for the gradient.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_rs::Array;
use tacit_bridge::BoxError;

use super::Transformed;
use super::node::NodeFunction;
use super::opened::Opened;
use super::resident::Resident;
use crate::compile::holds_tracer;
use crate::{Error, Result, Tree, Value};

/// Lets a gradient through `f` compute the inside of `f` again instead of keeping it: memory for time.
///
/// The function is intercepted in both passes, under the policy and the registry in force there. An implicit result is
/// materialized.
///
/// What `f` captures keeps its gradient, and nothing of `f` is computed again then: pass it as an argument.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::{checkpoint, grad};
///
/// let mut layer = checkpoint(|x: Array| x.exp()?.sin());
/// let mut gradient = grad(move |x: Array| layer.call(x)?.dense());
/// let found = gradient.call(Array::from_f32(0.0))?.array()?.item_exact::<f32>();
/// assert!((found - 1f32.cos()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A call fails where `f` fails or returns no array.
pub fn checkpoint<A, O, E, F>(f: F) -> Transformed<'static, A, O::With<Value>>
where
    A: Tree + 'static,
    O: Tree + 'static,
    E: Into<Error> + 'static,
    F: Fn(A) -> Result<O, E> + 'static,
{
    let f = Rc::new(f);
    Transformed::new(move |given| {
        let opened = Opened::of(&given)?;
        drop(given);
        let resident = Resident::new(NodeFunction::new(&f, &opened));
        let function = resident.get()?;
        // MLX keeps what it computes again apart from the rest of the graph: a tracer that the function captured would
        // get no derivative. Such a function runs as it is.
        let (inside, holds) = (tacit_bridge::in_transform(), Arc::new(AtomicBool::new(false)));
        let held = Arc::clone(&holds);
        let again = move |arrays: &[Array]| -> Result<Vec<Array>, BoxError> {
            let made = resident.get()?.call::<A, O, E>(arrays)?;
            held.fetch_or(inside && holds_tracer(arrays, &made)?, Ordering::Relaxed);
            Ok(made)
        };
        let made = tacit_bridge::checkpoint(Box::new(again), &opened.leaves);
        if holds.load(Ordering::Relaxed) {
            return function.results(Ok(function.call::<A, O, E>(&opened.leaves)?));
        }
        function.results(made)
    })
}
