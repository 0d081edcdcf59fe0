//! Functions with a gradient of their own.

use mlx_rs::Array;

use crate::custom_function::{CustomFunction, custom_function};
use crate::error::{BoxError, BridgeError};

/// A function together with its vjp; both fail with whatever it refuses.
pub trait Differentiable: Send + Sync + 'static {
    /// What messages call the function.
    fn name(&self) -> &str;

    /// The function itself; at least one result, of the same avals for arguments of the same avals.
    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError>;

    /// One gradient for each argument, of the argument's aval.
    fn backward(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Result<Vec<Array>, BoxError>;
}

/// Applies `function` so that its vjp is the function's own.
///
/// Its jvp and vmap are those of `forward`, and mapped it keeps its vjp; see [`custom_function`] for a function with its
/// own.
///
/// # Errors
///
/// The function fails or gives no result. The gradients are checked when they are taken.
pub fn custom_vjp(function: impl Differentiable, args: &[Array]) -> Result<Vec<Array>, BridgeError> {
    custom_function(WithVjp(function), args)
}

struct WithVjp<F>(F);

impl<F: Differentiable> CustomFunction for WithVjp<F> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError> {
        self.0.forward(args)
    }

    fn vjp(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Option<Result<Vec<Array>, BoxError>> {
        Some(self.0.backward(primals, cotangents, outputs))
    }
}
