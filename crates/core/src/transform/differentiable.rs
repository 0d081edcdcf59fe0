//! A function of arrays with derivatives of its own.

use std::sync::{Mutex, MutexGuard, TryLockError};

use mlx_rs::Array;
use tacit_bridge::BoxError;

use crate::{Error, Result};

/// A function together with its vjp, and its jvp if that is another than the function's own.
///
/// It lives in a graph, which any thread may let go of or transform; one call at a time is made. A call fails with whatever the
/// function refuses.
pub trait Differentiable: Send + 'static {
    /// What messages call the function.
    fn name(&self) -> &str;

    /// The function itself; at least one result, of the same avals for arguments of the same avals.
    fn forward(&self, args: &[Array]) -> Result<Vec<Array>>;

    /// One gradient for each argument, of the argument's own shape and dtype.
    fn backward(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Result<Vec<Array>>;

    /// One tangent for each result, of the result's own shape and dtype, given those of the primals that `argnums` names;
    /// `None` for the jvp of [`forward`](Self::forward).
    fn tangents(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>>> {
        let _ = (primals, tangents, argnums);
        None
    }
}

/// Applies `function` so that its derivatives are its own; [`custom_vjp`](super::custom_vjp()) does so over trees.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, transforms};
/// use tacit_core::Result;
/// use tacit_core::transform::{self, Differentiable};
///
/// struct Twice;
///
/// impl Differentiable for Twice {
///     fn name(&self) -> &str {
///         "twice"
///     }
///     fn forward(&self, args: &[Array]) -> Result<Vec<Array>> {
///         Ok(vec![args[0].add(&args[0])?])
///     }
///     fn backward(&self, _: &[Array], cotangents: &[Array], _: &[Array]) -> Result<Vec<Array>> {
///         Ok(vec![cotangents[0].multiply(Array::from_f32(10.0))?])
///     }
/// }
///
/// let mut gradient = transforms::grad(|x: &Array| Ok(transform::apply(&[x.clone()], Twice)?.remove(0)));
/// assert_eq!(gradient(&Array::from_f32(1.0))?.item::<f32>(), 10.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The function fails or gives no result. Number, shape and dtype of the gradients are checked when they are taken.
pub fn apply(args: &[Array], function: impl Differentiable) -> Result<Vec<Array>> {
    let bridged = Bridged { name: function.name().to_owned(), function: Mutex::new(function) };
    Ok(tacit_bridge::custom_function(bridged, args)?)
}

/// Makes of a function that is only `Send`, as anything with arrays in it, one that threads may share.
struct Bridged<F> {
    name: String,
    function: Mutex<F>,
}

impl<F> Bridged<F> {
    fn locked(&self) -> Result<MutexGuard<'_, F>> {
        match self.function.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Error::invalid(
                format!("{} is called while another call of it runs", self.name),
                "build the graph anew on each thread",
            )),
        }
    }
}

impl<F: Differentiable> tacit_bridge::CustomFunction for Bridged<F> {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError> {
        Ok(self.locked()?.forward(args)?)
    }

    fn vjp(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Option<Result<Vec<Array>, BoxError>> {
        let result = self.locked().and_then(|function| function.backward(primals, cotangents, outputs));
        Some(result.map_err(Into::into))
    }

    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Option<Result<Vec<Array>, BoxError>> {
        let result = match self.locked() {
            Ok(function) => function.tangents(primals, tangents, argnums)?,
            Err(error) => Err(error),
        };
        Some(result.map_err(Into::into))
    }
}
