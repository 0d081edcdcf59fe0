//! The check that tokens are inside the vocabulary, before an embedding is looked up by them.

use mlx_rs::{Array, Dtype};
use tacit_core::extra_ops::checked_numbers;
use tacit_core::{Aval, Error, Result};

/// The same tokens as `u32`, an error of the eval where one is outside a vocabulary of so many words.
///
/// MLX's gather reads whatever lies behind a table. A prompt comes from a tokenizer that need not be the model's, and what a
/// step is given may be computed only when it runs: so the check is in the graph, before the gather.
///
/// # Errors
///
/// The tokens are no integers of at most 32 bits, or have not two axes.
pub(crate) fn known(tokens: &Array, words: i32) -> Result<Array> {
    use Dtype::{Int8, Int16, Int32, Uint8, Uint16, Uint32};
    if tokens.ndim() != 2 || !matches!(tokens.dtype(), Int8 | Int16 | Int32 | Uint8 | Uint16 | Uint32) {
        return Err(Error::invalid(
            format!("the tokens of a step are {}", Aval::from(tokens)),
            "give their places in the vocabulary as u32 or i32, `[batch, n]`",
        ));
    }
    checked_numbers(tokens, words, "token", "use the tokenizer of this model, and begin again with new caches")
}
