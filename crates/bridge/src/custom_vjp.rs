//! Functions with a gradient of their own.

use mlx_rs::Array;

use crate::Aval;
use crate::custom_function::{CustomFunction, custom_function};
use crate::error::{BoxError, BridgeError};

/// A vjp gave gradients that do not fit its arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GradientError {
    /// The number of gradients is not the number of arguments.
    #[error("the vjp of {function} gave {found} gradients for {expected} arguments")]
    Count {
        /// The function.
        function: String,
        /// The number of arguments.
        expected: usize,
        /// The number of gradients.
        found: usize,
    },
    /// A gradient has another shape or dtype than its argument.
    #[error("the vjp of {function} gave {found} as the gradient of argument {argument}, which is {expected}")]
    Aval {
        /// The function.
        function: String,
        /// Which argument.
        argument: usize,
        /// The aval of the argument.
        expected: Aval,
        /// The aval of the gradient.
        found: Aval,
    },
}

/// Compares gradients with the arguments that they belong to; MLX itself does not, and crashes on a wrong count.
pub(crate) fn check_gradients<'a>(
    function: &str,
    arguments: impl ExactSizeIterator<Item = &'a Array>,
    gradients: &[Array],
) -> Result<(), GradientError> {
    let function = || function.to_owned();
    if arguments.len() != gradients.len() {
        return Err(GradientError::Count { function: function(), expected: arguments.len(), found: gradients.len() });
    }
    for (argument, (primal, gradient)) in arguments.zip(gradients).enumerate() {
        let (expected, found) = (Aval::from(primal), Aval::from(gradient));
        if expected != found {
            return Err(GradientError::Aval { function: function(), argument, expected, found });
        }
    }
    Ok(())
}

/// A function together with its vjp.
pub trait Differentiable: Send + Sync + 'static {
    /// What messages call the function.
    fn name(&self) -> &str;

    /// The function itself; at least one result.
    ///
    /// # Errors
    ///
    /// Whatever the function refuses.
    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError>;

    /// One gradient for each argument, of the argument's aval.
    ///
    /// # Errors
    ///
    /// Whatever the function refuses.
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
