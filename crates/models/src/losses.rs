//! What a decoder loses on a text, token by token.

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use tacit_core::{Aval, Error, Result};
use tacit_nn::Model;
use tacit_nn::training::chunked_cross_entropy;

use crate::config::Config;
use crate::decoder::{Decoder, Positions, caches};
use crate::load::{EMBEDDING, HEAD};

/// The cross entropy of each token of `tokens: u32[batch, n]` but the first, after those before it: `f32[batch, n - 1]`.
///
/// The logits, which for a large vocabulary take more memory than all else, are computed in chunks, in the gradient too: see
/// [`chunked_cross_entropy`]. Average those of the tokens that count, such as those of answers; the exponential of the mean of
/// all is the perplexity. This is the loss of [`Model::value_and_grad`] as well:
///
/// ```no_run
/// # fn main() -> tacit_core::Result<()> {
/// # let tokens = mlx_rs::Array::from_slice(&[1u32, 2, 3], &[1, 3]);
/// use tacit_models::{load, token_losses};
/// use tacit_nn::{LoraConfig, ParameterFilter};
///
/// let (config, model) = load("Qwen3-0.6B-4bit")?;
/// let mut model = model.lora("*_proj.weight", LoraConfig::default())?;
/// let (loss, gradients) = model.value_and_grad(ParameterFilter::Lora, &tokens, |model, tokens| {
///     Ok::<_, tacit_core::Error>(token_losses(&config, model, tokens)?.mean(None)?)
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The tokens are no integers of two axes, or fewer than two in a row. Where a token is not in the vocabulary, the eval of the
/// losses is an error.
pub fn token_losses(config: &Config, model: &mut Model<Decoder>, tokens: &Array) -> Result<Array> {
    let &[batch, count] = tokens.shape() else { return Err(too_few(tokens)) };
    if count < 2 {
        return Err(too_few(tokens));
    }
    let dtype = model.get(EMBEDDING)?.aval()?.dtype;
    // Codes of half floats would have no gradient.
    let dense = caches(config, batch, dtype)?.into_iter().map(|cache| cache.stored(None, None));
    let mut caches = dense.collect::<Result<Vec<_>>>()?;
    caches.iter_mut().try_for_each(|cache| cache.reserve(count - 1))?;
    let (given, targets) = (tokens.try_index((.., ..-1))?, tokens.try_index((.., 1..))?);
    let x = model.run_with(&mut caches, |decoder, caches| decoder.hidden(&given, caches, Positions::All))?;
    let head = model.used(if config.tied == Some(true) { EMBEDDING } else { HEAD })?;
    let config = config.clone();
    chunked_cross_entropy(x, head, &targets, None, move |x, w| config.capped_logits(x.matmul(w.t())?))
}

fn too_few(tokens: &Array) -> Error {
    Error::invalid(
        format!("the losses of tokens {}", Aval::from(tokens)),
        "give rows of at least two tokens, `[batch, n]`",
    )
}
