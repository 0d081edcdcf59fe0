//! A mixture of experts: each token goes through a few of many feed-forward layers.

use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, Param};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, nn, ops, random, stop_gradient};

use crate::activation::Activation;
use crate::feed_forward::{FeedForward, Gated};
use crate::layers::ExpertsConfig;
use crate::linear::linear;

/// A router and the experts, as Mixtral and Qwen3 have them, and perhaps one for all tokens, as Qwen3-Next has it.
#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Experts {
    per_token: i32,
    normalized: bool,
    #[param]
    gate: nn::Linear,
    #[param]
    switch_mlp: Switched,
    #[param]
    shared_expert: Option<Gated>,
    #[param]
    shared_expert_gate: Option<nn::Linear>,
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
        let ExpertsConfig { count, per_token, inner, normalized, shared, .. } = config;
        Ok(Self {
            per_token,
            normalized,
            gate: linear(hidden_size, count, false)?,
            switch_mlp: Switched {
                activation,
                gate_proj: SwitchLinear::new(count, hidden_size, inner)?,
                up_proj: SwitchLinear::new(count, hidden_size, inner)?,
                down_proj: SwitchLinear::new(count, inner, hidden_size)?,
            },
            shared_expert: shared.map(|inner| Gated::new(hidden_size, inner, activation, false, false)).transpose()?,
            shared_expert_gate: shared.map(|_| linear(hidden_size, 1, false)).transpose()?,
        })
    }
}

impl FeedForward for Experts {
    fn forward(&mut self, x: &Array) -> Result<Array, Exception> {
        let shares = ops::softmax_axis(self.gate.forward(x)?, -1, true)?;
        // A choice has no gradient, and MLX refuses to take one of indices.
        let sorted = ops::argpartition_axis(stop_gradient(&shares)?, -self.per_token, -1)?;
        let chosen = sorted.try_index((.., .., -self.per_token..))?;
        let mut shares = shares.take_along_axis(&chosen, -1)?;
        if self.normalized {
            shares = shares.divide(shares.sum_axis(-1, true)?)?;
        }
        let mixed = self.switch_mlp.forward(x, &chosen)?;
        let mixed = mixed.multiply(shares.expand_dims(-1)?)?.sum_axis(-2, None)?.as_dtype(x.dtype())?;
        match (&mut self.shared_expert, &mut self.shared_expert_gate) {
            (Some(shared), Some(gate)) => {
                let gate = ops::sigmoid(gate.forward(x)?)?;
                mixed.add(gate.multiply(shared.forward(x)?)?)
            }
            _ => Ok(mixed),
        }
    }
}

impl Switched {
    /// What the `chosen: [b, t, k]` experts make of `x: [b, t, d]`: `[b, t, k, d]`.
    fn forward(&self, x: &Array, chosen: &Array) -> Result<Array, Exception> {
        let x = x.expand_dims_axes(&[-2, -3])?;
        let gate = self.activation.apply(&self.gate_proj.forward(&x, chosen)?)?;
        let inner = gate.multiply(self.up_proj.forward(&x, chosen)?)?;
        self.down_proj.forward(&inner, chosen)?.squeeze_axes(&[-2])
    }
}
