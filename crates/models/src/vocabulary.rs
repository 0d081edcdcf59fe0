//! Tokens that are known to be words before an embedding is looked up by them.

use std::error::Error;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Input, Kernel, Output, apply};
use tacit_core::{Aval, Param, Result};

/// The same tokens as `i32`, an error of the eval where one is outside a vocabulary of so many words.
///
/// MLX's gather reads whatever lies behind a table. A prompt comes from a tokenizer that need not be the model's, and what a
/// step is given may be computed only when it runs: so the check is in the graph, before the gather.
///
/// # Errors
///
/// The tokens are no integers.
pub(crate) fn known(tokens: &Array, words: i32) -> Result<Array> {
    let tokens = match tokens.dtype() {
        Dtype::Uint32 | Dtype::Int32 => tokens.clone(),
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Int8 | Dtype::Int16 => tokens.as_dtype(Dtype::Int32)?,
        _ => {
            return Err(tacit_core::Error::invalid(
                format!("the tokens of a step are {}", Aval::from(tokens)),
                "give their places in the vocabulary as u32 or i32",
            ));
        }
    };
    Ok(apply(KnownTokens { words }, &[tokens])?.remove(0))
}

struct KnownTokens {
    words: i32,
}

type Fallible<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

impl Kernel for KnownTokens {
    fn name(&self) -> &'static str {
        "KnownTokens"
    }

    fn params(&self) -> Option<Vec<(&'static str, Param)>> {
        Some(vec![("words", Param::Int(i64::from(self.words)))])
    }

    fn output_avals(&self, inputs: &[Aval]) -> Fallible<Vec<Aval>> {
        Ok(vec![Aval::new(&inputs[0].shape, Dtype::Int32)])
    }

    fn eval_cpu(&self, inputs: &[Input<'_>], outputs: &mut [Output<'_>]) -> Fallible<()> {
        let made = outputs[0].elements::<i32>()?;
        let mut write = |tokens: &mut dyn Iterator<Item = i64>| {
            for (made, token) in made.iter_mut().zip(tokens) {
                let known = i32::try_from(token).ok().filter(|token| (0..self.words).contains(token));
                *made = known.ok_or_else(|| {
                    format!(
                        "token {token} is given to a model that knows those from 0 to {}\n\
                         help: use the tokenizer of this model, and begin again with new caches",
                        self.words - 1
                    )
                })?;
            }
            Ok(())
        };
        if inputs[0].aval().dtype == Dtype::Int32 {
            write(&mut inputs[0].elements::<i32>()?.iter().map(|&token| i64::from(token)))
        } else {
            write(&mut inputs[0].elements::<u32>()?.iter().map(|&token| i64::from(token)))
        }
    }

    /// A device that has no errors looks up the nearest word.
    fn decompose(&self, inputs: &[Array]) -> Fallible<Vec<Array>> {
        let ends = (Array::from_int(0), Array::from_int(self.words - 1));
        // What is beyond `i32` is negative there, and no word either.
        Ok(vec![ops::clip(inputs[0].as_dtype(Dtype::Int32)?, (&ends.0, &ends.1))?])
    }
}
