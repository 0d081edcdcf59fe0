//! llama.cpp's names for the tensors of a layer, and its changes of them.

/// A tensor's module, or its whole name, in the file and in Hugging Face's model, and what is to be undone.
pub(super) struct Tensor(pub(super) &'static str, pub(super) &'static str, pub(super) Change);

/// How llama.cpp changes a tensor of Hugging Face's model.
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

const SAME: Change = Change::Same;

/// Outside the layers.
pub(super) const MODEL: &[Tensor] = &[
    Tensor("token_embd", "model.embed_tokens", SAME),
    Tensor("output_norm", "model.norm", SAME),
    Tensor("output", "lm_head", SAME),
];

pub(super) const PLAIN_HEADS: &[Tensor] = &[
    Tensor("attn_q", "self_attn.q_proj", SAME),
    Tensor("attn_k", "self_attn.k_proj", SAME),
    Tensor("attn_v", "self_attn.v_proj", SAME),
    HEADS_TOGETHER,
];
pub(super) const MIXED_HEADS: &[Tensor] = &[
    Tensor("attn_q", "self_attn.q_proj", Change::Queries),
    Tensor("attn_k", "self_attn.k_proj", Change::Keys),
    Tensor("attn_v", "self_attn.v_proj", SAME),
    HEADS_TOGETHER,
];
pub(super) const FUSED_HEADS: &[Tensor] = &[Tensor("attn_qkv", "self_attn.qkv_proj", SAME), HEADS_TOGETHER];
const HEADS_TOGETHER: Tensor = Tensor("attn_output", "self_attn.o_proj", SAME);
pub(super) const HEAD_NORMS: &[Tensor] =
    &[Tensor("attn_q_norm", "self_attn.q_norm", SAME), Tensor("attn_k_norm", "self_attn.k_norm", SAME)];
pub(super) const GATED: &[Tensor] = &[
    Tensor("ffn_gate", "mlp.gate_proj", SAME),
    Tensor("ffn_up", "mlp.up_proj", SAME),
    Tensor("ffn_down", "mlp.down_proj", SAME),
];
pub(super) const FUSED_GATED: &[Tensor] =
    &[Tensor("ffn_up", "mlp.gate_up_proj", SAME), Tensor("ffn_down", "mlp.down_proj", SAME)];
/// The experts of a layer are one array, as mlx-lm has them.
pub(super) const EXPERTS: &[Tensor] = &[
    Tensor("ffn_gate_inp", "mlp.gate", SAME),
    Tensor("ffn_gate_exps", "mlp.switch_mlp.gate_proj", SAME),
    Tensor("ffn_up_exps", "mlp.switch_mlp.up_proj", SAME),
    Tensor("ffn_down_exps", "mlp.switch_mlp.down_proj", SAME),
];
pub(super) const BLOCK_OF_EXPERTS: &[Tensor] = &[
    Tensor("ffn_gate_inp", "block_sparse_moe.gate", SAME),
    Tensor("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj", SAME),
    Tensor("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj", SAME),
    Tensor("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj", SAME),
];
pub(super) const SHARED_EXPERT: &[Tensor] = &[
    Tensor("ffn_gate_inp_shexp", "mlp.shared_expert_gate", Change::Row),
    Tensor("ffn_gate_shexp", "mlp.shared_expert.gate_proj", SAME),
    Tensor("ffn_up_shexp", "mlp.shared_expert.up_proj", SAME),
    Tensor("ffn_down_shexp", "mlp.shared_expert.down_proj", SAME),
];
const FIRST_NORM: Tensor = Tensor("attn_norm", "input_layernorm", SAME);
pub(super) const NORMS_BEFORE: &[Tensor] = &[FIRST_NORM, Tensor("ffn_norm", "post_attention_layernorm", SAME)];
const BEHIND_ATTENTION: Tensor = Tensor("post_attention_norm", "post_attention_layernorm", SAME);
pub(super) const NORM_BETWEEN: &[Tensor] = &[FIRST_NORM, BEHIND_ATTENTION];
pub(super) const NORMS_AFTER: &[Tensor] =
    &[BEHIND_ATTENTION, Tensor("post_ffw_norm", "post_feedforward_layernorm", SAME)];
pub(super) const NORMS_AROUND: &[Tensor] = &[FIRST_NORM, Tensor("ffn_norm", "pre_feedforward_layernorm", SAME)];
pub(super) const DELTA_NET: &[Tensor] = &[
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
