//! The loss of a decoder on a text, token by token.

use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use tacit_arrays::format::AnyFormat;
use tacit_arrays::saved;
use tacit_core::transform::checkpoint;
use tacit_core::{Aval, Error, Result, Value};
use tacit_nn::training::chunked_cross_entropy;
use tacit_nn::{Model, Parameters};

use crate::config::Config;
use crate::decoder::{Decoder, Positions, caches, layer_alone, paths_in_layer};
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
    let (inputs, targets) = apart(tokens)?;
    let x = hidden(config, model, &inputs)?;
    losses(config, model, x, &targets)
}

/// What the head is given, `[batch, n, hidden]`, of tokens that begin a text.
pub(crate) fn hidden(config: &Config, model: &mut Model<Decoder>, tokens: &Array) -> Result<Array> {
    let dtype = model.get(EMBEDDING)?.aval()?.dtype;
    // Codes of half floats would have no gradient.
    let dense = caches(config, tokens.dim(0), dtype)?.into_iter().map(|cache| cache.stored(None, None));
    let mut caches = dense.collect::<Result<Vec<_>>>()?;
    caches.iter_mut().try_for_each(|cache| cache.reserve(tokens.dim(1)))?;
    model.run_with(&mut caches, |decoder, caches| decoder.hidden(tokens, caches, Positions::All))
}

/// The matrix that makes logits, as the model uses it.
pub(crate) fn head(config: &Config, model: &Model<Decoder>) -> Result<Value> {
    model.used(if config.tied == Some(true) { EMBEDDING } else { HEAD })
}

/// The losses of [`token_losses`], whose gradient computes the inside of each layer again in place of keeping it: in the memory of
/// one layer beside what goes from layer to layer, and about a fifth more time.
///
/// A format that [`Model::saved_activations`] gives to parameters of a layer, the first of them that has one, is that of what goes
/// into the layer. The losses stay the same, and the gradients are less exact.
///
/// # Errors
///
/// As for [`token_losses`].
pub fn checkpointed_token_losses(config: &Config, model: &mut Model<Decoder>, tokens: &Array) -> Result<Array> {
    let (inputs, targets) = apart(tokens)?;
    let dtype = model.get(EMBEDDING)?.aval()?.dtype;
    let shared = Rc::new(config.clone());
    let mut x = model.run(|decoder| decoder.embedded(&inputs))?;
    let layers = recomputed_layers(config, model)?;
    for alike in layers.chunk_by(|one, next| one.format == next.format) {
        let run = |x: Array| {
            alike.iter().try_fold(x, |x, layer| {
                let mut again = checkpoint(layer_alone(Rc::clone(&shared), layer.number, dtype));
                again.call((x, layer.parameters.clone()))?.dense()
            })
        };
        x = match alike.first().and_then(|layer| layer.format.as_ref()) {
            Some(format) => saved(format, run)?.call(x)?.dense()?,
            None => run(x)?,
        };
    }
    let x = model.run(|decoder| decoder.normalized(&x))?;
    losses(config, model, x, &targets)
}

/// A layer that a gradient computes again from what goes into it.
struct Recomputed {
    number: usize,
    /// Its parameters by their paths within the layer.
    parameters: Parameters,
    /// The format in which its input is held.
    format: Option<AnyFormat>,
}

fn recomputed_layers(config: &Config, model: &Model<Decoder>) -> Result<Vec<Recomputed>> {
    let mut values = model.used_values()?;
    let layer = |number: usize| -> Result<Recomputed> {
        let (mut parameters, mut format) = (Parameters::new(), None);
        for within in paths_in_layer(config, number)? {
            let path = format!("model.layers.{number}.{within}");
            format = format.or_else(|| model.saved_activations_of(&path).cloned());
            if let Some(value) = values.remove(&path) {
                parameters.insert(within, value);
            }
        }
        Ok(Recomputed { number, parameters, format })
    };
    (0..config.layers.len()).map(layer).collect()
}

/// The tokens that are given, and those that follow them.
fn apart(tokens: &Array) -> Result<(Array, Array)> {
    match tokens.shape() {
        &[_, count] if count >= 2 => Ok((tokens.try_index((.., ..-1))?, tokens.try_index((.., 1..))?)),
        _ => Err(too_few(tokens)),
    }
}

/// The losses of the targets by what the head is given.
fn losses(config: &Config, model: &Model<Decoder>, x: Array, targets: &Array) -> Result<Array> {
    let (head, config) = (head(config, model)?, config.clone());
    chunked_cross_entropy(x, head, targets, None, move |x, w| config.logits(x.matmul(w.t())?))
}

fn too_few(tokens: &Array) -> Error {
    Error::invalid(
        format!("the losses of tokens {}", Aval::from(tokens)),
        "give rows of at least two tokens, `[batch, n]`",
    )
}
