//! A block of a transformer, of mlx-rs's own layers.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Module;
use mlx_rs::nn::{Linear, MultiHeadAttention, RmsNorm};
use tacit::{Error, Result};

/// Attention and an MLP four times as wide, each beside the identity and behind a norm of its own.
#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Block {
    #[param]
    attention_norm: RmsNorm,
    #[param]
    attention: MultiHeadAttention,
    #[param]
    mlp_norm: RmsNorm,
    #[param]
    up: Linear,
    #[param]
    down: Linear,
}

impl Block {
    pub(crate) fn new(dims: i32, heads: i32) -> Result<Self> {
        Ok(Self {
            attention_norm: RmsNorm::new(dims)?,
            attention: MultiHeadAttention::new(dims, heads).map_err(|error| Error::Function(Box::new(error)))?,
            mlp_norm: RmsNorm::new(dims)?,
            up: Linear::new(dims, 4 * dims)?,
            down: Linear::new(4 * dims, dims)?,
        })
    }

    pub(crate) fn forward(
        &mut self,
        x: &Array,
        mask: &Array,
        activation: impl FnOnce(Array) -> Result<Array, Exception>,
    ) -> Result<Array, Exception> {
        let normed = self.attention_norm.forward(x)?;
        let x = x.add(self.attention.forward((&normed, &normed, &normed, mask))?)?;
        let hidden = activation(self.up.forward(&self.mlp_norm.forward(&x)?)?)?;
        x.add(self.down.forward(&hidden)?)
    }
}
