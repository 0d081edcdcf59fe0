//! What the feed-forward layers of a decoder have in common, and the one of a single expert.

use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::{Array, nn};

use crate::config::Activation;
use crate::linear::linear;

/// What stands behind attention in a layer.
pub(crate) trait FeedForward: ModuleParameters + std::fmt::Debug + Send {
    fn forward(&mut self, x: &Array) -> Result<Array, Exception>;
}

#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Gated {
    activation: Activation,
    #[param]
    gate_proj: nn::Linear,
    #[param]
    up_proj: nn::Linear,
    #[param]
    down_proj: nn::Linear,
}

impl Gated {
    pub(crate) fn new(hidden_size: i32, inner: i32, activation: Activation, bias: bool) -> Result<Self, Exception> {
        Ok(Self {
            activation,
            gate_proj: linear(hidden_size, inner, bias)?,
            up_proj: linear(hidden_size, inner, bias)?,
            down_proj: linear(inner, hidden_size, bias)?,
        })
    }
}

impl FeedForward for Gated {
    fn forward(&mut self, x: &Array) -> Result<Array, Exception> {
        let gate = self.activation.of(&self.gate_proj.forward(x)?)?;
        self.down_proj.forward(&gate.multiply(self.up_proj.forward(x)?)?)
    }
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
