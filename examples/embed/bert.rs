//! The BERT encoder in plain mlx-rs modules, and the sentence embedding of its outputs. Nothing here knows of Tacit.

use mlx_rs::builder::Builder;
use mlx_rs::error::Exception;
use mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};
use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::Module;
use mlx_rs::{Array, nn, ops};
use serde::Deserialize;

/// What `config.json` says of the encoder.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Config {
    vocab_size: i32,
    hidden_size: i32,
    num_hidden_layers: i32,
    num_attention_heads: i32,
    intermediate_size: i32,
    max_position_embeddings: i32,
    type_vocab_size: i32,
    layer_norm_eps: f32,
    #[serde(default)]
    model_type: Architecture,
    #[serde(default)]
    hidden_act: Activation,
    #[serde(default)]
    position_embedding_type: Positions,
    /// Of `1_Pooling/config.json`, where there is one.
    #[serde(skip)]
    pub(crate) pooling: Pooling,
}

/// Others have the same names of tensors, and count their positions otherwise.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Architecture {
    #[default]
    Bert,
}

/// Whether positions are counted from the first token.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Positions {
    #[default]
    Absolute,
}

/// The function within a layer.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Activation {
    #[default]
    Gelu,
    #[serde(alias = "gelu_pytorch_tanh")]
    GeluNew,
    Relu,
    #[serde(alias = "swish")]
    Silu,
}

impl Activation {
    fn apply(self, x: &Array) -> Result<Array, Exception> {
        match self {
            Self::Gelu => nn::gelu(x),
            Self::GeluNew => nn::gelu_approximate(x),
            Self::Relu => nn::relu(x),
            Self::Silu => nn::silu(x),
        }
    }
}

/// What of the tokens' outputs is the sentence's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The mean of all.
    #[default]
    Mean,
    /// That of the first, the token that begins a sentence.
    First,
    /// The largest of each channel.
    Largest,
}

impl Pooling {
    /// What sentence-transformers writes into `1_Pooling/config.json`.
    pub(crate) fn from_json(json: &serde_json::Value) -> Result<Self, String> {
        const KEY: &str = "pooling_mode_";
        let asked: Vec<&str> = json.as_object().map_or_else(Vec::new, |all| {
            let on = all.iter().filter(|(_, value)| value.as_bool() == Some(true));
            on.filter_map(|(key, _)| key.strip_prefix(KEY)).collect()
        });
        let named = json["pooling_mode"].as_str();
        match (named, &asked[..]) {
            (Some("mean"), []) | (None, ["mean_tokens"]) => Ok(Self::Mean),
            (Some("cls"), []) | (None, ["cls_token"]) => Ok(Self::First),
            (Some("max"), []) | (None, ["max_tokens"]) => Ok(Self::Largest),
            _ => Err(format!(
                "the outputs are pooled by {}; there are mean, cls and max, one at a time",
                named.map_or_else(
                    || if asked.is_empty() { "nothing".to_owned() } else { asked.join(" and ") },
                    str::to_owned
                )
            )),
        }
    }

    /// `x: f32[b,t,d]` of tokens that `mask: f32[b,t]` is 1 for: `f32[b,d]`.
    fn pooled(self, x: &Array, mask: &Array) -> Result<Array, Exception> {
        let there = mask.expand_dims(-1)?;
        match self {
            Self::Mean => x.multiply(&there)?.sum_axis(1, None)?.divide(mask.sum_axis(1, true)?),
            Self::First => x.take_axis(Array::from_int(0), 1),
            Self::Largest => {
                ops::select(there.gt(Array::from_f32(0.0))?, x, Array::from_f32(f32::NEG_INFINITY))?.max_axis(1, None)
            }
        }
    }
}

/// Token ids `u32[b,t]`, and 1 where there is a token or 0 where there is padding, `f32[b,t]`.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) ids: Array,
    pub(crate) mask: Array,
}

/// The sum of what a token is, where it stands, and to which of two sentences it belongs.
#[derive(Clone, Debug, ModuleParameters)]
struct Embeddings {
    #[param]
    words: nn::Embedding,
    #[param]
    positions: nn::Embedding,
    #[param]
    token_types: nn::Embedding,
    #[param]
    norm: nn::LayerNorm,
}

impl Embeddings {
    fn forward(&mut self, ids: &Array) -> Result<Array, Exception> {
        let most = self.positions.weight.dim(0);
        if ids.dim(1) > most {
            return Err(Exception::custom(format!(
                "a sentence of {} tokens is given to an encoder of {most}",
                ids.dim(1)
            )));
        }
        let positions = ops::arange::<_, u32>(0, ids.dim(1), None)?;
        let first_type = ops::zeros::<u32>(&[1])?;
        let x = self.words.forward(ids)?.add(self.positions.forward(&positions)?)?;
        self.norm.forward(&x.add(self.token_types.forward(&first_type)?)?)
    }
}

#[derive(Clone, Debug, ModuleParameters)]
struct Attention {
    heads: i32,
    #[param]
    query: nn::Linear,
    #[param]
    key: nn::Linear,
    #[param]
    value: nn::Linear,
    #[param]
    output: nn::Linear,
}

