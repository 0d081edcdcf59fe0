//! The names that Hugging Face's models have for llama.cpp's tensors.
//!
//! As `tensor_mapping.py` of gguf-py, the other way round, for models that are made like Llama.

use tacit_core::Result;
use tacit_nn::Parameters;

use super::{Gguf, GgufValue};

/// The frequencies of rotary embeddings, which are computed and not a parameter.
const ROPE: &str = "rope_freqs.weight";

/// Outside the layers.
const MODEL: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// In a layer.
const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

impl Gguf {
    /// All tensors by the names that Hugging Face's models have for them, of the architectures `llama`, `qwen2` and `qwen3`.
    ///
    /// The rows of a `llama` model's queries and keys, which llama.cpp reorders, are put in their old order. The
    /// frequencies of rotary embeddings, `rope_freqs.weight`, belong to no parameter and are left out.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get); the architecture is another one, or a tensor has no name there.
    pub fn hugging_face(&self) -> Result<Parameters> {
        let renaming = Renaming::of(self)?;
        let mut parameters = Parameters::new();
        for name in self.names().filter(|&name| name != ROPE) {
            let (renamed, heads) = renaming.of_tensor(self, name)?;
            parameters.insert(renamed, self.rows(name, heads)?);
        }
        Ok(parameters)
    }
}

/// How the tensors of a model are renamed.
struct Renaming {
    /// Heads of queries, and of keys, whose rows llama.cpp reorders for this architecture.
    reordered: Option<[usize; 2]>,
}

const ARCHITECTURE: &str = "general.architecture";

impl Renaming {
    /// As the architecture of the file says.
    fn of(file: &Gguf) -> Result<Self> {
        let reordered = match file.metadata(ARCHITECTURE)? {
            GgufValue::Text(name) if name == "llama" => {
                let heads = |key: &str| match file.metadata(key)? {
                    GgufValue::Unsigned(heads) => Ok(heads as usize),
                    found => Err(file.wrong(
                        key,
                        format!("it is {found:?}, and must be one number"),
                        "convert the model again",
                    )),
                };
                let (queries, keys) = ("llama.attention.head_count", "llama.attention.head_count_kv");
                let of_keys = if file.header.metadata.contains_key(keys) { keys } else { queries };
                Some([heads(queries)?, heads(of_keys)?])
            }
            GgufValue::Text(name) if matches!(name.as_str(), "qwen2" | "qwen3") => None,
            found => {
                let reason = format!("it is {found:?}, and the names of llama, qwen2 and qwen3 are known");
                return Err(file.wrong(ARCHITECTURE, reason, "take `parameters`, whose names are those of the file"));
            }
        };
        Ok(Self { reordered })
    }

    /// The new name, and the heads whose rows are to be put in order.
    fn of_tensor(&self, file: &Gguf, name: &str) -> Result<(String, Option<usize>)> {
        let unknown = || {
            file.wrong(name, "it is no tensor of this architecture", "take `parameters`, with the names of the file")
        };
        let (module, kind) = name.rsplit_once('.').ok_or_else(unknown)?;
        let known = |names: &[(&str, &'static str)], module: &str| {
            names.iter().find(|(own, _)| *own == module).map(|(_, theirs)| *theirs).ok_or_else(unknown)
        };
        let Some((layer, module)) = module.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            return Ok((format!("{}.{kind}", known(&MODEL, module)?), None));
        };
        let heads = self.reordered.and_then(|[queries, keys]| match module {
            "attn_q" => Some(queries),
            "attn_k" => Some(keys),
            _ => None,
        });
        Ok((format!("model.layers.{layer}.{}.{kind}", known(&LAYER, module)?), heads))
    }
}
