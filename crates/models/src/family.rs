//! The architectures that are read: one table of what sets each apart.
//!
//! A row says what no key of a file does, and what transformers takes where a file leaves a key out, as its configurations and
//! models have it. [`Config`](crate::Config) puts a row and a file together.

use tacit_core::Result;

use crate::activation::Activation;
use crate::keys::Keys;

/// An architecture.
pub(crate) struct Family {
    /// Its `model_type`.
    pub(crate) name: &'static str,
    /// The width of a head, where it is not that of a layer by the number of heads.
    pub(crate) head_dim: Option<i32>,
    /// What is added to mean squares.
    pub(crate) epsilon: f64,
    /// Whether gains are `1 + weight`.
    pub(crate) gains_from_one: bool,
    pub(crate) norms: NormPlacement,
    pub(crate) head_norms: Option<HeadNorms>,
    /// Whether queries, keys and values have biases, and what they come to has none, whatever the file says.
    pub(crate) qkv_bias: Option<bool>,
    /// Whether the queries' product also gives a gate of what the heads give.
    pub(crate) output_gate: bool,
    /// Whether one product gives queries, keys and values, and one the two factors of a feed-forward layer.
    pub(crate) fused: bool,
    /// The key of the function within feed-forward layers, and which it is.
    pub(crate) activation: (&'static str, Activation),
    pub(crate) multipliers: Multipliers,
    /// Scores are divided by the root of `query_pre_attn_scalar`.
    pub(crate) query_scalar: Option<f64>,
    /// The caps of scores and of logits.
    pub(crate) caps: [Option<f64>; 2],
    /// Whether the head is the embedding.
    pub(crate) tied: Option<bool>,
    /// The base of rotary frequencies.
    pub(crate) theta: f64,
    /// The base of layers with a window, where it is another one.
    pub(crate) local_theta: Option<f64>,
    /// The part of a head that is rotated, where it is not all.
    pub(crate) rotated: Option<f64>,
    /// Each so many-th layer has no positions.
    pub(crate) without_rope: Option<i32>,
    pub(crate) windows: Windows,
    /// The tokens of a window.
    pub(crate) window: Option<i32>,
    pub(crate) experts: Option<Mixture>,
}

/// Where layers are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// What attention and the feed-forward layer take.
    Before,
    /// What they take and what they give.
    Around,
    /// What they give.
    After,
}

/// How queries and keys are normalized: head by head, or all heads together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorms {
    /// Each head.
    Each,
    /// All heads together.
    Together,
}

/// What numbers are multiplied by, beside scores by the root of the width of a head.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Multipliers {
    None,
    /// Embedded tokens, by the root of their width.
    Root,
    /// Embedded tokens, scores in place of that root, what layers add to the sum, and logits: by a key for each, which must be
    /// there, as llama.cpp and transformers take other numbers without it.
    Keys,
}

/// Which layers see a window, where `layer_types` does not say it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Windows {
    /// None.
    Named,
    /// All.
    All,
    /// All, if `use_sliding_window` asks for them.
    Asked,
    /// The layers from `max_window_layers` on, if `use_sliding_window` asks for them.
    Late,
    /// The layers without positions, if `use_sliding_window` asks for them.
    WithoutRope,
    /// Each second, from the first on.
    Alternate,
    /// All but the last of `sliding_window_pattern`.
    Period,
    /// None, and all but the last of `full_attention_interval` have a state in the place of attention.
    States,
}

