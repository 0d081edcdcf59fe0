//! What the feed-forward layers of a decoder have in common, and the one of a single expert.

use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::{Array, nn};

use crate::activation::Activation;
use crate::linear::{apart_or_fused, linear};

/// What stands behind attention in a layer.
pub(crate) trait FeedForward: ModuleParameters + std::fmt::Debug + Send {
    fn forward(&mut self, x: &Array) -> Result<Array, Exception>;
}

#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Gated {
    activation: Activation,
    inner: i32,
    /// Both, or the fused one in place of them.
    #[param]
    gate_proj: Option<nn::Linear>,
    #[param]
    up_proj: Option<nn::Linear>,
    #[param]
    gate_up_proj: Option<nn::Linear>,
    #[param]
    down_proj: nn::Linear,
}

impl Gated {
    pub(crate) fn new(
        hidden_size: i32,
        inner: i32,
        activation: Activation,
        bias: bool,
        fused: bool,
    ) -> Result<Self, Exception> {
        let product = |there: bool, to: i32| there.then(|| linear(hidden_size, to, bias)).transpose();
        Ok(Self {
            activation,
            inner,
            gate_proj: product(!fused, inner)?,
            up_proj: product(!fused, inner)?,
            gate_up_proj: product(fused, 2 * inner)?,
            down_proj: linear(inner, hidden_size, bias)?,
        })
    }
}

impl FeedForward for Gated {
    fn forward(&mut self, x: &Array) -> Result<Array, Exception> {
        let Self { gate_proj, up_proj, gate_up_proj, .. } = self;
        let parts = apart_or_fused([gate_proj, up_proj], gate_up_proj, &[self.inner], x)?;
        let gate = self.activation.apply(&parts[0])?;
        self.down_proj.forward(&gate.multiply(&parts[1])?)
    }
}
