//! Whether the gradients that a vjp gave fit its arguments.

use mlx_rs::Array;

use crate::Aval;

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
