//! What `config.json` says of a decoder, as mlx-lm and transformers write it.

use std::path::Path;

use tacit_core::{Error, Result};
use tacit_io::json::Json;
use tacit_nn::Window;

use crate::keys::Keys;
use crate::rope::Rope;

/// The sizes and the variant of a decoder.
#[derive(Clone, Debug)]
pub struct Config {
    /// The words that tokens stand for, and so the logits of one.
    pub vocab_size: i32,
    /// The width of what goes from layer to layer.
    pub hidden_size: i32,
    /// Heads of queries.
    pub heads: i32,
    /// Heads of keys and values, each of which serves as many heads of queries.
    pub kv_heads: i32,
    /// The width of a head.
    pub head_dim: i32,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Scores go through `cap * tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Logits do.
    pub logit_cap: Option<f32>,
    /// Which products have a bias.
    pub bias: Bias,
    /// How layers are normalized.
    pub norm: Norm,
    /// Whether each head's queries and keys are normalized.
    pub head_norms: bool,
    /// Whether what attention and the feed-forward layer give is normalized as well as what they take.
    pub norms_after: bool,
    /// The function within feed-forward layers.
    pub activation: Activation,
    /// What embedded tokens are multiplied by.
    pub embedding_scale: Option<f32>,
    /// Whether the head is the embedding; where nothing says so, it is if the checkpoint has no head.
    pub tied: Option<bool>,
    /// What attention sees, and how it tells positions apart. Layers of one kind share a mask.
    pub kinds: Vec<Kind>,
    /// The layers in order.
    pub layers: Vec<LayerConfig>,
    /// The tokens that end a text.
    pub end_tokens: Vec<u32>,
}

/// Which products have a bias.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bias {
    /// Those that give queries, keys and values.
    pub qkv: bool,
    /// That of the heads' outputs.
    pub output: bool,
    /// Those of feed-forward layers.
    pub feed_forward: bool,
}

/// A division by the root of the mean square, and a gain.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// What is added to the mean square.
    pub epsilon: f32,
    /// Whether the gain is `1 + weight`.
    pub from_one: bool,
}

/// The function within a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x` times the normal distribution's function.
    Gelu,
    /// The same with a hyperbolic tangent in place of the error function.
    GeluTanh,
}

/// A kind of attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Which tokens are seen.
    pub window: Window,
    /// How positions turn queries and keys.
    pub rope: Rope,
}

/// A layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerConfig {
    /// Its number among the kinds.
    pub kind: usize,
    /// Its feed-forward layer.
    pub feed_forward: FeedForwardConfig,
}

/// A feed-forward layer.
#[derive(Clone, Copy, Debug)]
pub enum FeedForwardConfig {
    /// One that all tokens go through.
    Dense {
        /// Its width within.
        inner: i32,
    },
    /// Several, of which each token goes through some.
    Experts(ExpertsConfig),
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsConfig {
    /// How many there are.
    pub count: i32,
    /// The experts that each token goes through.
    pub per_token: i32,
    /// The width within each.
    pub inner: i32,
    /// Whether the weights of a token's experts sum to 1.
    pub normalized: bool,
}

/// The architectures that are read, by `model_type`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gemma,
    Gemma2,
    Gemma3,
}

impl Family {
    fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "llama" => Self::Llama,
            "mistral" => Self::Mistral,
            "qwen2" => Self::Qwen2,
            "qwen3" => Self::Qwen3,
            "qwen3_moe" => Self::Qwen3Moe,
            "gemma" => Self::Gemma,
            "gemma2" => Self::Gemma2,
            "gemma3_text" => Self::Gemma3,
            _ => return None,
        })
    }

    fn named(keys: &Keys) -> Result<Self> {
        let name = keys.text("model_type")?;
        name.and_then(Self::of_name).ok_or_else(|| {
            let reason = name.map_or("it is not there".to_owned(), |other| format!("{other} is not read"));
            let help =
                "there are llama, mistral, qwen2, qwen3, qwen3_moe, gemma, gemma2 and gemma3_text: take such a model";
            keys.wrong("model_type", reason, help)
        })
    }

    fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3)
    }
}

impl Config {
    /// Whether the `config.json` of a folder is there, and says an architecture that is read.
    ///
    /// # Errors
    ///
    /// It is there and is no JSON object.
    pub fn is_known(folder: &Path) -> Result<bool> {
        let json = Json::open_if_there(folder.join("config.json"))?;
        let family = json.as_ref().and_then(|json| Family::of_name(json.get("model_type")?.text()?));
        Ok(family.is_some())
    }

    /// Reads the `config.json` of a folder and, where there is one, what `generation_config.json` says of the end.
    ///
    /// # Errors
    ///
    /// As for [`of`](Self::of); or a file cannot be read, or is no JSON object.
    pub fn read(folder: &Path) -> Result<Self> {
        let file = folder.join("config.json");
        let mut config = Self::of(&Json::open(&file)?, &file)?;
        let generation = folder.join("generation_config.json");
        if let Some(json) = Json::open_if_there(&generation)? {
            if let Some(tokens) = end_tokens(&Keys::new(&generation, &json))? {
                config.end_tokens = tokens;
            }
        }
        Ok(config)
    }

