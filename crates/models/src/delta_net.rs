//! A gated delta net: a layer whose state is of one size, however many tokens there were.
//!
//! Queries, keys and values come through a short convolution. The state `S` of a head maps keys to values. A token lets it decay by
//! `g`, corrects what it gives for the key by the part `b`, and reads it by the query:
//! `S = g S + b (v - g S k) k^T`, `y = S q` (Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024).

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, Param};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast, nn, ops, random};
use tacit_core::{Aval, Error, Result};
use tacit_nn::ArraysCache;

use crate::activation::Activation;
use crate::layers::DeltaNetConfig;
use crate::linear::linear;

/// The net of Qwen3-Next, with the names that its checkpoints have.
#[derive(Debug, ModuleParameters)]
#[allow(non_snake_case, reason = "a parameter is named so in checkpoints")]
pub(crate) struct DeltaNet {
    sizes: DeltaNetConfig,
    #[param]
    in_proj_qkvz: nn::Linear,
    #[param]
    in_proj_ba: nn::Linear,
    #[param]
    conv1d: nn::Conv1d,
    #[param]
    A_log: Param<Array>,
    #[param]
    dt_bias: Param<Array>,
    #[param]
    norm: nn::RmsNorm,
    #[param]
    out_proj: nn::Linear,
}

/// What a step of the state takes of all tokens: `[batch, key heads, value heads of each, .., tokens]`, and those of keys as rows,
/// `[batch, key heads, 1, tokens, width]`.
struct Tokens {
    queries: Array,
    keys: Array,
    values: Array,
    decay: Array,
    correction: Array,
    mask: Option<Array>,
}

impl DeltaNet {
    /// The arrays that it keeps: the last inputs of the convolution, and the state.
    pub(crate) const SLOTS: usize = 2;

    pub(crate) fn new(hidden_size: i32, sizes: DeltaNetConfig, epsilon: f32) -> Result<Self, Exception> {
        let DeltaNetConfig { key_heads, key_dim, value_heads, value_dim, kernel } = sizes;
        let (keys, values, channels) = (key_heads * key_dim, value_heads * value_dim, sizes.channels());
        let conv1d = nn::Conv1dBuilder::new(channels, channels, kernel).groups(channels).bias(false).build();
        Ok(Self {
            sizes,
            in_proj_qkvz: linear(hidden_size, 2 * (keys + values), false)?,
            in_proj_ba: linear(hidden_size, 2 * value_heads, false)?,
            conv1d: conv1d.map_err(|error| Exception::custom(error.to_string()))?,
            A_log: Param::new(ops::log(random::uniform::<_, f32>(1.0, 16.0, &[value_heads], None)?)?),
            dt_bias: Param::new(ops::ones::<f32>(&[value_heads])?),
            norm: nn::RmsNormBuilder::new(value_dim).eps(epsilon).build()?,
            out_proj: linear(values, hidden_size, false)?,
        })
    }

    /// What the net makes of `x: [batch, tokens, hidden]`, and its cache of them.
    pub(crate) fn forward(&mut self, x: &Array, cache: &mut ArraysCache) -> Result<Array> {
        let DeltaNetConfig { key_heads, key_dim, value_heads, value_dim, .. } = self.sizes;
        let (batch, tokens, shared) = (x.dim(0), x.dim(1), value_heads / key_heads);
        // What belongs to a head of keys lies together.
        let by_head = |x: Array| x.reshape(&[batch, tokens, key_heads, -1]);
        let ends = [key_dim, 2 * key_dim, 2 * key_dim + shared * value_dim];
        let qkvz = by_head(self.in_proj_qkvz.forward(x)?)?.split_at_indices(&ends, -1)?;
        let ba = by_head(self.in_proj_ba.forward(x)?)?.split_equal(2, -1)?;
        let mask = cache.mask(tokens)?;

        let flat = |x: &Array| x.reshape(&[batch, tokens, -1]);
        let mut inputs = ops::concatenate(&[flat(&qkvz[0])?, flat(&qkvz[1])?, flat(&qkvz[2])?], -1)?;
        if let Some(mask) = &mask {
            let nothing = Array::from_f32(0.0).as_dtype(inputs.dtype())?;
            inputs = ops::select(mask.expand_dims(-1)?, &inputs, nothing)?;
        }
        let mixed = Activation::Silu.apply(&self.convolve(&inputs, cache)?)?;
        let parts = mixed.split_at_indices(&[key_heads * key_dim, 2 * key_heads * key_dim], -1)?;

        // Vectors of length 1, and queries divided by the root of their width as well.
        let width = (key_dim as f32).sqrt().recip();
        let unit = |x: &Array, gain: f32| {
            let x = fast::rms_norm(x.reshape(&[batch, tokens, key_heads, key_dim])?, None, 1e-6 * width * width)?;
            x.multiply(Array::from_f32(gain).as_dtype(x.dtype())?)
        };
        let rows = |x: Array| x.transpose_axes(&[0, 2, 1, 3])?.expand_dims(2);
        let columns = |x: &Array| x.reshape(&[batch, tokens, key_heads, shared, -1])?.transpose_axes(&[0, 2, 3, 4, 1]);
        let steps = Tokens {
            queries: rows(unit(&parts[0], width * width)?)?,
            keys: rows(unit(&parts[1], width)?)?,
            values: columns(&parts[2])?,
            decay: columns(&self.decay(&ba[1].reshape(&[batch, tokens, value_heads])?)?)?,
            correction: columns(&ops::sigmoid(&ba[0])?)?,
            mask: mask.map(|mask| mask.reshape(&[batch, 1, 1, 1, tokens])).transpose()?,
        };
        let state_shape = [batch, value_heads, value_dim, key_dim];
        let state = slot_or_zeros(cache, 1, &state_shape, Dtype::Float32)?;
        let (read, state) = steps.recall(state.reshape(&[batch, key_heads, shared, value_dim, key_dim])?, tokens)?;
        cache.set(1, state.reshape(&state_shape)?)?;
        cache.advance(tokens)?;

        let read = read.reshape(&[batch, tokens, value_heads, value_dim])?.as_dtype(x.dtype())?;
        let gate = qkvz[3].reshape(read.shape())?.as_dtype(Dtype::Float32)?;
        let read = Activation::Silu.apply(&gate)?.multiply(self.norm.forward(&read)?)?.as_dtype(x.dtype())?;
        Ok(self.out_proj.forward(&flat(&read)?)?)
    }

