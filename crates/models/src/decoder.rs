//! A Llama-like decoder in plain mlx-rs modules: the parameters have the paths that mlx-lm and Hugging Face give them.
//!
//! What is not in every model is an option of the configuration: norms of heads, norms behind as well as before, caps of
//! scores, windows, experts, layers with a state in place of attention. Tacit is here for the caches alone.

use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::fast::scaled_dot_product_attention;
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module, ModuleParameters as _, Param};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::random::{RandomState, with_random_state};
use mlx_rs::{Array, Dtype, fast, nn, ops};
use tacit_core::{Error, Result};
use tacit_nn::{ArraysCache, Cache, KvCache};

use crate::config::Config;
use crate::delta_net::DeltaNet;
use crate::experts::Experts;
use crate::feed_forward::{FeedForward, Gated};
use crate::layers::{FeedForwardConfig, Kind, LayerConfig, Mixer};
use crate::linear::linear;
use crate::vocabulary::known;

/// The logits that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Those of the last token, which say what comes next.
    Last,
    /// Those of every token, as who verifies a draft needs them.
    All,
}

/// A division by the root of the mean square, and a gain.
#[derive(Clone, Debug, ModuleParameters)]
struct Norm {
    #[param]
    weight: Param<Array>,
    epsilon: f32,
    from_one: bool,
}

impl Norm {
    fn new(size: i32, config: &Config) -> Result<Self, Exception> {
        let crate::config::Norm { epsilon, from_one } = config.norm;
        let weight = if from_one { ops::zeros::<f32>(&[size])? } else { ops::ones::<f32>(&[size])? };
        Ok(Self { weight: Param::new(weight), epsilon, from_one })
    }

    /// In half precision where the gain is.
    fn forward(&self, x: &Array) -> Result<Array, Exception> {
        let (made, dtype) = (self.wide(x)?, self.weight.dtype());
        if dtype == Dtype::Float16 { made.as_dtype(dtype) } else { Ok(made) }
    }

    /// For a sum that is [`widened`].
    fn wide(&self, x: &Array) -> Result<Array, Exception> {
        let one = self.from_one.then(|| scalar(1.0, self.weight.dtype())).transpose()?;
        let gain = one.map(|one| self.weight.add(one)).transpose()?;
        fast::rms_norm(x, Some(gain.as_ref().unwrap_or(&self.weight)), self.epsilon)
    }
}

/// What layers of attention have in common in a step.
struct Shared<'s> {
    kinds: &'s [Kind],
    /// Of each kind.
    wavelengths: &'s [Option<Array>],
}

#[derive(Clone, Debug, ModuleParameters)]
struct Attention {
    kind: usize,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    scale: f32,
    cap: Option<f32>,
    output_gate: bool,
    #[param]
    q_proj: nn::Linear,
    #[param]
    k_proj: nn::Linear,
    #[param]
    v_proj: nn::Linear,
    #[param]
    o_proj: nn::Linear,
    #[param]
    q_norm: Option<Norm>,
    #[param]
    k_norm: Option<Norm>,
}

impl Attention {
    fn new(config: &Config, kind: usize) -> Result<Self, Exception> {
        let &Config { hidden_size, heads, kv_heads, head_dim, scale, score_cap, output_gate, bias, .. } = config;
        let norm = || config.head_norms.then(|| Norm::new(head_dim, config)).transpose();
        let queries = heads * head_dim * if output_gate { 2 } else { 1 };
        Ok(Self {
            kind,
            heads,
            kv_heads,
            head_dim,
            scale,
            cap: score_cap,
            output_gate,
            q_proj: linear(hidden_size, queries, bias.qkv)?,
            k_proj: linear(hidden_size, kv_heads * head_dim, bias.qkv)?,
            v_proj: linear(hidden_size, kv_heads * head_dim, bias.qkv)?,
            o_proj: linear(heads * head_dim, hidden_size, bias.output)?,
            q_norm: norm()?,
            k_norm: norm()?,
        })
    }

