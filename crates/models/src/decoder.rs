//! A Llama-like decoder in plain mlx-rs modules: the parameters have the paths that mlx-lm and Hugging Face give them.
//!
//! What is not in every model is an option of the configuration: norms of heads, norms behind layers, caps of scores, windows,
//! products that are fused, experts, layers with a state in place of attention. Tacit is here for the caches alone.

use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, ModuleParameters as _};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::random::{RandomState, with_random_state};
use mlx_rs::{Array, Dtype, nn};
use tacit_core::{Error, Result};
use tacit_nn::{ArraysCache, Cache, KvCache};

use crate::attention::{Attention, Shared};
use crate::config::Config;
use crate::delta_net::DeltaNet;
use crate::experts::Experts;
use crate::family::NormPlacement;
use crate::feed_forward::{FeedForward, Gated};
use crate::layers::{FeedForwardConfig, LayerConfig, Mixer};
use crate::linear::linear;
use crate::norm::Norm;
use crate::numbers::{capped, narrowed, scalar, widened};
use crate::vocabulary::known;

/// The positions whose logits a decoder computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// The logits of the last token, which say what comes next.
    Last,
    /// The logits of every token, as the verification of a draft needs them.
    All,
}

#[derive(Debug, ModuleParameters)]
struct Layer {
    /// None where there is a net of the other kind.
    #[param]
    self_attn: Option<Attention>,
    #[param]
    linear_attn: Option<DeltaNet>,
    /// One of both: what stands behind attention has another name in Mixtral.
    #[param]
    mlp: Option<Box<dyn FeedForward>>,
    #[param]
    block_sparse_moe: Option<Box<dyn FeedForward>>,
    /// None where nothing is normalized before.
    #[param]
    input_layernorm: Option<Norm>,
    /// Before the feed-forward layer where nothing is normalized behind, and else behind attention.
    #[param]
    post_attention_layernorm: Norm,
    #[param]
    pre_feedforward_layernorm: Option<Norm>,
    #[param]
    post_feedforward_layernorm: Option<Norm>,
    residual_scale: Option<f32>,
}

impl Layer {
    fn new(config: &Config, own: &LayerConfig) -> Result<Self, Exception> {
        let &Config { hidden_size, activation, bias, fused, norms, residual_scale, .. } = config;
        let (feed_forward, is_block): (Box<dyn FeedForward>, bool) = match own.feed_forward {
            FeedForwardConfig::Dense { inner } => {
                (Box::new(Gated::new(hidden_size, inner, activation, bias.feed_forward, fused)?), false)
            }
            FeedForwardConfig::Experts(experts) => {
                (Box::new(Experts::new(hidden_size, experts, activation)?), experts.is_block)
            }
        };
        let (mlp, block_sparse_moe) = if is_block { (None, Some(feed_forward)) } else { (Some(feed_forward), None) };
        let norm = || Norm::new(hidden_size, config);
        let norm_if = |there: bool| there.then(norm).transpose();
        let (self_attn, linear_attn) = match own.mixer {
            Mixer::Attention { kind } => (Some(Attention::new(config, kind)?), None),
            Mixer::DeltaNet(sizes) => (None, Some(DeltaNet::new(hidden_size, sizes, config.norm.epsilon)?)),
        };
        Ok(Self {
            self_attn,
            linear_attn,
            mlp,
            block_sparse_moe,
            input_layernorm: norm_if(norms != NormPlacement::After)?,
            post_attention_layernorm: norm()?,
            pre_feedforward_layernorm: norm_if(norms == NormPlacement::Around)?,
            post_feedforward_layernorm: norm_if(norms != NormPlacement::Before)?,
            residual_scale,
        })
    }

