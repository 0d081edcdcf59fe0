//! What llama.cpp calls and changes of each architecture: the one table that all of `Gguf` reads, and writes by.
//!
//! As `tensor_mapping.py` of gguf-py, `conversion` of llama.cpp and its `src/models` have it.

use crate::json::Json;

/// An architecture of llama.cpp, and how its files differ from those of Hugging Face.
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// `model_type` of Hugging Face's configuration.
    pub(super) model_type: &'static str,
    /// The class of transformers that runs it.
    pub(super) class: &'static str,
    /// The tensors of a layer.
    pub(super) tensors: &'static [&'static [Tensor]],
    /// The keys of the configuration.
    pub(super) keys: &'static [&'static [Key]],
    /// What the configuration says where the file does not: what llama.cpp takes then.
    pub(super) usual: &'static [(&'static str, Json)],
    /// What Hugging Face's class takes where the configuration does not say it.
    pub(super) implied: &'static [(&'static str, Json)],
    /// What the configuration of every such model says, which is no key of the file.
    pub(super) always: &'static [(&'static str, Json)],
    /// All but the last of so many layers have a window.
    pub(super) window: Option<u32>,
    /// Whether the gains of norms are stored plus 1.
    pub(super) gains_plus_one: bool,
    /// How scores are scaled, where it is not by the width of a head alone.
    pub(super) scale: Option<Scale>,
}

/// A tensor's module, or its whole name, in the file and in Hugging Face's model, and what is to be undone.
pub(super) struct Tensor(pub(super) &'static str, pub(super) &'static str, pub(super) Change);

/// A key behind the architecture's name, that of Hugging Face, and what it is in a file.
pub(super) type Key = (&'static str, &'static str, Kind);

/// What a value is in a file.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// A `u32`, or one for each layer.
    Count,
    /// An `f32`.
    Real,
    /// A string.
    Text,
}

use Kind::{Count, Real};

/// What llama.cpp has made of a tensor.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Change {
    /// Nothing.
    Same,
    /// The two halves of each head of queries are mixed, row by row.
    Queries,
    /// Those of each head of keys are.
    Keys,
    /// A matrix of one row is a vector.
    Row,
    /// A filter `[channels, taps, 1]` has two axes.
    Filter,
    /// A logarithm is the negative number.
    NegativeLogarithm,
    /// The rows for queries, keys and values of all heads, which belong together head by head with those of the next change.
    Net,
    /// The rows for gates of all heads, which are put behind the ones above.
    NetGate,
}

/// Scores are divided by the root of `query_pre_attn_scalar`.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    /// So many layers has the model in which this is the width of all heads by their number, and not that of a head.
    pub(super) wide: u64,
}

const SAME: Change = Change::Same;

/// Outside the layers.
pub(super) const MODEL: &[Tensor] = &[
    Tensor("token_embd", "model.embed_tokens", SAME),
    Tensor("output_norm", "model.norm", SAME),
    Tensor("output", "lm_head", SAME),
];

const PLAIN_HEADS: &[Tensor] =
    &[Tensor("attn_q", "self_attn.q_proj", SAME), Tensor("attn_k", "self_attn.k_proj", SAME)];
const MIXED_HEADS: &[Tensor] =
    &[Tensor("attn_q", "self_attn.q_proj", Change::Queries), Tensor("attn_k", "self_attn.k_proj", Change::Keys)];
const ATTENTION: &[Tensor] = &[
    Tensor("attn_norm", "input_layernorm", SAME),
    Tensor("attn_v", "self_attn.v_proj", SAME),
    Tensor("attn_output", "self_attn.o_proj", SAME),
];
const HEAD_NORMS: &[Tensor] =
    &[Tensor("attn_q_norm", "self_attn.q_norm", SAME), Tensor("attn_k_norm", "self_attn.k_norm", SAME)];
