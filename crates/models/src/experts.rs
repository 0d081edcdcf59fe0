//! A mixture of experts: each token goes through a few of many feed-forward layers.

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, Param};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, nn, ops, random};

use crate::config::{Activation, ExpertsConfig};
use crate::feed_forward::FeedForward;

/// A router and the experts, as Qwen3 has them.
#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Experts {
    per_token: i32,
    normalized: bool,
    #[param]
    gate: nn::Linear,
    #[param]
    switch_mlp: Switched,
}

/// The gated layers of all experts.
#[derive(Clone, Debug, ModuleParameters)]
struct Switched {
    activation: Activation,
    #[param]
    gate_proj: SwitchLinear,
    #[param]
    up_proj: SwitchLinear,
    #[param]
    down_proj: SwitchLinear,
}

/// One linear layer of each expert, `[experts, out, in]`.
#[derive(Clone, Debug, ModuleParameters)]
struct SwitchLinear {
    #[param]
    weight: Param<Array>,
}

impl SwitchLinear {
    fn new(experts: i32, from: i32, to: i32) -> Result<Self, Exception> {
        let bound = (from as f32).sqrt().recip();
        Ok(Self { weight: Param::new(random::uniform::<_, f32>(-bound, bound, &[experts, to, from], None)?) })
    }

    /// `x: [.., 1, in]` by the experts that `chosen` has for each of its rows.
    fn forward(&self, x: &Array, chosen: &Array) -> Result<Array, Exception> {
        ops::gather_mm(x, self.weight.swap_axes(-1, -2)?, None, chosen, None)
    }
}

impl Experts {
    pub(crate) fn new(hidden_size: i32, config: ExpertsConfig, activation: Activation) -> Result<Self, Exception> {
        let ExpertsConfig { count, per_token, inner, normalized } = config;
        Ok(Self {
            per_token,
            normalized,
            gate: nn::LinearBuilder::new(hidden_size, count).bias(false).build()?,
            switch_mlp: Switched {
                activation,
                gate_proj: SwitchLinear::new(count, hidden_size, inner)?,
                up_proj: SwitchLinear::new(count, hidden_size, inner)?,
                down_proj: SwitchLinear::new(count, inner, hidden_size)?,
            },
        })
    }
}

impl FeedForward for Experts {
    fn forward(&mut self, x: &Array) -> Result<Array, Exception> {
        let shares = ops::softmax_axis(self.gate.forward(x)?, -1, true)?;
        let chosen = ops::argpartition_axis(&shares, -self.per_token, -1)?.try_index((.., .., -self.per_token..))?;
        let mut shares = shares.take_along_axis(&chosen, -1)?;
        if self.normalized {
            shares = shares.divide(shares.sum_axis(-1, true)?)?;
        }
        let mixed = self.switch_mlp.forward(x, &chosen)?;
        mixed.multiply(shares.expand_dims(-1)?)?.sum_axis(-2, None)?.as_dtype(x.dtype())
    }
}

impl Switched {
    /// What the `chosen: [b, t, k]` experts make of `x: [b, t, d]`: `[b, t, k, d]`.
    fn forward(&self, x: &Array, chosen: &Array) -> Result<Array, Exception> {
        let x = x.expand_dims_axes(&[-2, -3])?;
        let gate = self.activation.of(&self.gate_proj.forward(&x, chosen)?)?;
        let inner = gate.multiply(self.up_proj.forward(&x, chosen)?)?;
        self.down_proj.forward(&inner, chosen)?.squeeze_axes(&[-2])
    }
}
