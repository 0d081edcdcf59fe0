//! Attention with rotary positions, as all layers of a kind have it.

use mlx_rs::error::Exception;
use mlx_rs::fast::scaled_dot_product_attention;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Module;
use mlx_rs::{Array, nn, ops};
use tacit_core::Result;
use tacit_nn::KvCache;

use crate::config::Config;
use crate::family::HeadNorms;
use crate::layers::Kind;
use crate::linear::{apart_or_fused, linear};
use crate::norm::Norm;
use crate::numbers::{capped, least, scalar};
use crate::rope::Rope;

/// What layers of attention have in common in a step.
pub(crate) struct Shared<'s> {
    kinds: &'s [Kind],
    /// The wavelengths of each kind.
    wavelengths: Vec<Option<Array>>,
}

impl<'s> Shared<'s> {
    pub(crate) fn new(config: &'s Config) -> Result<Self, Exception> {
        let wavelengths = config.kinds.iter().map(|kind| kind.rope.as_ref().map_or(Ok(None), Rope::wavelengths));
        Ok(Self { kinds: &config.kinds, wavelengths: wavelengths.collect::<Result<_, _>>()? })
    }
}

#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Attention {
    kind: usize,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    scale: f32,
    cap: Option<f32>,
    output_gate: bool,
    /// All three, or the fused one in place of them.
    #[param]
    q_proj: Option<nn::Linear>,
    #[param]
    k_proj: Option<nn::Linear>,
    #[param]
    v_proj: Option<nn::Linear>,
    #[param]
    qkv_proj: Option<nn::Linear>,
    #[param]
    o_proj: nn::Linear,
    #[param]
    q_norm: Option<Norm>,
    #[param]
    k_norm: Option<Norm>,
}

impl Attention {
    pub(crate) fn new(config: &Config, kind: usize) -> Result<Self, Exception> {
        let &Config { hidden_size, heads, kv_heads, head_dim, scale, score_cap, output_gate, fused, bias, .. } = config;
        let norm = |heads: i32| {
            let width = config.head_norms.map(|of| if of == HeadNorms::Each { head_dim } else { heads * head_dim });
            width.map(|width| Norm::new(width, config)).transpose()
        };
        let apart = |heads: i32| (!fused).then(|| linear(hidden_size, heads * head_dim, bias.qkv)).transpose();
        let joined = || linear(hidden_size, (heads + 2 * kv_heads) * head_dim, bias.qkv);
        Ok(Self {
            kind,
            heads,
            kv_heads,
            head_dim,
            scale,
            cap: score_cap,
            output_gate,
            q_proj: apart(if output_gate { 2 * heads } else { heads })?,
            k_proj: apart(kv_heads)?,
            v_proj: apart(kv_heads)?,
            qkv_proj: fused.then(joined).transpose()?,
            o_proj: linear(heads * head_dim, hidden_size, bias.output)?,
            q_norm: norm(heads)?,
            k_norm: norm(kv_heads)?,
        })
    }

    pub(crate) fn forward(
        &mut self,
        x: &Array,
        shared: &Shared<'_>,
        mask: &Array,
        cache: &mut KvCache,
    ) -> Result<Array> {
        let (batch, tokens) = (x.dim(0), x.dim(1));
        let ends = [self.heads * self.head_dim, (self.heads + self.kv_heads) * self.head_dim];
        let Self { q_proj, k_proj, v_proj, qkv_proj, .. } = self;
        let products = apart_or_fused([q_proj, k_proj, v_proj], qkv_proj, &ends, x)?;
        let (queries, gate) = self.apart(&products[0])?;
        let split = |x: &Array| x.reshape(&[batch, tokens, -1, self.head_dim])?.transpose_axes(&[0, 2, 1, 3]);
        let normalized = |x: &Array, norm: Option<&Norm>| match norm {
            Some(norm) if norm.weight.dim(0) == self.head_dim => norm.forward(&split(x)?),
            // The gain is that of all heads.
            Some(norm) => split(&norm.forward(x)?),
            None => split(x),
        };
        let mut queries = normalized(&queries, self.q_norm.as_ref())?;
        let mut keys = normalized(&products[1], self.k_norm.as_ref())?;
        let values = split(&products[2])?;
        if let Some(rope) = &shared.kinds[self.kind].rope {
            let rotated = |x: &Array| rope.rotate(x, cache.offset(), shared.wavelengths[self.kind].as_ref());
            (queries, keys) = (rotated(&queries)?, rotated(&keys)?);
        }
        let (keys, values) = cache.update(&keys, &values)?;
        let mixed = match self.cap {
            None => scaled_dot_product_attention(&queries, &keys, &values, self.scale, Some(mask.into()), None)?,
            Some(cap) => self.capped(&queries, &keys, &values, mask, cap)?,
        };
        let mut mixed = mixed.transpose_axes(&[0, 2, 1, 3])?.reshape(&[batch, tokens, -1])?;
        if let Some(gate) = gate {
            mixed = mixed.multiply(gate)?;
        }
        Ok(self.o_proj.forward(&mixed)?)
    }

    /// The queries, and the gate that lies behind those of each head, if there is one: `[batch, tokens, heads * head_dim]` both.
    fn apart(&self, queries: &Array) -> Result<(Array, Option<Array>), Exception> {
        if !self.output_gate {
            return Ok((queries.clone(), None));
        }
        let (batch, tokens) = (queries.dim(0), queries.dim(1));
        let parts = queries.reshape(&[batch, tokens, self.heads, -1])?.split_equal(2, -1)?;
        let flat = |part: &Array| part.reshape(&[batch, tokens, -1]);
        Ok((flat(&parts[0])?, Some(ops::sigmoid(flat(&parts[1])?)?)))
    }

    /// Attention whose scores are capped, which MLX's own does not do.
    fn capped(
        &self,
        queries: &Array,
        keys: &Array,
        values: &Array,
        mask: &Array,
        cap: f32,
    ) -> Result<Array, Exception> {
        let (batch, tokens, dtype) = (queries.dim(0), queries.dim(2), queries.dtype());
        let groups = &[batch, self.kv_heads, self.heads / self.kv_heads, tokens, self.head_dim];
        let queries = queries.multiply(scalar(self.scale, dtype)?)?.reshape(groups)?;
        let scores = queries.matmul(keys.expand_dims(2)?.swap_axes(-1, -2)?)?;
        let scores = capped(&scores, cap)?;
        // A token of padding sees nothing: of infinities alone a softmax would be NaN.
        let scores = ops::select(mask.expand_dims(1)?, scores, least(dtype)?)?;
        let weights = ops::softmax_axis(scores, -1, true)?;
        weights.matmul(values.expand_dims(2)?)?.reshape(&[batch, self.heads, tokens, self.head_dim])
    }
}
