//! What `config.json` says of a decoder, as mlx-lm and transformers write it.

use std::fs;
use std::path::Path;

use tacit_core::{Error, Result};
use tacit_files::current;
use tacit_io::json::Json;
use tacit_io::{Gguf, positions_once};

use crate::activation::Activation;
use crate::family::{Family, HeadNorms, Multipliers, NormPlacement};
use crate::keys::Keys;
use crate::layers::{Kind, LayerConfig, Mixer, layers};

/// The sizes and the variant of a decoder.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of tokens in the vocabulary.
    pub vocab_size: i32,
    /// The width of what goes from layer to layer.
    pub hidden_size: i32,
    /// Heads of queries.
    pub heads: i32,
    /// Heads of keys and values, each of which serves the same number of heads of queries.
    pub kv_heads: i32,
    /// The width of a head.
    pub head_dim: i32,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Scores go through `cap * tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Logits are divided by it, before they are capped.
    pub logit_divisor: Option<f32>,
    /// Logits go through `cap * tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
    /// Which products have a bias.
    pub bias: Bias,
    /// How layers are normalized.
    pub norm: Norm,
    /// Where layers are normalized.
    pub norms: NormPlacement,
    /// What of queries and keys is normalized.
    pub head_norms: Option<HeadNorms>,
    /// Whether the queries' product also gives a gate for the outputs of the heads.
    pub output_gate: bool,
    /// Whether one product gives queries, keys and values, and one the two factors of a feed-forward layer.
    pub fused: bool,
    /// The function within feed-forward layers.
    pub activation: Activation,
    /// What embedded tokens are multiplied by.
    pub embedding_scale: Option<f32>,
    /// What the outputs of attention and of feed-forward layers are multiplied by.
    pub residual_scale: Option<f32>,
    /// Whether the head is the embedding; `None` where nothing says it: it then is if the checkpoint has no head.
    pub tied: Option<bool>,
    /// What attention sees, and how it tells positions apart. Layers of one kind share a mask.
    pub kinds: Vec<Kind>,
    /// The layers in order.
    pub layers: Vec<LayerConfig>,
    /// The tokens that end a text.
    pub end_tokens: Vec<u32>,
    /// Where these are named.
    pub ends_by: EndsBy,
}

/// Where a decoder's end tokens are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsBy {
    /// The configuration of the model: the tokenizer of one that was trained on conversations may have another one.
    Model,
    /// `generation_config.json`, which is the last word.
    Generation,
}

/// Which products of a decoder have a bias.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bias {
    /// The layers that give queries, keys and values.
    pub qkv: bool,
    /// The layer of the heads' outputs.
    pub output: bool,
    /// The layers within feed-forward layers.
    pub feed_forward: bool,
}

/// An RMS norm: a division by the root of the mean square, and a gain.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// What is added to the mean square.
    pub epsilon: f32,
    /// Whether the gain is `1 + weight`.
    pub from_one: bool,
}

impl Config {
    /// Whether [`load`](crate::load()) knows the architecture of the model at a path.
    ///
    /// # Errors
    ///
    /// Nothing is there, a `config.json` is no JSON object, or a GGUF file is damaged.
    pub fn is_known(path: &Path) -> Result<bool> {
        if let Some(file) = Gguf::find(path)? {
            return Ok(Gguf::open(file)?.is_known());
        }
        let json = Json::open_if_there(folder_of(path)?.join("config.json"))?;
        let family = json.as_ref().and_then(|json| Family::of_name(json.get("model_type")?.text()?));
        Ok(family.is_some())
    }

    /// The configuration of what [`load`](crate::load()) would read at a path, without its tensors.
    ///
    /// Where it does not say whether the head is the embedding, [`tied`](Self::tied) is `None`.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read), or for [`from_gguf`](Self::from_gguf).
    pub fn find(path: &Path) -> Result<Self> {
        match Gguf::find(path)? {
            Some(file) => Self::from_gguf(&Gguf::open(file)?),
            None => Self::read(folder_of(path)?),
        }
    }

    /// The most tokens of a prompt that one step should be given, where its graph grows with each; `None` where it does not.
    #[must_use]
    pub fn prefill(&self) -> Option<usize> {
        self.has_states().then_some(32)
    }