impl Attention {
    /// `x: f32[b,t,d]`; `seen: f32[b,1,1,t]` is added to the scores.
    fn forward(&mut self, x: &Array, seen: &Array) -> Result<Array, Exception> {
        let &[b, t, d] = x.shape() else { return Err(Exception::custom("the hidden states are not [b, t, d]")) };
        let width = d / self.heads;
        let split = |x: Array| x.reshape(&[b, t, self.heads, width])?.transpose_axes(&[0, 2, 1, 3]);
        let query = split(self.query.forward(x)?)?;
        let key = split(self.key.forward(x)?)?;
        let value = split(self.value.forward(x)?)?;
        let scale = (width as f32).sqrt().recip();
        let mask = ScaledDotProductAttentionMask::Array(seen);
        let mixed = scaled_dot_product_attention(query, key, value, scale, mask, None)?;
        self.output.forward(&mixed.transpose_axes(&[0, 2, 1, 3])?.reshape(&[b, t, d])?)
    }
}

#[derive(Clone, Debug, ModuleParameters)]
struct Layer {
    activation: Activation,
    #[param]
    attention: Attention,
    #[param]
    attention_norm: nn::LayerNorm,
    #[param]
    up: nn::Linear,
    #[param]
    down: nn::Linear,
    #[param]
    norm: nn::LayerNorm,
}

impl Layer {
    fn forward(&mut self, x: &Array, seen: &Array) -> Result<Array, Exception> {
        let x = self.attention_norm.forward(&self.attention.forward(x, seen)?.add(x)?)?;
        let inner = self.activation.apply(&self.up.forward(&x)?)?;
        self.norm.forward(&self.down.forward(&inner)?.add(x)?)
    }
}

/// The encoder with pooling: a batch becomes sentence embeddings of length 1, `f32[b,d]`.
#[derive(Clone, Debug, ModuleParameters)]
pub(crate) struct Bert {
    pooling: Pooling,
    #[param]
    embeddings: Embeddings,
    #[param]
    layers: Vec<Layer>,
}

impl Bert {
    /// The encoder that `config` describes, with parameters yet to be loaded.
    pub(crate) fn new(config: &Config) -> Result<Self, Exception> {
        let d = config.hidden_size;
        let norm = || nn::LayerNormBuilder::new(d).eps(config.layer_norm_eps).build();
        let layer = || {
            Ok::<_, Exception>(Layer {
                activation: config.hidden_act,
                attention: Attention {
                    heads: config.num_attention_heads,
                    query: nn::Linear::new(d, d)?,
                    key: nn::Linear::new(d, d)?,
                    value: nn::Linear::new(d, d)?,
                    output: nn::Linear::new(d, d)?,
                },
                attention_norm: norm()?,
                up: nn::Linear::new(d, config.intermediate_size)?,
                down: nn::Linear::new(config.intermediate_size, d)?,
                norm: norm()?,
            })
        };
        // One value each: that they were read says that they are known.
        let (Architecture::Bert, Positions::Absolute) = (config.model_type, config.position_embedding_type);
        Ok(Self {
            pooling: config.pooling,
            embeddings: Embeddings {
                words: nn::Embedding::new(config.vocab_size, d)?,
                positions: nn::Embedding::new(config.max_position_embeddings, d)?,
                token_types: nn::Embedding::new(config.type_vocab_size, d)?,
                norm: norm()?,
            },
            layers: (0..config.num_hidden_layers).map(|_| layer()).collect::<Result<_, _>>()?,
        })
    }

    /// What the last layer gives for the tokens of each sentence, pooled and scaled to length 1.
    pub(crate) fn embed(&mut self, Batch { ids, mask }: &Batch) -> Result<Array, Exception> {
        let &[b, t] = mask.shape() else { return Err(Exception::custom("the mask is not [b, t]")) };
        let padding = ops::subtract(Array::from_f32(1.0), mask)?;
        let seen = padding.multiply(Array::from_f32(f32::MIN))?.reshape(&[b, 1, 1, t])?;
        let mut x = self.embeddings.forward(ids)?;
        for layer in &mut self.layers {
            x = layer.forward(&x, &seen)?;
        }
        let pooled = self.pooling.pooled(&x, mask)?;
        pooled.divide(pooled.square()?.sum_axis(-1, true)?.sqrt()?)
    }
}

/// The name that Hugging Face's checkpoints give to the parameter at `path`.
pub(crate) fn checkpoint_name(path: &str) -> String {
    let (module, parameter) = path.rsplit_once('.').unwrap_or(("", path));
    let layer = module.strip_prefix("layers.").and_then(|module| module.split_once('.'));
    let (prefix, module) = match layer {
        Some((number, module)) => (format!("encoder.layer.{number}."), module),
        None => (String::new(), module),
    };
    let module = match module {
        "embeddings.words" => "embeddings.word_embeddings",
        "embeddings.positions" => "embeddings.position_embeddings",
        "embeddings.token_types" => "embeddings.token_type_embeddings",
        "embeddings.norm" => "embeddings.LayerNorm",
        "attention.query" => "attention.self.query",
        "attention.key" => "attention.self.key",
        "attention.value" => "attention.self.value",
        "attention.output" => "attention.output.dense",
        "attention_norm" => "attention.output.LayerNorm",
        "up" => "intermediate.dense",
        "down" => "output.dense",
        "norm" => "output.LayerNorm",
        other => other,
    };
    format!("{prefix}{module}.{parameter}")
}