    /// What tokens leave of the state, for `a: [.., value_heads]`.
    ///
    /// In `f32` throughout: the state multiplies what it holds of a token by the decays of all tokens after it.
    fn decay(&self, a: &Array) -> Result<Array, Exception> {
        let rate = ops::exp(&self.A_log.as_dtype(Dtype::Float32)?)?;
        let times = nn::softplus(a.as_dtype(Dtype::Float32)?.add(&self.dt_bias)?)?;
        ops::exp(rate.multiply(times)?.negative()?)
    }

    /// Each channel of `inputs: [batch, tokens, channels]` with those of the tokens before it, of which the last stay in the cache.
    fn convolve(&mut self, inputs: &Array, cache: &mut ArraysCache) -> Result<Array> {
        let (batch, tokens, kept) = (inputs.dim(0), inputs.dim(1), self.sizes.kernel - 1);
        let before = slot_or_zeros(cache, 0, &[batch, kept, self.sizes.channels()], inputs.dtype())?;
        let window = ops::concatenate(&[&before, inputs], 1)?;
        let last = match cache.lengths() {
            None => window.try_index((.., tokens.., ..))?,
            // Those before the padding behind each sequence.
            Some(lengths) => {
                let end = ops::clip(lengths, (&Array::from_int(0), &Array::from_int(tokens)))?.expand_dims(1)?;
                let places = end.add(ops::arange::<_, i32>(0, kept, None)?)?;
                window.take_along_axis(places.expand_dims(-1)?, 1)?
            }
        };
        cache.set(0, last)?;
        Ok(self.conv1d.forward(&window)?)
    }
}

impl Tokens {
    /// What each token reads, `[batch, tokens, key heads, value heads of each, width]`, and the state behind the last,
    /// `[batch, key heads, value heads of each, width, width of keys]`.
    fn recall(&self, mut state: Array, tokens: i32) -> Result<(Array, Array), Exception> {
        let queries = self.queries.split_equal(tokens, 3)?;
        let keys = self.keys.split_equal(tokens, 3)?;
        let [values, decay, correction] =
            [&self.values, &self.decay, &self.correction].map(|array| array.split_equal(tokens, -1));
        let (values, decay, correction) = (values?, decay?, correction?);
        let mask = self.mask.as_ref().map(|mask| mask.split_equal(tokens, -1)).transpose()?;
        let mut read = Vec::with_capacity(keys.len());
        for (token, key) in keys.iter().enumerate() {
            let faded = state.multiply(&decay[token])?;
            let recalled = faded.matmul(key.swap_axes(-1, -2)?)?;
            let error = values[token].subtract(recalled)?.multiply(&correction[token])?;
            let next = faded.add(error.multiply(key)?)?;
            read.push(next.matmul(queries[token].swap_axes(-1, -2)?)?);
            state = match &mask {
                Some(mask) => ops::select(&mask[token], &next, &state)?,
                None => next,
            };
        }
        Ok((ops::concatenate(&read, -1)?.transpose_axes(&[0, 4, 1, 2, 3])?, state))
    }
}

/// What a slot holds, or zeros where nothing does yet.
fn slot_or_zeros(cache: &ArraysCache, slot: usize, shape: &[i32], dtype: Dtype) -> Result<Array> {
    match cache.get(slot)? {
        None => Ok(ops::zeros_dtype(shape, dtype)?),
        Some(array) if array.shape() == shape => Ok(array.clone()),
        Some(array) => Err(Error::invalid(
            format!("a layer whose state is {} is given {}", Aval::new(shape, dtype), Aval::from(array)),
            "make the caches by `caches`, for as many sequences as there are",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decays_of_half_floats_are_not_rounded() -> Result<()> {
        let half = |number: f32| Array::from_slice(&[number], &[1]).as_dtype(Dtype::Bfloat16);
        let sizes = DeltaNetConfig { key_heads: 1, key_dim: 4, value_heads: 1, value_dim: 4, kernel: 2 };
        let mut net = DeltaNet::new(8, sizes, 1e-6)?;
        (net.A_log, net.dt_bias) = (Param::new(half(0.0)?), Param::new(half(1.0)?));
        // `exp(-ln(1 + exp(x)))` of `x` with a bit that bf16 does not have.
        let expected = (1.0 + 4.140_625_f32.exp()).recip();
        let decay = net.decay(&half(3.140_625)?)?;
        assert_eq!(decay.dtype(), Dtype::Float32);
        let found = decay.item_exact::<f32>();
        assert!((found - expected).abs() < 1e-5 * expected, "{found} {expected}");
        Ok(())
    }
}
