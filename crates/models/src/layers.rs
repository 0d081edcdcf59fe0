//! What `config.json` says of each layer.

use tacit_core::Result;
use tacit_nn::Window;

use crate::family::{Family, Windows};
use crate::keys::Keys;
use crate::rope::Rope;

/// A kind of attention: its window, and how it uses positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Which tokens are seen.
    pub window: Window,
    /// How positions rotate queries and keys, if they do.
    pub rope: Option<Rope>,
}

/// One layer of a decoder.
#[derive(Clone, Copy, Debug)]
pub struct LayerConfig {
    /// Attention, or what takes its place.
    pub mixer: Mixer,
    /// Its feed-forward layer.
    pub feed_forward: FeedForwardConfig,
}

/// What mixes the tokens of a layer: attention, or a gated delta net.
#[derive(Clone, Copy, Debug)]
pub enum Mixer {
    /// Attention.
    Attention {
        /// Its number among the kinds.
        kind: usize,
    },
    /// A gated delta net, whose state does not grow with the tokens.
    DeltaNet(DeltaNetConfig),
}

/// The sizes of a gated delta net.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNetConfig {
    /// Heads of queries and of keys.
    pub key_heads: i32,
    /// The width of one of them.
    pub key_dim: i32,
    /// Heads of values; as many of them share a head of keys.
    pub value_heads: i32,
    /// The width of one of them.
    pub value_dim: i32,
    /// The tokens that the convolution before sees.
    pub kernel: i32,
}

impl DeltaNetConfig {
    /// The width of queries, keys and values together.
    pub(crate) fn channels(&self) -> i32 {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// The feed-forward part of a layer: one for all tokens, or experts.
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

/// The sizes of a mixture of experts.
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
    /// The width within another one that all tokens go through, behind a gate.
    pub shared: Option<i32>,
    /// Whether parameters call it `block_sparse_moe`, and not `mlp`.
    pub is_block: bool,
}

/// Some ten times those of the deepest models: what a file says is not built before it is believed.
const MOST_LAYERS: i32 = 2000;

pub(crate) fn layers(keys: &Keys, family: &Family, head_dim: i32) -> Result<(Vec<Kind>, Vec<LayerConfig>)> {
    let count = keys.size("num_hidden_layers")?;
    if count > MOST_LAYERS {
        let reason = format!("it is {count}, and no model has more than {MOST_LAYERS}");
        return Err(keys.wrong("num_hidden_layers", reason, "fetch the configuration again"));
    }
    let mut kinds: Vec<Kind> = Vec::new();
    let rotated = rotated_layers(keys, family, count)?;
    let layer = |((layer, seen), &rotated): ((i32, Seen), &bool)| {
        let mixer = match seen {
            Seen::State => Mixer::DeltaNet(delta_net(keys)?),
            Seen::Window | Seen::Everything => {
                let kind = kind(keys, family, head_dim, seen == Seen::Window, rotated)?;
                let known = kinds.iter().position(|known| *known == kind);
                let kind = known.unwrap_or_else(|| {
                    kinds.push(kind);
                    kinds.len() - 1
                });
                Mixer::Attention { kind }
            }
        };
        Ok(LayerConfig { mixer, feed_forward: feed_forward(keys, family, layer)? })
    };
    let seen = seen_by_layers(keys, family, &rotated)?;
    let layers = (0..).zip(seen).zip(&rotated).map(layer).collect::<Result<_>>()?;
    Ok((kinds, layers))
}

/// What the tokens of a layer see of those before them.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    Everything,
    /// The last ones.
    Window,
    /// What a state keeps of them.
    State,
}

/// Whether positions rotate the queries and keys of each layer.
fn rotated_layers(keys: &Keys, family: &Family, count: i32) -> Result<Vec<bool>> {
    const KEY: &str = "no_rope_layers";
    let Some(interval) = family.without_rope else { return Ok(vec![true; count as usize]) };
    let Some(said) = keys.integers(KEY)? else {
        let interval = keys.size_or("no_rope_layer_interval", interval)?;
        return Ok((1..=count).map(|layer| layer % interval != 0).collect());
    };
    if said.len() != count as usize {
        let reason = format!("it names {} layers, and there are {count}", said.len());
        return Err(keys.wrong(KEY, reason, "fetch the configuration again"));
    }
    // What it says is the contrary of its name.
    Ok(said.into_iter().map(|rotated| rotated != 0).collect())
}

/// The attention of a layer with a sliding window, if there is one, or without, and with positions or without.
fn kind(keys: &Keys, family: &Family, head_dim: i32, slides: bool, rotated: bool) -> Result<Kind> {
    let window = match window_size(keys, family)? {
        Some(size) if slides => Window::Sliding { size, sinks: 0 },
        _ => Window::Everything,
    };
    if !rotated {
        return Ok(Kind { window, rope: None });
    }
    let parameters = keys.section("rope_parameters")?;
    // One object for each type of layer, or one for all.
    let name = if slides { "sliding_attention" } else { "full_attention" };
    let of_type = parameters.as_ref().map_or(Ok(None), |parameters| parameters.section(name))?;
    // The base of the frequencies, where the positions have no key of their own for it.
    let local = family.local_theta.filter(|_| slides);
    let (key, usual) = local.map_or(("rope_theta", family.theta), |local| ("rope_local_base_freq", local));
    let theta = keys.positive_number(key)?.unwrap_or(usual);
    let scaling = if local.is_some() { None } else { keys.section("rope_scaling")? };
    let rope_keys = of_type.or(parameters).or(scaling);
    Ok(Kind { window, rope: Some(Rope::new(rope_keys.as_ref(), keys, head_dim, theta, family.rotated)?) })
}