pub(crate) struct Mixture {
    /// The keys of how many there are.
    pub(crate) count: [&'static str; 2],
    /// The key of the width within each.
    pub(crate) inner: &'static str,
    /// The key of the width of another expert, which all tokens go through.
    pub(crate) shared: Option<&'static str>,
    /// Whether the weights of a token's experts sum to 1.
    pub(crate) normalized: bool,
    /// Whether it is called `block_sparse_moe`, and not `mlp`.
    pub(crate) is_block: bool,
}

/// What most are.
const PLAIN: Family = Family {
    name: "",
    head_dim: None,
    epsilon: 1e-6,
    gains_from_one: false,
    norms: NormPlacement::Before,
    head_norms: None,
    qkv_bias: None,
    output_gate: false,
    fused: false,
    activation: ("hidden_act", Activation::Silu),
    multipliers: Multipliers::None,
    query_scalar: None,
    caps: [None, None],
    tied: None,
    theta: 1e4,
    local_theta: None,
    rotated: None,
    without_rope: None,
    windows: Windows::Named,
    window: Some(4096),
    experts: None,
};

/// The first one's `hidden_act` is `gelu`, and it was trained with the other one.
const GEMMA: Family = Family {
    head_dim: Some(256),
    gains_from_one: true,
    activation: ("hidden_activation", Activation::GeluTanh),
    multipliers: Multipliers::Root,
    tied: Some(true),
    ..PLAIN
};

const QWEN: Mixture = Mixture {
    // The second key is that of newer versions of transformers.
    count: ["num_experts", "num_local_experts"],
    inner: "moe_intermediate_size",
    shared: None,
    normalized: false,
    is_block: false,
};

/// The families that are read.
static FAMILIES: [Family; 14] = [
    Family { name: "llama", ..PLAIN },
    Family { name: "mistral", windows: Windows::All, ..PLAIN },
    Family {
        name: "mixtral",
        epsilon: 1e-5,
        qkv_bias: Some(false),
        theta: 1e6,
        windows: Windows::All,
        window: None,
        experts: Some(Mixture {
            count: ["num_local_experts", "num_experts"],
            inner: "intermediate_size",
            shared: None,
            normalized: true,
            is_block: true,
        }),
        ..PLAIN
    },
    Family { name: "qwen2", qkv_bias: Some(true), windows: Windows::Late, ..PLAIN },
    Family { name: "qwen3", head_norms: Some(HeadNorms::Each), windows: Windows::Late, ..PLAIN },
    Family {
        name: "qwen3_moe",
        head_norms: Some(HeadNorms::Each),
        windows: Windows::Asked,
        experts: Some(QWEN),
        ..PLAIN
    },
    Family {
        name: "qwen3_next",
        head_dim: Some(256),
        head_norms: Some(HeadNorms::Each),
        output_gate: true,
        rotated: Some(0.25),
        windows: Windows::States,
        experts: Some(Mixture { normalized: true, shared: Some("shared_expert_intermediate_size"), ..QWEN }),
        ..PLAIN
    },
    Family { name: "gemma", ..GEMMA },
    Family {
        name: "gemma2",
        norms: NormPlacement::Around,
        query_scalar: Some(256.0),
        caps: [Some(50.0), Some(30.0)],
        windows: Windows::Alternate,
        ..GEMMA
    },
    Family {
        name: "gemma3_text",
        norms: NormPlacement::Around,
        head_norms: Some(HeadNorms::Each),
        query_scalar: Some(256.0),
        theta: 1e6,
        local_theta: Some(1e4),
        windows: Windows::Period,
        ..GEMMA
    },
    Family {
        name: "phi3",
        epsilon: 1e-5,
        qkv_bias: Some(false),
        fused: true,
        windows: Windows::All,
        window: None,
        ..PLAIN
    },
    Family {
        name: "olmo2",
        epsilon: 1e-5,
        norms: NormPlacement::After,
        head_norms: Some(HeadNorms::Together),
        ..PLAIN
    },
    Family { name: "granite", multipliers: Multipliers::Keys, ..PLAIN },
    Family {
        name: "smollm3",
        tied: Some(true),
        theta: 2e6,
        without_rope: Some(4),
        windows: Windows::WithoutRope,
        window: None,
        ..PLAIN
    },
];

impl Family {
    pub(crate) fn of_name(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == name)
    }

    pub(crate) fn named(keys: &Keys) -> Result<&'static Self> {
        let name = keys.text("model_type")?;
        name.and_then(Self::of_name).ok_or_else(|| {
            let reason = name.map_or("it is not there".to_owned(), |other| format!("{other} is not read"));
            let names = FAMILIES.each_ref().map(|family| family.name);
            let (last, first) = names.split_last().unwrap_or((&"", &[]));
            let help = format!("there are {} and {last}: take such a model", first.join(", "));
            keys.wrong("model_type", reason, help)
        })
    }
}