    /// What the layer makes of tokens, of which attention has the mask.
    fn forward(&mut self, x: &Array, shared: &Shared<'_>, mask: Option<&Array>, cache: &mut Cache) -> Result<Array> {
        let dtype = self.post_attention_layernorm.weight.dtype();
        let normed = |norm: Option<&Norm>, x: &Array| norm.map_or_else(|| narrowed(x, dtype), |norm| norm.forward(x));
        let before = normed(self.input_layernorm.as_ref(), x)?;
        let attended = match (&mut self.self_attn, &mut self.linear_attn, cache, mask) {
            (Some(attention), _, Cache::Kv(cache), Some(mask)) => attention.forward(&before, shared, mask, cache)?,
            (_, Some(net), Cache::Arrays(cache), _) => net.forward(&before, cache)?,
            (attention, ..) => {
                let needed = if attention.is_some() { "keys and values" } else { "arrays" };
                let message = format!("a layer that keeps {needed} is given a cache of another kind");
                return Err(Error::invalid(message, MAKE_CACHES));
            }
        };
        let plus = |x: &Array, part: &Array, after: Option<&Norm>| match (after, self.residual_scale) {
            (Some(norm), _) => widened(x)?.add(norm.wide(&widened(part)?)?),
            (None, Some(scale)) => x.add(part.multiply(scalar(scale, part.dtype())?)?),
            (None, None) => x.add(part),
        };
        let after = self.post_feedforward_layernorm.as_ref();
        let (after_attention, before) = match after {
            Some(_) => (Some(&self.post_attention_layernorm), self.pre_feedforward_layernorm.as_ref()),
            None => (None, Some(&self.post_attention_layernorm)),
        };
        let x = plus(x, &attended, after_attention)?;
        let mut feed_forward = [&mut self.mlp, &mut self.block_sparse_moe].into_iter().flatten();
        let inner = feed_forward.try_fold(normed(before, &x)?, |x, mlp| mlp.forward(&x))?;
        Ok(plus(&x, &inner, after)?)
    }
}

const MAKE_CACHES: &str = "make them by `caches`";

/// All but the head.
#[derive(Debug, ModuleParameters)]
struct Body {
    #[param]
    embed_tokens: nn::Embedding,
    #[param]
    layers: Vec<Layer>,
    #[param]
    norm: Norm,
}

impl Body {
    /// What the first layer is given.
    fn embedded(&mut self, tokens: &Array, config: &Config) -> Result<Array> {
        let x = self.embed_tokens.forward(&known(tokens, config.vocab_size)?)?;
        Ok(match config.embedding_scale {
            Some(scale) => x.multiply(scalar(scale, x.dtype())?)?,
            None => x,
        })
    }
}

/// The decoder that a configuration describes.
#[derive(Debug, ModuleParameters)]
pub struct Decoder {
    config: Config,
    #[param]
    model: Body,
    /// None where it is the embedding.
    #[param]
    lm_head: Option<nn::Linear>,
}

impl Decoder {
    /// The decoder with random parameters, which are not computed before they are used: those of a file usually take their places.
    ///
    /// # Errors
    ///
    /// MLX refuses a shape.
    pub fn new(config: &Config) -> Result<Self, Exception> {
        let &Config { vocab_size, hidden_size, .. } = config;
        let head = || linear(hidden_size, vocab_size, false);
        Ok(Self {
            model: Body {
                embed_tokens: nn::Embedding::new(vocab_size, hidden_size)?,
                layers: config.layers.iter().map(|layer| Layer::new(config, layer)).collect::<Result<_, _>>()?,
                norm: Norm::new(hidden_size, config)?,
            },
            lm_head: if config.tied == Some(true) { None } else { Some(head()?) },
            config: config.clone(),
        })
    }

    /// The logits `[batch, n, words]` that follow `tokens: u32[batch, n]`, or the last of them, `[batch, 1, words]`.
    ///
    /// The caches, which have room for the tokens, hold them afterwards.
    ///
    /// # Errors
    ///
    /// The caches are not those of this decoder, or have no room; the tokens are no integers `[batch, n]`. Where a token is not in the
    /// vocabulary, the eval of the logits is an error.
    pub fn forward(&mut self, tokens: &Array, caches: &mut [Cache], asked: Positions) -> Result<Array> {
        let x = self.hidden(tokens, caches, asked)?;
        let logits = match &mut self.lm_head {
            Some(head) => head.forward(&x)?,
            None => self.model.embed_tokens.as_linear(&x)?,
        };
        Ok(self.config.logits(logits)?)
    }

    /// What the head is given for `tokens: u32[batch, n]`, or for the last of them: `[batch, n, hidden_size]`, normalized.
    ///
    /// The logits of many tokens are far larger: [`token_losses`](crate::token_losses) has not all of them at a time.
    ///
    /// # Errors
    ///
    /// As for [`forward`](Self::forward).
    pub fn hidden(&mut self, tokens: &Array, caches: &mut [Cache], asked: Positions) -> Result<Array> {
        let Self { config, model, .. } = self;
        if caches.len() != model.layers.len() {
            let message = format!("{} caches are given to {} layers", caches.len(), model.layers.len());
            return Err(Error::invalid(message, MAKE_CACHES));
        }
        let mut x = model.embedded(tokens, config)?;
        let attended = caches.iter().filter_map(|cache| if let Cache::Kv(cache) = cache { Some(cache) } else { None });
        let masks = KvCache::masks(attended, tokens.dim(1))?;
        let mut masks = masks.iter();
        let shared = Shared::new(config)?;
        for (layer, cache) in model.layers.iter_mut().zip(caches) {
            let mask = if matches!(cache, Cache::Kv(_)) { masks.next() } else { None };
            x = layer.forward(&x, &shared, mask, cache)?;
        }
        if asked == Positions::Last {
            x = x.try_index((.., -1.., ..))?;
        }
        Ok(model.norm.forward(&x)?)
    }