    /// Whether layers hold a state in the place of keys and values.
    pub(crate) fn has_states(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.mixer, Mixer::DeltaNet(_)))
    }

    /// Reads the `config.json` of a folder and, where there is one, what `generation_config.json` says of the end.
    ///
    /// # Errors
    ///
    /// As for [`from_json`](Self::from_json); or a file cannot be read, or is no JSON object.
    pub fn read(folder: &Path) -> Result<Self> {
        let file = folder.join("config.json");
        let json = Json::open_if_there(&file)?.ok_or_else(|| {
            let help = "copy it from the folder of the model that the tensors were made of, or fetch it";
            Error::checkpoint(&file, None, "there is no such file", help)
        })?;
        let mut config = Self::from_json(&json, &file)?;
        let generation = folder.join("generation_config.json");
        if let Some(json) = Json::open_if_there(&generation)?
            && let Some(tokens) = end_tokens(&Keys::new(&generation, &json))?
        {
            (config.end_tokens, config.ends_by) = (tokens, EndsBy::Generation);
        }
        Ok(config)
    }

    /// What the metadata and the tensors of a GGUF file say.
    ///
    /// # Errors
    ///
    /// As for [`Gguf::configuration`] and [`from_json`](Self::from_json), with the file's own keys.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        Self::from_json(&file.configuration()?, file.path()).map_err(|error| file.in_own_names(error))
    }

    /// What a JSON object says that is in `file`.
    ///
    /// # Errors
    ///
    /// A key is not there or has another type; the architecture, its positions or its activation is none that is known; or
    /// sizes do not fit.
    pub fn from_json(json: &Json, file: &Path) -> Result<Self> {
        let json = positions_once(json);
        let keys = Keys::new(file, &json);
        let family = Family::named(&keys)?;
        let hidden_size = keys.size("hidden_size")?;
        let heads = keys.size("num_attention_heads")?;
        let kv_heads = keys.size_or("num_key_value_heads", heads)?;
        let head_dim = keys.size_or("head_dim", family.head_dim.unwrap_or(hidden_size / heads))?;
        // The one product of all three, or that of queries and a gate.
        let products = if family.fused { 3 } else { 1 + i64::from(family.output_gate) };
        let widest = i64::from(heads) * i64::from(head_dim) * products;
        if head_dim == 0 || widest > i64::from(i32::MAX) {
            let reason = format!("{heads} heads of {head_dim} numbers are no layer of width {hidden_size}");
            return Err(keys.wrong("num_attention_heads", reason, "fetch the configuration again"));
        }
        if heads % kv_heads != 0 {
            let reason = format!("{kv_heads} heads of keys do not serve {heads} heads of queries in equal parts");
            return Err(keys.wrong("num_key_value_heads", reason, "fetch the configuration again"));
        }
        let multiplier = |key: &str| match family.multipliers {
            Multipliers::Keys => keys.needed(key).map(|multiplier| Some(multiplier as f32)),
            Multipliers::None | Multipliers::Root => Ok(None),
        };
        let scale = match family.query_scalar {
            Some(usual) => keys.positive_number("query_pre_attn_scalar")?.unwrap_or(usual),
            None => f64::from(head_dim),
        };
        let root = (family.multipliers == Multipliers::Root).then(|| (hidden_size as f32).sqrt());
        let cap = |key: &str, usual: Option<f64>| {
            let usual = if keys.has(key) { None } else { usual };
            Ok::<_, Error>(keys.positive_number(key)?.or(usual).map(|cap| cap as f32))
        };
        let [score_cap, logit_cap] = family.caps;
        let has_bias = keys.flag("attention_bias")?.unwrap_or(false);
        let (kinds, layers) = layers(&keys, family, head_dim)?;
        Ok(Self {
            vocab_size: keys.size("vocab_size")?,
            hidden_size,
            heads,
            kv_heads,
            head_dim,
            scale: multiplier("attention_multiplier")?.unwrap_or(scale.powf(-0.5) as f32),
            score_cap: cap("attn_logit_softcapping", score_cap)?,
            logit_divisor: multiplier("logits_scaling")?,
            logit_cap: cap("final_logit_softcapping", logit_cap)?,
            bias: Bias {
                qkv: family.qkv_bias.unwrap_or(has_bias),
                output: family.qkv_bias.is_none() && has_bias,
                feed_forward: keys.flag("mlp_bias")?.unwrap_or(false),
            },
            norm: Norm {
                epsilon: keys.positive_number("rms_norm_eps")?.unwrap_or(family.epsilon) as f32,
                from_one: family.gains_from_one,
            },
            norms: family.norms,
            head_norms: family.head_norms,
            output_gate: family.output_gate,
            fused: family.fused,
            activation: activation(&keys, family)?,
            embedding_scale: multiplier("embedding_multiplier")?.or(root),
            residual_scale: multiplier("residual_multiplier")?,
            // Files leave out what is their library's default, which for some is that they are.
            tied: keys.flag("tie_word_embeddings")?.or(family.tied),
            kinds,
            layers,
            end_tokens: end_tokens(&keys)?.unwrap_or_default(),
            ends_by: EndsBy::Model,
        })
    }
}

/// The folder that a path is, or in which the file is.
pub(crate) fn folder_of(path: &Path) -> Result<&Path> {
    if path.is_dir() {
        return Ok(path);
    }
    fs::metadata(current(path)?).map_err(Error::file("open", path))?;
    Ok(path.parent().unwrap_or(Path::new("")))
}

fn activation(keys: &Keys, family: &Family) -> Result<Activation> {
    let (key, usual) = family.activation;
    match keys.text(key)? {
        None => Ok(usual),
        Some("silu" | "swish") => Ok(Activation::Silu),
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
    let tokens = keys.integers_or_one(KEY)?;
    let token = |token: i32| {
        u32::try_from(token).map_err(|_| keys.wrong(KEY, format!("it has {token}"), "fetch the configuration again"))
    };
    tokens.map(|tokens| tokens.into_iter().map(token).collect()).transpose()
}
