//! llama.cpp's names for each architecture and its changes of tensors: the one table that all of `Gguf` reads and
//! writes by.
//!
//! Sources: `tensor_mapping.py` of gguf-py, and llama.cpp's `conversion` and `src/models`.

use super::tensor::{
    BLOCK_OF_EXPERTS, DELTA_NET, EXPERTS, FUSED_GATED, FUSED_HEADS, GATED, HEAD_NORMS, MIXED_HEADS, MODEL,
    NORM_BETWEEN, NORMS_AFTER, NORMS_AROUND, NORMS_BEFORE, PLAIN_HEADS, SHARED_EXPERT, Tensor,
};
use crate::json::Json;

/// An architecture of llama.cpp, and how its files differ from those of Hugging Face.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// `model_type` of Hugging Face's configuration.
    pub(super) model_type: &'static str,
    /// The class of transformers that runs it.
    pub(super) class: &'static str,
    /// The tensors of a layer.
    pub(super) tensors: &'static [&'static [Tensor]],
    pub(super) keys: &'static [&'static [Key]],
    /// What the configuration says where the file does not: what llama.cpp takes then.
    pub(super) usual: &'static [(&'static str, Json)],
    /// What Hugging Face's class takes where the configuration does not say it.
    pub(super) implied: &'static [(&'static str, Json)],
    /// What the configuration of every such model says, which is no key of the file.
    pub(super) always: &'static [(&'static str, Json)],
    /// What keys of the file say, where they are there: models of other architectures have the name as well.
    pub(super) only: &'static [(&'static str, Json)],
    /// All but the last of so many layers have a window.
    pub(super) window: Option<u32>,
    /// Whether the gains of norms are stored plus 1.
    pub(super) gains_plus_one: bool,
    pub(super) head: Head,
    /// Whether llama.cpp reads what rotary frequencies are divided by.
    pub(super) divides: bool,
    /// Whether llama.cpp rotates all of a head: it ends where a file says less.
    pub(super) rotates_all: bool,
    /// Whether the heads together are as wide as the model: llama.cpp asks for tensors of this shape.
    pub(super) heads_fill: bool,
    /// The file's modules whose biases llama.cpp adds. It loads no file with another one, or leaves that out.
    pub(super) biases: &'static [&'static str],
    /// How scores are scaled, where it is not by the width of a head alone.
    pub(super) scale: Option<Scale>,
}

/// What gives tokens their scores.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Head {
    /// A tensor, or the embedding where the configuration says it.
    Own,
    /// The embedding, or a tensor where the configuration says it.
    Embedding,
    /// As `Own`, but llama.cpp asks for a tensor also where it is the embedding.
    Always,
}

/// A key behind the architecture's name, that of Hugging Face, and what it is in a file.
pub(super) type Key = (&'static str, &'static str, Kind);

/// What a value is in a file.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// A `u32`, or one for each layer.
    Count,
    /// A `u32`, which is 0 where the configuration says none.
    CountOrZero,
    /// An `f32`.
    Real,
    /// A string.
    Text,
}

use Kind::{Count, CountOrZero, Real};

/// Scores are divided by the root of `query_pre_attn_scalar`.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    /// So many layers has the model in which this is the width of all heads by their number, and not that of a head.
    pub(super) wide: u64,
}

/// Keys of every architecture.
const SIZES: &[Key] = &[
    ("embedding_length", "hidden_size", Count),
    ("block_count", "num_hidden_layers", Count),
    ("feed_forward_length", "intermediate_size", Count),
    ("attention.head_count", "num_attention_heads", Count),
    ("attention.head_count_kv", "num_key_value_heads", Count),
    ("attention.key_length", "head_dim", Count),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps", Real),
    ("context_length", "max_position_embeddings", Count),
    ("rope.freq_base", "rope_theta", Real),
];
const EXPERT_SIZES: &[Key] = &[
    ("expert_count", "num_experts", Count),
    ("expert_used_count", "num_experts_per_tok", Count),
    ("expert_feed_forward_length", "moe_intermediate_size", Count),
];
const EXPERT_COUNTS: &[Key] =
    &[("expert_count", "num_local_experts", Count), ("expert_used_count", "num_experts_per_tok", Count)];