const GATED: &[Tensor] = &[
    Tensor("ffn_gate", "mlp.gate_proj", SAME),
    Tensor("ffn_up", "mlp.up_proj", SAME),
    Tensor("ffn_down", "mlp.down_proj", SAME),
];
/// The experts of a layer are one array, as mlx-lm has them.
const EXPERTS: &[Tensor] = &[
    Tensor("ffn_gate_inp", "mlp.gate", SAME),
    Tensor("ffn_gate_exps", "mlp.switch_mlp.gate_proj", SAME),
    Tensor("ffn_up_exps", "mlp.switch_mlp.up_proj", SAME),
    Tensor("ffn_down_exps", "mlp.switch_mlp.down_proj", SAME),
];
const SHARED_EXPERT: &[Tensor] = &[
    Tensor("ffn_gate_inp_shexp", "mlp.shared_expert_gate", Change::Row),
    Tensor("ffn_gate_shexp", "mlp.shared_expert.gate_proj", SAME),
    Tensor("ffn_up_shexp", "mlp.shared_expert.up_proj", SAME),
    Tensor("ffn_down_shexp", "mlp.shared_expert.down_proj", SAME),
];
const NORM_BEFORE: &[Tensor] = &[Tensor("ffn_norm", "post_attention_layernorm", SAME)];
const NORM_BETWEEN: &[Tensor] = &[Tensor("post_attention_norm", "post_attention_layernorm", SAME)];
const NORMS_AROUND: &[Tensor] = &[
    Tensor("ffn_norm", "pre_feedforward_layernorm", SAME),
    Tensor("post_ffw_norm", "post_feedforward_layernorm", SAME),
];
const DELTA_NET: &[Tensor] = &[
    Tensor("attn_qkv", "linear_attn.in_proj_qkvz", Change::Net),
    Tensor("attn_gate", "linear_attn.in_proj_qkvz", Change::NetGate),
    Tensor("ssm_in", "linear_attn.in_proj_qkvz", SAME),
    Tensor("ssm_ba", "linear_attn.in_proj_ba", SAME),
    Tensor("ssm_conv1d", "linear_attn.conv1d", Change::Filter),
    Tensor("ssm_a", "linear_attn.A_log", Change::NegativeLogarithm),
    Tensor("ssm_dt.bias", "linear_attn.dt_bias", SAME),
    Tensor("ssm_norm", "linear_attn.norm", SAME),
    Tensor("ssm_out", "linear_attn.out_proj", SAME),
];

/// Of every architecture.
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
const DELTA_NET_SIZES: &[Key] = &[
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size", Count),
    ("full_attention_interval", "full_attention_interval", Count),
    ("ssm.conv_kernel", "linear_conv_kernel_dim", Count),
    ("ssm.state_size", "linear_key_head_dim", Count),
    ("ssm.group_count", "linear_num_key_heads", Count),
    ("ssm.time_step_rank", "linear_num_value_heads", Count),
];
const WINDOW: &[Key] = &[("attention.sliding_window", "sliding_window", Count)];
const LOCAL_ROPE: &[Key] = &[("rope.freq_base_swa", "rope_local_base_freq", Real)];
const CAPS: &[Key] = &[
    ("attn_logit_softcapping", "attn_logit_softcapping", Real),
    ("final_logit_softcapping", "final_logit_softcapping", Real),
];

/// Of positions that are changed for longer contexts: in Hugging Face's configuration they are keys of `rope_scaling`.
pub(super) const ROPE_SCALING: &[Key] = &[
    ("rope.scaling.type", "rope_type", Kind::Text),
    // What files of 2023 have, and what later ones have in its place.
    ("rope.scale_linear", "factor", Real),
    ("rope.scaling.factor", "factor", Real),
    ("rope.scaling.original_context_length", "original_max_position_embeddings", Count),
    ("rope.scaling.yarn_attn_factor", "attention_factor", Real),
    ("rope.scaling.yarn_beta_fast", "beta_fast", Real),
    ("rope.scaling.yarn_beta_slow", "beta_slow", Real),
];

/// What queries and keys are multiplied by, beside all that changes their positions.
pub(super) const SCALED_HEADS: &str = "rope.scaling.attn_factor";

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
    window: None,
    gains_plus_one: false,
    scale: None,
};

const GEMMA: Architecture =
    Architecture { gains_plus_one: true, implied: &[("head_dim", Json::Integer(256))], ..PLAIN };

/// What every file says or means.
pub(super) const USUAL: &[(&str, Json)] = &[("rope_theta", Json::Float(10_000.0))];

/// What every configuration says or means.
const IMPLIED: &[(&str, Json)] = &[("rms_norm_eps", Json::Float(1e-6)), ("rope_theta", Json::Float(10_000.0))];