    /// What a JSON object says that is in `file`.
    ///
    /// # Errors
    ///
    /// A key is not there or has another type; the architecture, its positions or its activation is none that is known; or
    /// sizes do not fit.
    pub fn of(json: &Json, file: &Path) -> Result<Self> {
        let keys = Keys::new(file, json);
        let family = Family::named(&keys)?;
        let hidden_size = keys.size("hidden_size")?;
        let heads = keys.size("num_attention_heads")?;
        let kv_heads = keys.size_or("num_key_value_heads", heads)?;
        let head_dim = keys.size_or("head_dim", if family.is_gemma() { 256 } else { hidden_size / heads })?;
        if head_dim == 0 || i64::from(heads) * i64::from(head_dim) > i64::from(i32::MAX) {
            let reason = format!("{heads} heads of {head_dim} numbers are no layer of width {hidden_size}");
            return Err(keys.wrong("num_attention_heads", reason, "fetch the configuration again"));
        }
        if heads % kv_heads != 0 {
            let reason = format!("{kv_heads} heads of keys do not serve {heads} heads of queries in equal parts");
            return Err(keys.wrong("num_key_value_heads", reason, "fetch the configuration again"));
        }
        let query_scalar = match family {
            Family::Gemma2 | Family::Gemma3 => keys.positive_number("query_pre_attn_scalar")?.unwrap_or(256.0),
            _ => f64::from(head_dim),
        };
        let cap = |key: &str, of_gemma2: f64| match family {
            Family::Gemma2 if !keys.has(key) => Ok(Some(of_gemma2 as f32)),
            _ => Ok::<_, Error>(keys.positive_number(key)?.map(|cap| cap as f32)),
        };
        let attention_bias = keys.flag("attention_bias")?;
        let (kinds, of_layers) = kinds(&keys, family, head_dim)?;
        let layers = of_layers.into_iter().enumerate();
        let layers = layers.map(|(layer, kind)| {
            let feed_forward = feed_forward(&keys, family, layer as i32)?;
            Ok(LayerConfig { kind, feed_forward })
        });
        Ok(Self {
            vocab_size: keys.size("vocab_size")?,
            hidden_size,
            heads,
            kv_heads,
            head_dim,
            scale: query_scalar.powf(-0.5) as f32,
            score_cap: cap("attn_logit_softcapping", 50.0)?,
            logit_cap: cap("final_logit_softcapping", 30.0)?,
            bias: Bias {
                qkv: attention_bias.unwrap_or(family == Family::Qwen2),
                output: attention_bias.unwrap_or(false),
                feed_forward: keys.flag("mlp_bias")?.unwrap_or(false),
            },
            norm: Norm {
                epsilon: keys.positive_number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
                from_one: family.is_gemma(),
            },
            head_norms: matches!(family, Family::Qwen3 | Family::Qwen3Moe | Family::Gemma3),
            norms_after: matches!(family, Family::Gemma2 | Family::Gemma3),
            activation: activation(&keys, family)?,
            embedding_scale: family.is_gemma().then(|| (hidden_size as f32).sqrt()),
            // Files leave out what is their library's default, which for these alone is that they are.
            tied: keys.flag("tie_word_embeddings")?.or(family.is_gemma().then_some(true)),
            kinds,
            layers: layers.collect::<Result<_>>()?,
            end_tokens: end_tokens(&keys)?.unwrap_or_default(),
        })
    }
}

/// Some ten times those of the deepest models: what a file says is not built before it is believed.
const MOST_LAYERS: i32 = 2000;

/// The kinds of attention, and that of each layer.
fn kinds(keys: &Keys, family: Family, head_dim: i32) -> Result<(Vec<Kind>, Vec<usize>)> {
    let count = keys.size("num_hidden_layers")?;
    if count > MOST_LAYERS {
        let reason = format!("it is {count}, and no model has more than {MOST_LAYERS}");
        return Err(keys.wrong("num_hidden_layers", reason, "fetch the configuration again"));
    }
    let size = window_size(keys, family)?;
    let slides = sliding_layers(keys, family, count)?;
    let mut kinds: Vec<Kind> = Vec::new();
    let mut of_layers = Vec::new();
    for slides in slides {
        let window = match size {
            Some(size) if slides => Window::Sliding { size, sinks: 0 },
            _ => Window::Everything,
        };
        let local = slides && family == Family::Gemma3;
        let parameters = keys.section("rope_parameters")?;
        // One object for each type of layer, or one for all.
        let name = if slides { "sliding_attention" } else { "full_attention" };
        let of_type = parameters.as_ref().map_or(Ok(None), |parameters| parameters.section(name))?;
        let scaling = if local { None } else { keys.section("rope_scaling")? };
        let own = of_type.or(parameters).or(scaling);
        let rope = Rope::of(own.as_ref(), keys, head_dim, theta(keys, family, local)?)?;
        let kind = Kind { window, rope };
        of_layers.push(kinds.iter().position(|known| *known == kind).unwrap_or(kinds.len()));
        if of_layers.last() == Some(&kinds.len()) {
            kinds.push(kind);
        }
    }
    Ok((kinds, of_layers))
}

