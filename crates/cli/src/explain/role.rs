//! The role of a parameter in a model, from its name and its axes.

use std::fmt;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use serde::Serialize;
use tacit_core::{Result, Value};

/// The use of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Role {
    /// The weight of a linear layer, `[out, in]`.
    Linear,
    /// The rows of an embedding, one a token.
    Rows,
    /// Linear layers, of which each token has one: `[experts, out, in]`.
    Experts,
}

impl Role {
    /// The roles that a parameter has in a model, by its path and its axes; none for a vector or what is no float.
    pub(super) fn of_parameter(path: &str, value: &Value) -> Result<Vec<Self>> {
        let aval = value.aval()?;
        // As most models name it: embed_tokens, token_embd, word_embeddings, wte.
        let embedding = ["emb", "wte", "wpe"].iter().any(|part| path.contains(part));
        Ok(match aval.shape.len() {
            _ if !aval.dtype.is_float() => Vec::new(),
            2 if embedding => vec![Self::Rows, Self::Linear],
            2 => vec![Self::Linear],
            3 => vec![Self::Experts],
            _ => Vec::new(),
        })
    }

    /// The call of a model, plain code that does not know what the weight is.
    pub(super) fn call(self, weight: &Array, tokens: &[i32]) -> Result<Array, Exception> {
        let chosen = || ops::zeros_dtype(tokens, Dtype::Uint32);
        let x = |axes: &[i32]| ops::zeros_dtype(&[tokens, axes].concat(), weight.dtype());
        let width = weight.dim(-1);
        match self {
            Self::Linear => x(&[width])?.matmul(weight.t()),
            Self::Rows => weight.take_axis(chosen()?, 0),
            Self::Experts => ops::gather_mm(x(&[1, width])?, weight.swap_axes(-1, -2)?, None, &chosen()?, None),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linear => "x @ w.T",
            Self::Rows => "w[tokens]",
            Self::Experts => "x @ w[chosen].T",
        })
    }
}