/// Those that are read. Mistral's models are of the architecture `llama` there.
pub(super) const ARCHITECTURES: [Architecture; 8] = [
    Architecture {
        name: "llama",
        model_type: "llama",
        class: "LlamaForCausalLM",
        tensors: &[ATTENTION, MIXED_HEADS, NORM_BEFORE, GATED],
        implied: &[("partial_rotary_factor", Json::Float(1.0))],
        ..PLAIN
    },
    Architecture {
        name: "qwen2",
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        tensors: &[ATTENTION, PLAIN_HEADS, NORM_BEFORE, GATED],
        ..PLAIN
    },
    Architecture {
        name: "qwen3",
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        tensors: &[ATTENTION, PLAIN_HEADS, HEAD_NORMS, NORM_BEFORE, GATED],
        ..PLAIN
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        tensors: &[ATTENTION, PLAIN_HEADS, HEAD_NORMS, NORM_BEFORE, EXPERTS],
        keys: &[SIZES, EXPERT_SIZES],
        always: EACH_WITH_EXPERTS,
        ..PLAIN
    },
    // The gains are plus 1 there, which is how mlx-lm has them.
    Architecture {
        name: "qwen3next",
        model_type: "qwen3_next",
        class: "Qwen3NextForCausalLM",
        tensors: &[ATTENTION, PLAIN_HEADS, HEAD_NORMS, NORM_BETWEEN, EXPERTS, SHARED_EXPERT, DELTA_NET],
        keys: &[SIZES, EXPERT_SIZES, DELTA_NET_SIZES],
        implied: &[("head_dim", Json::Integer(256)), ("partial_rotary_factor", Json::Float(0.25))],
        always: EACH_WITH_EXPERTS,
        ..PLAIN
    },
    Architecture {
        name: "gemma",
        model_type: "gemma",
        class: "GemmaForCausalLM",
        tensors: &[ATTENTION, PLAIN_HEADS, NORM_BEFORE, GATED],
        ..GEMMA
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        class: "Gemma2ForCausalLM",
        tensors: &[ATTENTION, PLAIN_HEADS, NORM_BETWEEN, NORMS_AROUND, GATED],
        keys: &[SIZES, WINDOW, CAPS],
        usual: &[("sliding_window", Json::Integer(4096))],
        implied: &[
            ("head_dim", Json::Integer(256)),
            ("query_pre_attn_scalar", Json::Integer(256)),
            ("sliding_window", Json::Integer(4096)),
            ("attn_logit_softcapping", Json::Float(50.0)),
            ("final_logit_softcapping", Json::Float(30.0)),
        ],
        window: Some(2),
        scale: Some(Scale { wide: 46 }),
        ..GEMMA
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        tensors: &[ATTENTION, PLAIN_HEADS, HEAD_NORMS, NORM_BETWEEN, NORMS_AROUND, GATED],
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
];

impl Architecture {
    /// The one of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        const ALL: &[Architecture] = &ARCHITECTURES;
        ALL.iter().find(|architecture| architecture.name == name)
    }

    /// The one that runs the models of this `model_type`.
    pub(super) fn of_model(model_type: &str) -> Option<&'static Self> {
        const ALL: &[Architecture] = &ARCHITECTURES;
        let model_type = if model_type == "mistral" { "llama" } else { model_type };
        ALL.iter().find(|architecture| architecture.model_type == model_type)
    }

    /// What a configuration means that does not say it.
    pub(super) fn implied(&self, key: &str) -> Option<&'static Json> {
        self.implied.iter().chain(IMPLIED).find(|(own, _)| *own == key).map(|(_, value)| value)
    }

    /// The names of all, for a message.
    pub(super) fn names() -> String {
        listed(|architecture| architecture.name)
    }

    /// What configurations call them, for a message.
    pub(super) fn models() -> String {
        format!("mistral, {}", listed(|architecture| architecture.model_type))
    }

    /// The tensor of a layer, or one outside the layers, whose name in the file this is, and what stands behind the module.
    pub(super) fn tensor<'n>(&self, in_layer: bool, name: &'n str) -> Option<(&'static Tensor, &'n str)> {
        self.all(in_layer).find_map(|tensor| Some((tensor, behind(name, tensor.0)?)))
    }

    /// The same by the name that Hugging Face has for it.
    pub(super) fn parameter<'n>(&self, in_layer: bool, name: &'n str) -> Option<(&'static Tensor, &'n str)> {
        self.all(in_layer).find_map(|tensor| Some((tensor, behind(name, tensor.1)?)))
    }

    /// The file's key behind the architecture's name for a key of Hugging Face's configuration, or of a section of it.
    pub(super) fn key(&self, theirs: &str) -> Option<&'static str> {
        let last = theirs.rsplit_once('.').map_or(theirs, |(_, last)| last);
        let keys = self.keys.iter().copied().flatten().chain(ROPE_SCALING);
        keys.copied().find(|(_, key, _)| *key == last).map(|(own, ..)| own)
    }

    fn all(&self, in_layer: bool) -> impl Iterator<Item = &'static Tensor> + use<> {
        let (outside, within) = if in_layer { (&[][..], self.tensors) } else { (MODEL, &[][..]) };
        outside.iter().chain(within.iter().copied().flatten())
    }
}

fn listed(name: fn(&Architecture) -> &'static str) -> String {
    let names: Vec<&str> = ARCHITECTURES.iter().map(name).collect();
    let (last, first) = names.split_last().unwrap_or((&"", &[]));
    format!("{} and {last}", first.join(", "))
}

/// What stands behind a module's name: `.weight`, or nothing.
fn behind<'n>(name: &'n str, module: &str) -> Option<&'n str> {
    name.strip_prefix(module).filter(|rest| matches!(*rest, "" | ".weight" | ".bias"))
}