/// The tokens of a sliding window, if the architecture has one and the file asks for it.
fn window_size(keys: &Keys, family: Family) -> Result<Option<i32>> {
    let asked = match family {
        Family::Llama | Family::Gemma => keys.texts("layer_types")?.is_some(),
        Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe => keys.flag("use_sliding_window")? == Some(true),
        Family::Mistral | Family::Gemma2 | Family::Gemma3 => true,
    };
    match keys.integer("sliding_window")? {
        Some(size) if size < 1 => {
            let help = "set it to the tokens that are seen, or to null";
            Err(keys.wrong("sliding_window", format!("it is {size}"), help))
        }
        size => Ok(size.filter(|_| asked)),
    }
}

/// The base of the frequencies, where the positions have no key of their own for it.
fn theta(keys: &Keys, family: Family, local: bool) -> Result<f64> {
    let (key, default) = match family {
        Family::Gemma3 if local => ("rope_local_base_freq", 1e4),
        Family::Gemma3 => ("rope_theta", 1e6),
        _ => ("rope_theta", 1e4),
    };
    Ok(keys.positive_number(key)?.unwrap_or(default))
}

/// Which layers have a window, if there is one.
fn sliding_layers(keys: &Keys, family: Family, count: i32) -> Result<Vec<bool>> {
    if let Some(types) = keys.texts("layer_types")? {
        if types.len() != count as usize {
            let reason = format!("it names {} layers, and there are {count}", types.len());
            return Err(keys.wrong("layer_types", reason, "fetch the configuration again"));
        }
        return types
            .into_iter()
            .map(|name| match name {
                "full_attention" => Ok(false),
                "sliding_attention" => Ok(true),
                other => {
                    let help = "there are full_attention and sliding_attention: take a model of these";
                    Err(keys.wrong("layer_types", format!("{other} is not read"), help))
                }
            })
            .collect();
    }
    let pattern = keys.integer("sliding_window_pattern")?.or(keys.integer("_sliding_window_pattern")?).unwrap_or(6);
    let first = keys.integer("max_window_layers")?.unwrap_or(0);
    Ok((0..count)
        .map(|layer| match family {
            Family::Llama | Family::Gemma => false,
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe => layer >= first,
            Family::Gemma2 => layer % 2 == 0,
            Family::Gemma3 => pattern > 0 && (layer + 1) % pattern != 0,
        })
        .collect())
}

fn feed_forward(keys: &Keys, family: Family, layer: i32) -> Result<FeedForwardConfig> {
    let step = keys.size_or("decoder_sparse_step", 1)?;
    let dense = keys.integers("mlp_only_layers")?.unwrap_or_default().contains(&layer);
    if family != Family::Qwen3Moe || dense || (layer + 1) % step != 0 {
        return Ok(FeedForwardConfig::Dense { inner: keys.size("intermediate_size")? });
    }
    let (count, per_token) = (keys.size("num_experts")?, keys.size("num_experts_per_tok")?);
    if per_token > count {
        let reason = format!("a token goes through {per_token} of {count} experts");
        return Err(keys.wrong("num_experts_per_tok", reason, "fetch the configuration again"));
    }
    Ok(FeedForwardConfig::Experts(ExpertsConfig {
        count,
        per_token,
        inner: keys.size("moe_intermediate_size")?,
        normalized: keys.flag("norm_topk_prob")?.unwrap_or(false),
    }))
}

fn activation(keys: &Keys, family: Family) -> Result<Activation> {
    // The first Gemmas' `hidden_act` is `gelu`, and they were trained with the other one.
    let key = if family.is_gemma() { "hidden_activation" } else { "hidden_act" };
    match keys.text(key)? {
        None if family.is_gemma() => Ok(Activation::GeluTanh),
        None | Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(other) => {
            let help = "there are silu, gelu and gelu_pytorch_tanh: take a model with one of these";
            Err(keys.wrong(key, format!("{other} is not read"), help))
        }
    }
}

/// One token or several.
fn end_tokens(keys: &Keys) -> Result<Option<Vec<u32>>> {
    const KEY: &str = "eos_token_id";
    let tokens = match keys.integers(KEY) {
        Ok(tokens) => tokens,
        Err(_) => keys.integer(KEY)?.map(|token| vec![token]),
    };
    let token = |token: i32| {
        u32::try_from(token).map_err(|_| keys.wrong(KEY, format!("it has {token}"), "fetch the configuration again"))
    };
    tokens.map(|tokens| tokens.into_iter().map(token).collect()).transpose()
}