const DELTA_NET_SIZES: &[Key] = &[
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size", Count),
    ("full_attention_interval", "full_attention_interval", Count),
    ("ssm.conv_kernel", "linear_conv_kernel_dim", Count),
    ("ssm.state_size", "linear_key_head_dim", Count),
    ("ssm.group_count", "linear_num_key_heads", Count),
    ("ssm.time_step_rank", "linear_num_value_heads", Count),
];
const WINDOW: &[Key] = &[("attention.sliding_window", "sliding_window", Count)];
/// llama.cpp leaves the window out of account, but its converter writes it.
const PHI_SIZES: &[Key] = &[
    ("attention.sliding_window", "sliding_window", CountOrZero),
    ("rope.scaling.original_context_length", "original_max_position_embeddings", Count),
];
const MULTIPLIERS: &[Key] = &[
    ("attention.scale", "attention_multiplier", Real),
    ("embedding_scale", "embedding_multiplier", Real),
    ("residual_scale", "residual_multiplier", Real),
    ("logit_scale", "logits_scaling", Real),
];
const LOCAL_ROPE: &[Key] = &[("rope.freq_base_swa", "rope_local_base_freq", Real)];
const CAPS: &[Key] = &[
    ("attn_logit_softcapping", "attn_logit_softcapping", Real),
    ("final_logit_softcapping", "final_logit_softcapping", Real),
];

/// Keys of positions that are changed for longer contexts: in Hugging Face's configuration they are keys of `rope_scaling`.
///
/// `rope.scaling.yarn_attn_factor` is not among them: llama.cpp's converter writes it, and llama.cpp computes its own in its place.
pub(super) const ROPE_SCALING: &[Key] = &[
    ("rope.scaling.type", "rope_type", Kind::Text),
    // What files of 2023 have, and what later ones have in its place.
    ("rope.scale_linear", "factor", Real),
    ("rope.scaling.factor", "factor", Real),
    ("rope.scaling.original_context_length", "original_max_position_embeddings", Count),
    ("rope.scaling.yarn_beta_fast", "beta_fast", Real),
    ("rope.scaling.yarn_beta_slow", "beta_slow", Real),
];

/// What queries and keys are multiplied by, beside all that changes their positions.
pub(super) const SCALED_HEADS: &str = "rope.scaling.attn_factor";

/// llama.cpp loads no file with a head of its own.
const TIED: &[(&str, Json)] = &[("tie_word_embeddings", Json::Bool(true))];

const EACH_WITH_EXPERTS: &[(&str, Json)] = &[
    ("norm_topk_prob", Json::Bool(true)),
    ("decoder_sparse_step", Json::Integer(1)),
    ("mlp_only_layers", Json::List(Vec::new())),
];

/// What most are.
const PLAIN: Architecture = Architecture {
    name: "",
    model_type: "",
    class: "",
    tensors: &[],
    keys: &[SIZES],
    usual: &[],
    implied: &[],
    always: &[],
    only: &[],
    window: None,
    gains_plus_one: false,
    head: Head::Own,
    divides: false,
    rotates_all: false,
    heads_fill: false,
    biases: &[],
    scale: None,
};

const LLAMA: Architecture = Architecture {
    name: "llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    tensors: &[NORMS_BEFORE, MIXED_HEADS, GATED],
    implied: &[("partial_rotary_factor", Json::Float(1.0))],
    divides: true,
    rotates_all: true,
    biases: &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"],
    ..PLAIN
};

const GEMMA: Architecture =
    Architecture { gains_plus_one: true, head: Head::Embedding, implied: &[("head_dim", Json::Integer(256))], ..PLAIN };

/// What every file says or means.
pub(super) const USUAL: &[(&str, Json)] = &[("rope_theta", Json::Float(10_000.0))];

/// What every configuration says or means.
const IMPLIED: &[(&str, Json)] = &[("rms_norm_eps", Json::Float(1e-6)), ("rope_theta", Json::Float(10_000.0))];