fn delta_net(keys: &Keys) -> Result<DeltaNetConfig> {
    let config = DeltaNetConfig {
        key_heads: keys.size("linear_num_key_heads")?,
        key_dim: keys.size("linear_key_head_dim")?,
        value_heads: keys.size("linear_num_value_heads")?,
        value_dim: keys.size("linear_value_head_dim")?,
        kernel: keys.size("linear_conv_kernel_dim")?,
    };
    let DeltaNetConfig { key_heads, key_dim, value_heads, value_dim, kernel } = config;
    let product = |a: i32, b: i32| i64::from(a) * i64::from(b);
    // Queries, keys, values and their gates come of one product.
    let widest = 2 * (product(key_heads, key_dim) + product(value_heads, value_dim));
    let wrong = |reason: String| keys.wrong("linear_num_value_heads", reason, "fetch the configuration again");
    if widest.saturating_mul(i64::from(kernel)) > i64::from(i32::MAX) {
        let reason = format!("{key_heads} heads of {key_dim} numbers and {value_heads} of {value_dim} are no layer");
        return Err(wrong(reason));
    }
    if value_heads % key_heads != 0 {
        let reason = format!("{key_heads} heads of keys do not serve {value_heads} heads of values in equal parts");
        return Err(wrong(reason));
    }
    Ok(config)
}

/// The tokens of a sliding window, if the architecture has one and the file asks for it.
fn window_size(keys: &Keys, family: &Family) -> Result<Option<i32>> {
    let asked = match family.windows {
        Windows::Named => keys.texts("layer_types")?.is_some(),
        Windows::Asked | Windows::Late | Windows::WithoutRope => is_asked(keys)?,
        Windows::All | Windows::Alternate | Windows::Period => true,
        Windows::States => false,
    };
    // Where the key is left out, and not null.
    let usual = family.window.filter(|_| !keys.has("sliding_window"));
    match keys.integer("sliding_window")?.or(usual) {
        Some(size) if size < 1 => {
            let help = "set it to the tokens that are seen, or to null";
            Err(keys.wrong("sliding_window", format!("it is {size}"), help))
        }
        size => Ok(size.filter(|_| asked)),
    }
}

/// Whether a file that may do without windows asks for them.
fn is_asked(keys: &Keys) -> Result<bool> {
    Ok(keys.flag("use_sliding_window")? == Some(true))
}

/// What the tokens of each layer see, of which some are rotated; a window only where there is one.
fn seen_by_layers(keys: &Keys, family: &Family, rotated: &[bool]) -> Result<Vec<Seen>> {
    if let Some(types) = keys.texts("layer_types")? {
        if types.len() != rotated.len() {
            let reason = format!("it names {} layers, and there are {}", types.len(), rotated.len());
            return Err(keys.wrong("layer_types", reason, "fetch the configuration again"));
        }
        return types
            .into_iter()
            .map(|name| match name {
                "full_attention" => Ok(Seen::Everything),
                "sliding_attention" => Ok(Seen::Window),
                "linear_attention" if family.windows == Windows::States => Ok(Seen::State),
                other => {
                    let help = "there are full_attention, sliding_attention and, of qwen3_next, linear_attention: \
                                take a model of these";
                    Err(keys.wrong("layer_types", format!("{other} is not read"), help))
                }
            })
            .collect();
    }
    let pattern = keys.integer("sliding_window_pattern")?.or(keys.integer("_sliding_window_pattern")?).unwrap_or(6);
    let first = keys.integer("max_window_layers")?.unwrap_or(28);
    let interval = keys.size_or("full_attention_interval", 4)?;
    let asked = is_asked(keys)?;
    let window = |slides: bool| if slides { Seen::Window } else { Seen::Everything };
    Ok((0..)
        .zip(rotated)
        .map(|(layer, &rotated)| match family.windows {
            Windows::Named => Seen::Everything,
            Windows::All => Seen::Window,
            Windows::Asked => window(asked),
            Windows::Late => window(layer >= first),
            Windows::WithoutRope => window(!rotated),
            Windows::Alternate => window(layer % 2 == 0),
            Windows::Period => window(pattern > 0 && (layer + 1) % pattern != 0),
            Windows::States if (layer + 1) % interval == 0 => Seen::Everything,
            Windows::States => Seen::State,
        })
        .collect())
}

fn feed_forward(keys: &Keys, family: &Family, layer: i32) -> Result<FeedForwardConfig> {
    let step = keys.size_or("decoder_sparse_step", 1)?;
    let is_dense = keys.integers("mlp_only_layers")?.unwrap_or_default().contains(&layer) || (layer + 1) % step != 0;
    let Some(mixture) = family.experts.as_ref().filter(|_| !is_dense) else {
        return Ok(FeedForwardConfig::Dense { inner: keys.size("intermediate_size")? });
    };
    let [key, other] = mixture.count;
    let count = keys.size_of_either(key, other)?;
    let per_token = keys.size("num_experts_per_tok")?;
    if per_token > count {
        let reason = format!("a token goes through {per_token} of {count} experts");
        return Err(keys.wrong("num_experts_per_tok", reason, "fetch the configuration again"));
    }
    Ok(FeedForwardConfig::Experts(ExpertsConfig {
        count,
        per_token,
        inner: keys.size(mixture.inner)?,
        normalized: keys.flag("norm_topk_prob")?.unwrap_or(mixture.normalized),
        shared: mixture.shared.map(|key| keys.size(key)).transpose()?,
        is_block: mixture.is_block,
    }))
}
