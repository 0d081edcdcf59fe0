//! Functions whose inside is computed again for the gradient.

use std::rc::Rc;

use mlx_rs::Array;
use tacit_bridge::BoxError;

use super::node::NodeFunction;
use super::opened::Opened;
use super::resident::Resident;
use crate::{Error, Result, Tree, Value};

/// Lets a gradient through `f` compute the inside of `f` again instead of keeping it: memory for time.
///
/// The function is intercepted in both passes, under the policy and the registry in force there. An implicit result is
/// materialized.
///
/// What `f` captures is a constant to every gradient: pass as an argument what is to have one.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::transform::{checkpoint, grad};
///
/// let mut layer = checkpoint(|x: Array| x.exp()?.sin());
/// let mut gradient = grad(move |x: Array| layer(x.into())?.dense());
/// let found = gradient(Array::from_f32(0.0).into())?.array()?.item_exact::<f32>();
/// assert!((found - 1f32.cos()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The returned function fails where `f` fails or returns no array.
pub fn checkpoint<A, O, E, F>(f: F) -> impl FnMut(A::With<Value>) -> Result<O::With<Value>>
where
    A: Tree + 'static,
    O: Tree + 'static,
    E: Into<Error> + 'static,
    F: Fn(A) -> Result<O, E> + 'static,
{
    let f = Rc::new(f);
    move |args| {
        let opened = Opened::of(&args)?;
        drop(args);
        let resident = Resident::new(NodeFunction::new(&f, &opened));
        let function = resident.get()?;
        let again =
            move |arrays: &[Array]| -> Result<Vec<Array>, BoxError> { Ok(resident.get()?.call::<A, O, E>(arrays)?) };
        let made = tacit_bridge::checkpoint(Box::new(again), &opened.leaves);
        function.results(made)
    }
}