/// The architectures that are read. Mistral's models are of the architecture `llama` there, and those of Mixtral are too:
/// of two with one name the second has experts.
pub(super) const ARCHITECTURES: [Architecture; 13] = [
    LLAMA,
    Architecture {
        model_type: "mixtral",
        class: "MixtralForCausalLM",
        tensors: &[NORMS_BEFORE, MIXED_HEADS, BLOCK_OF_EXPERTS],
        keys: &[SIZES, EXPERT_COUNTS],
        implied: &[
            ("partial_rotary_factor", Json::Float(1.0)),
            ("rms_norm_eps", Json::Float(1e-5)),
            ("rope_theta", Json::Float(1e6)),
        ],
        ..LLAMA
    },
    Architecture {
        name: "qwen2",
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        tensors: &[NORMS_BEFORE, PLAIN_HEADS, GATED],
        rotates_all: true,
        heads_fill: true,
        biases: &["attn_q", "attn_k", "attn_v", "output"],
        ..PLAIN
    },
    Architecture {
        name: "qwen3",
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        tensors: &[NORMS_BEFORE, PLAIN_HEADS, HEAD_NORMS, GATED],
        rotates_all: true,
        ..PLAIN
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        tensors: &[NORMS_BEFORE, PLAIN_HEADS, HEAD_NORMS, EXPERTS],
        keys: &[SIZES, EXPERT_SIZES],
        always: EACH_WITH_EXPERTS,
        rotates_all: true,
        ..PLAIN
    },
    // The gains are plus 1 there, which is how mlx-lm has them.
    Architecture {
        name: "qwen3next",
        model_type: "qwen3_next",
        class: "Qwen3NextForCausalLM",
        tensors: &[NORM_BETWEEN, PLAIN_HEADS, HEAD_NORMS, EXPERTS, SHARED_EXPERT, DELTA_NET],
        keys: &[SIZES, EXPERT_SIZES, DELTA_NET_SIZES],
        implied: &[("head_dim", Json::Integer(256)), ("partial_rotary_factor", Json::Float(0.25))],
        always: EACH_WITH_EXPERTS,
        ..PLAIN
    },
    Architecture {
        name: "gemma",
        model_type: "gemma",
        class: "GemmaForCausalLM",
        tensors: &[NORMS_BEFORE, PLAIN_HEADS, GATED],
        always: TIED,
        ..GEMMA
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        class: "Gemma2ForCausalLM",
        tensors: &[NORMS_AROUND, NORMS_AFTER, PLAIN_HEADS, GATED],
        keys: &[SIZES, WINDOW, CAPS],
        usual: &[("sliding_window", Json::Integer(4096))],
        implied: &[
            ("head_dim", Json::Integer(256)),
            ("query_pre_attn_scalar", Json::Integer(256)),
            ("sliding_window", Json::Integer(4096)),
            ("attn_logit_softcapping", Json::Float(50.0)),
            ("final_logit_softcapping", Json::Float(30.0)),
        ],
        always: TIED,
        window: Some(2),
        scale: Some(Scale { wide: 46 }),
        ..GEMMA
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        tensors: &[NORMS_AROUND, NORMS_AFTER, PLAIN_HEADS, HEAD_NORMS, GATED],
        keys: &[SIZES, WINDOW, LOCAL_ROPE, CAPS],
        implied: &[
            ("head_dim", Json::Integer(256)),
            ("query_pre_attn_scalar", Json::Integer(256)),
            ("sliding_window", Json::Integer(4096)),
            ("rope_theta", Json::Float(1e6)),
            ("rope_local_base_freq", Json::Float(10_000.0)),
        ],
        window: Some(6),
        scale: Some(Scale { wide: 62 }),
        ..GEMMA
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        class: "Phi3ForCausalLM",
        tensors: &[NORMS_BEFORE, FUSED_HEADS, FUSED_GATED],
        keys: &[SIZES, PHI_SIZES],
        implied: &[("partial_rotary_factor", Json::Float(1.0)), ("rms_norm_eps", Json::Float(1e-5))],
        heads_fill: true,
        ..PLAIN
    },
    Architecture {
        name: "olmo2",
        model_type: "olmo2",
        class: "Olmo2ForCausalLM",
        tensors: &[NORMS_AFTER, PLAIN_HEADS, HEAD_NORMS, GATED],
        implied: &[("rms_norm_eps", Json::Float(1e-5))],
        // Those of an Olmo 3 have windows.
        only: &[("attention.sliding_window", Json::Integer(0))],
        head: Head::Always,
        rotates_all: true,
        heads_fill: true,
        ..PLAIN
    },
    Architecture {
        name: "granite",
        model_type: "granite",
        class: "GraniteForCausalLM",
        keys: &[SIZES, MULTIPLIERS],
        // mlx-lm reads no Granite that does not say them.
        usual: &[("attention_bias", Json::Bool(false)), ("mlp_bias", Json::Bool(false))],
        // Some of Granite 4 have no positions.
        only: &[("rope.scaling.finetuned", Json::Bool(true))],
        ..LLAMA
    },
    Architecture {
        name: "smollm3",
        model_type: "smollm3",
        class: "SmolLM3ForCausalLM",
        implied: &[("partial_rotary_factor", Json::Float(1.0)), ("rope_theta", Json::Float(2e6))],
        always: &[("no_rope_layer_interval", Json::Integer(4))],
        head: Head::Embedding,
        divides: false,
        biases: &[],
        ..LLAMA
    },
];

