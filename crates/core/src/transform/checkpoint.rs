//! Functions whose inside is computed again for the gradient.

use std::rc::Rc;

use super::opened::Opened;
use super::{Transformed, again};
use crate::{Error, Result, Tree, Value};

/// Lets a gradient through `f` compute the inside of `f` again instead of keeping it: memory for time.
///
/// The function is intercepted in both passes, under the policy and the registry in force there. An implicit result is
/// materialized.
///
/// Random numbers that `f` draws without a key are the same in both passes, and others in the next call; such an `f` is called
/// twice at first.
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
    Transformed::new(move |arguments| {
        let opened = Opened::from_values(&arguments)?;
        drop(arguments);
        again::put(&f, &opened, 1, |body, leaves| tacit_bridge::checkpoint(body, leaves))
    })
}
