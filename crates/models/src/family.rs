//! The architectures that are read.

use tacit_core::Result;

use crate::keys::Keys;

/// An architecture, by its `model_type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    Gemma,
    Gemma2,
    Gemma3,
}

impl Family {
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "llama" => Self::Llama,
            "mistral" => Self::Mistral,
            "qwen2" => Self::Qwen2,
            "qwen3" => Self::Qwen3,
            "qwen3_moe" => Self::Qwen3Moe,
            "qwen3_next" => Self::Qwen3Next,
            "gemma" => Self::Gemma,
            "gemma2" => Self::Gemma2,
            "gemma3_text" => Self::Gemma3,
            _ => return None,
        })
    }

    pub(crate) fn named(keys: &Keys) -> Result<Self> {
        let name = keys.text("model_type")?;
        name.and_then(Self::of_name).ok_or_else(|| {
            let reason = name.map_or("it is not there".to_owned(), |other| format!("{other} is not read"));
            let help = "there are llama, mistral, qwen2, qwen3, qwen3_moe, qwen3_next, gemma, gemma2 and gemma3_text: \
                        take such a model";
            keys.wrong("model_type", reason, help)
        })
    }

    pub(crate) fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3)
    }
}