impl Architecture {
    /// The one of this name, whose models have experts or none.
    pub(super) fn named(name: &str, has_experts: bool) -> Option<&'static Self> {
        const ALL: &[Architecture] = &ARCHITECTURES;
        let mut named = ALL.iter().filter(|architecture| architecture.name == name);
        let first = named.next();
        named.find(|_| has_experts).or(first)
    }

    pub(super) fn of_model(model_type: &str) -> Option<&'static Self> {
        const ALL: &[Architecture] = &ARCHITECTURES;
        let model_type = if model_type == "mistral" { "llama" } else { model_type };
        ALL.iter().find(|architecture| architecture.model_type == model_type)
    }

    /// What a configuration means that does not say it.
    pub(super) fn implied(&self, key: &str) -> Option<&'static Json> {
        self.implied.iter().chain(IMPLIED).find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    pub(super) fn names() -> String {
        listed(|architecture| architecture.name)
    }

    /// What configurations call them, for a message.
    pub(super) fn models() -> String {
        format!("mistral, {}", listed(|architecture| architecture.model_type))
    }

    /// The tensor of a layer, or one outside the layers, whose name in the file this is, and what stands behind the module.
    pub(super) fn tensor<'n>(&self, in_layer: bool, name: &'n str) -> Option<(&'static Tensor, &'n str)> {
        self.tensors_of(in_layer).find_map(|tensor| Some((tensor, behind(name, tensor.0)?)))
    }

    /// The same by the name that Hugging Face has for it.
    pub(super) fn parameter<'n>(&self, in_layer: bool, name: &'n str) -> Option<(&'static Tensor, &'n str)> {
        self.tensors_of(in_layer).find_map(|tensor| Some((tensor, behind(name, tensor.1)?)))
    }

    /// The file's key behind the architecture's name for a key of Hugging Face's configuration, or of a section of it.
    pub(super) fn key(&self, theirs: &str) -> Option<&'static str> {
        let last = theirs.rsplit_once('.').map_or(theirs, |(_, last)| last);
        let keys = self.keys.iter().copied().flatten().chain(ROPE_SCALING);
        keys.copied().find(|(_, key, _)| *key == last).map(|(own, ..)| own)
    }

    fn tensors_of(&self, in_layer: bool) -> impl Iterator<Item = &'static Tensor> + use<> {
        let (outside, within) = if in_layer { (&[][..], self.tensors) } else { (MODEL, &[][..]) };
        outside.iter().chain(within.iter().copied().flatten())
    }
}

fn listed(name: fn(&Architecture) -> &'static str) -> String {
    let mut names: Vec<&str> = ARCHITECTURES.iter().map(name).collect();
    names.dedup();
    let (last, first) = names.split_last().unwrap_or((&"", &[]));
    format!("{} and {last}", first.join(", "))
}

/// What stands behind a module's name: `.weight`, or nothing.
fn behind<'n>(name: &'n str, module: &str) -> Option<&'n str> {
    name.strip_prefix(module).filter(|rest| matches!(*rest, "" | ".weight" | ".bias"))
}