    fn forward(&mut self, x: &Array, shared: &Shared<'_>, mask: &Array, cache: &mut KvCache) -> Result<Array> {
        let (batch, tokens) = (x.dim(0), x.dim(1));
        let split = |x: Array| x.reshape(&[batch, tokens, -1, self.head_dim])?.transpose_axes(&[0, 2, 1, 3]);
        let queries = self.q_proj.forward(x)?;
        let (queries, gate) = self.apart(queries)?;
        let mut queries = split(queries)?;
        let mut keys = split(self.k_proj.forward(x)?)?;
        let values = split(self.v_proj.forward(x)?)?;
        if let (Some(of_queries), Some(of_keys)) = (&self.q_norm, &self.k_norm) {
            queries = of_queries.forward(&queries)?;
            keys = of_keys.forward(&keys)?;
        }
        let (rope, wavelengths) = (&shared.kinds[self.kind].rope, shared.wavelengths[self.kind].as_ref());
        let turned = |x: &Array| rope.turn(x, cache.offset(), wavelengths);
        let (queries, keys) = (turned(&queries)?, turned(&keys)?);
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
    fn apart(&self, queries: Array) -> Result<(Array, Option<Array>), Exception> {
        if !self.output_gate {
            return Ok((queries, None));
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

#[derive(Debug, ModuleParameters)]
struct Layer {
    /// None where there is a net of the other kind.
    #[param]
    self_attn: Option<Attention>,
    #[param]
    linear_attn: Option<DeltaNet>,
    #[param]
    mlp: Box<dyn FeedForward>,
    #[param]
    input_layernorm: Norm,
    #[param]
    post_attention_layernorm: Norm,
    #[param]
    pre_feedforward_layernorm: Option<Norm>,
    #[param]
    post_feedforward_layernorm: Option<Norm>,
}

impl Layer {
    fn new(config: &Config, own: &LayerConfig) -> Result<Self, Exception> {
        let &Config { hidden_size, activation, bias, .. } = config;
        let mlp: Box<dyn FeedForward> = match own.feed_forward {
            FeedForwardConfig::Dense { inner } => {
                Box::new(Gated::new(hidden_size, inner, activation, bias.feed_forward)?)
            }
            FeedForwardConfig::Experts(experts) => Box::new(Experts::new(hidden_size, experts, activation)?),
        };
        let norm = || Norm::new(hidden_size, config);
        let after = || config.norms_after.then(norm).transpose();
        let (self_attn, linear_attn) = match own.mixer {
            Mixer::Attention { kind } => (Some(Attention::new(config, kind)?), None),
            Mixer::DeltaNet(sizes) => (None, Some(DeltaNet::new(hidden_size, sizes, config.norm.epsilon)?)),
        };
        Ok(Self {
            self_attn,
            linear_attn,
            mlp,
            input_layernorm: norm()?,
            post_attention_layernorm: norm()?,
            pre_feedforward_layernorm: after()?,
            post_feedforward_layernorm: after()?,
        })
    }

    /// What the layer makes of tokens, of which attention has the mask.
    fn forward(&mut self, x: &Array, shared: &Shared<'_>, mask: Option<&Array>, cache: &mut Cache) -> Result<Array> {
        let before = self.input_layernorm.forward(x)?;
        let attended = match (&mut self.self_attn, &mut self.linear_attn, cache, mask) {
            (Some(attention), _, Cache::Kv(cache), Some(mask)) => attention.forward(&before, shared, mask, cache)?,
            (_, Some(net), Cache::Arrays(cache), _) => net.forward(&before, cache)?,
            (attention, ..) => {
                let needed = if attention.is_some() { "keys and values" } else { "arrays" };
                let message = format!("a layer that keeps {needed} is given a cache of another kind");
                return Err(Error::invalid(message, MAKE_CACHES));
            }
        };
        if let (Some(before), Some(after)) = (&self.pre_feedforward_layernorm, &self.post_feedforward_layernorm) {
            let x = widened(x)?.add(self.post_attention_layernorm.wide(&widened(&attended)?)?)?;
            let inner = self.mlp.forward(&before.forward(&x)?)?;
            return Ok(x.add(after.wide(&widened(&inner)?)?)?);
        }
        let x = x.add(attended)?;
        Ok(x.add(self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?)?)
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
    /// The decoder with parameters that are drawn, or yet to be loaded: nothing is computed until it is used.
    pub fn new(config: &Config) -> Result<Self, Exception> {
        let &Config { vocab_size, hidden_size, .. } = config;
        let head = || linear(hidden_size, vocab_size, false);
        Ok(Self {
            model: Body {
                embed_tokens: nn::Embedding::new(vocab_size, hidden_size)?,
                layers: config.layers.iter().map(|own| Layer::new(config, own)).collect::<Result<_, _>>()?,
                norm: Norm::new(hidden_size, config)?,
            },
            lm_head: if config.tied == Some(true) { None } else { Some(head()?) },
            config: config.clone(),
        })
    }

    /// The logits `[batch, n, words]` that follow `tokens: u32[batch, n]`, or the last of them, `[batch, 1, words]`. The
    /// caches, which have room for the tokens, hold them afterwards.
    ///
    /// # Errors
    ///
    /// The caches are not those of this decoder, or have no room; the tokens are no integers. Where a token is not in the
    /// vocabulary, the eval of the logits is an error.
    pub fn forward(&mut self, tokens: &Array, caches: &mut [Cache], asked: Positions) -> Result<Array> {
        let x = self.hidden(tokens, caches, asked)?;
        let logits = match &mut self.lm_head {
            Some(head) => head.forward(&x)?,
            None => self.model.embed_tokens.as_linear(&x)?,
        };
        Ok(self.config.capped_logits(logits)?)
    }

    /// What the head is given for `tokens: u32[batch, n]`, or for the last of them: `[batch, n, hidden_size]`, normalized. The
    /// logits of many tokens are far larger: [`token_losses`](crate::token_losses) has not all of them at a time.
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
        let wavelengths = config.kinds.iter().map(|kind| kind.rope.wavelengths());
        let wavelengths = wavelengths.collect::<Result<Vec<_>, _>>()?;
        let shared = Shared { kinds: &config.kinds, wavelengths: &wavelengths };
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
        let own = &config.layers[number];
        let mut layer = unfilled(&config, own)?;
        for (path, slot) in layer.parameters_mut().flatten() {
            let given = parameters.get(&*path);
            *slot =
                given.cloned().ok_or_else(|| Error::invalid(format!("layer {number} has no {path}"), "report it"))?;
        }
        // Codes of half floats would have no gradient.
        let mut cache = cache(&config, own, x.dim(0), dtype)?.stored(None, None)?;
        cache.reserve(x.dim(1))?;
        let attended = if let Cache::Kv(cache) = &cache { Some(cache) } else { None };
        let mask = KvCache::masks(attended, x.dim(1))?.pop();
        let wavelengths = config.kinds.iter().map(|kind| kind.rope.wavelengths());
        let wavelengths = wavelengths.collect::<Result<Vec<_>, _>>()?;
        let shared = Shared { kinds: &config.kinds, wavelengths: &wavelengths };
        layer.forward(&x, &shared, mask.as_ref(), &mut cache)
    }
}

impl Config {
    /// The logits that products with the head are.
    pub(crate) fn capped_logits(&self, products: Array) -> Result<Array, Exception> {
        match self.logit_cap {
            Some(cap) => capped(&products, cap),
            None => Ok(products),
        }
    }
}

/// The empty caches of a batch, one a layer: keys and values of this dtype, or the state of a layer without attention.
///
/// Half floats are in the formats `f16` and `bf16` on a CPU: see [`KvCache::hold_halves`]. A step that is differentiated takes
/// [`Cache::stored`] of them without a format, as [`token_losses`](crate::token_losses) does.
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

/// `cap * tanh(x / cap)`.
fn capped(x: &Array, cap: f32) -> Result<Array, Exception> {
    let cap = scalar(cap, x.dtype())?;
    ops::tanh(x.divide(&cap)?)?.multiply(cap)
}

/// The sum that runs through a model with norms behind its layers, in floats that hold it: that of Gemma 3 is beyond what `f16` has.
fn widened(x: &Array) -> Result<Array, Exception> {
    if x.dtype() == Dtype::Float16 { x.as_dtype(Dtype::Float32) } else { Ok(x.clone()) }
}

/// A number that does not widen what it meets.
fn scalar(number: f32, dtype: Dtype) -> Result<Array, Exception> {
    Array::from_f32(number).as_dtype(dtype)
}

/// The least finite number of a float type, as MLX has it for what a mask hides.
fn least(dtype: Dtype) -> Result<Array, Exception> {
    let least = match dtype {
        Dtype::Float16 => -65504.0,
        // That of `f32` is rounded to an infinity.
        Dtype::Bfloat16 => f32::from_bits(0xff7f_0000),
        _ => f32::MIN,
    };
    scalar(least, dtype)
}