    /// What the first layer is given for tokens.
    pub(crate) fn embedded(&mut self, tokens: &Array) -> Result<Array> {
        self.model.embedded(tokens, &self.config)
    }

    /// What the head is given for what the last layer gives.
    pub(crate) fn normalized(&self, x: &Array) -> Result<Array> {
        Ok(self.model.norm.forward(x)?)
    }
}

/// A layer whose parameters are yet to be given.
///
/// What is drawn for them is never computed, and not drawn from the thread's random state: a checkpointed function that draws
/// from it is called twice.
fn unfilled(config: &Config, own: &LayerConfig) -> Result<Layer> {
    Ok(with_random_state(RandomState::with_seed(0)?, || Layer::new(config, own))?)
}

/// The paths of the parameters of a layer, within the layer.
pub(crate) fn paths_in_layer(config: &Config, number: usize) -> Result<Vec<String>> {
    let layer = unfilled(config, &config.layers[number])?;
    Ok(layer.parameters().flatten().into_keys().map(|path| path.to_string()).collect())
}

/// A layer by itself: what it makes of `x: [batch, n, hidden_size]` of whole texts, with parameters by their paths in it. Keys and
/// values are of this dtype.
pub(crate) fn layer_alone(
    config: Rc<Config>,
    number: usize,
    dtype: Dtype,
) -> impl Fn((Array, BTreeMap<String, Array>)) -> Result<Array> {
    move |(x, parameters)| {
        let layer_config = &config.layers[number];
        let mut layer = unfilled(&config, layer_config)?;
        for (path, slot) in layer.parameters_mut().flatten() {
            let value = parameters.get(&*path).cloned();
            *slot = value.ok_or_else(|| {
                let help = "give the configuration that the model was made of";
                Error::invalid(format!("layer {number} has no {path}"), help)
            })?;
        }
        // Codes of half floats would have no gradient.
        let mut cache = cache(&config, layer_config, x.dim(0), dtype)?.stored(None, None)?;
        cache.reserve(x.dim(1))?;
        let attended = if let Cache::Kv(cache) = &cache { Some(cache) } else { None };
        let mask = KvCache::masks(attended, x.dim(1))?.pop();
        let shared = Shared::new(&config)?;
        layer.forward(&x, &shared, mask.as_ref(), &mut cache)
    }
}

impl Config {
    /// The logits that products with the head are.
    pub(crate) fn logits(&self, mut products: Array) -> Result<Array, Exception> {
        if let Some(divisor) = self.logit_divisor {
            products = products.divide(scalar(divisor, products.dtype())?)?;
        }
        match self.logit_cap {
            Some(cap) => capped(&products, cap),
            None => Ok(products),
        }
    }
}

/// The empty caches of a batch, one a layer: keys and values of this dtype, or the state of a layer without attention.
///
/// Half floats are in the formats `f16` and `bf16` on a CPU: see [`KvCache::hold_halves`]. For a step that is differentiated make them
/// dense by [`Cache::stored`] without a format, as [`token_losses`](crate::token_losses) does.
///
/// # Errors
///
/// The dtype is not `f32`, `f16` or `bf16`.
pub fn caches(config: &Config, batch: i32, dtype: Dtype) -> Result<Vec<Cache>> {
    config.layers.iter().map(|layer| cache(config, layer, batch, dtype)).collect()
}

fn cache(config: &Config, layer: &LayerConfig, batch: i32, dtype: Dtype) -> Result<Cache> {
    match layer.mixer {
        Mixer::Attention { kind } => {
            let cache = KvCache::new([batch, config.kv_heads, config.head_dim], dtype)?;
            Ok(cache.with_window(config.kinds[kind].window)?.hold_halves()?.into())
        }
        Mixer::DeltaNet(_) => Ok(ArraysCache::new(DeltaNet::SLOTS).into()),
    }
}
