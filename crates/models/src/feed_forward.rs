//! What the feed-forward layers of a decoder have in common.

use mlx_rs::error::Exception;
use mlx_rs::module::ModuleParameters;
use mlx_rs::{Array, nn};

use crate::config::Activation;

/// What stands behind attention in a layer.
pub(crate) trait FeedForward: ModuleParameters + std::fmt::Debug + Send {
    fn forward(&mut self, x: &Array) -> Result<Array, Exception>;
}

impl Activation {
    pub(crate) fn of(self, x: &Array) -> Result<Array, Exception> {
        let y = match self {
            Self::Silu => nn::silu(x),
            Self::Gelu => nn::gelu(x),
            Self::GeluTanh => nn::gelu_approximate(x),
        };
        // Their constants are f32, which would widen halves.
        y?.as_dtype(x.dtype())
    }
}
