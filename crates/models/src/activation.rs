//! The functions within feed-forward layers.

use mlx_rs::error::Exception;
use mlx_rs::{Array, nn};

/// The function within a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x` times the cumulative distribution function of the normal distribution.
    Gelu,
    /// The same with a hyperbolic tangent in place of the error function.
    GeluTanh,
}

impl Activation {
    pub(crate) fn apply(self, x: &Array) -> Result<Array, Exception> {
        let y = match self {
            Self::Silu => nn::silu(x),
            Self::Gelu => nn::gelu(x),
            Self::GeluTanh => nn::gelu_approximate(x),
        };
        // Their constants are f32, which would widen halves.
        y?.as_dtype(x.dtype())
    }
}
