//! How well a decoder predicts a text.

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use tacit_core::compile::{CompileOptions, compile_with, compile_with_state};
use tacit_core::{Error, Result};
use tacit_nn::Model;
use tacit_nn::training::cross_entropy;

use crate::config::Config;
use crate::decoder::Decoder;
use crate::losses::{head, hidden};

/// Bytes of the logits, as `f32`, that are there at a time.
const LOGITS: i32 = 64 << 20;

/// Which tokens of a window count in a perplexity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Convention {
    /// Those of its later half but the first, which have half a window before them, as `llama-perplexity` of llama.cpp counts.
    #[default]
    LlamaCpp,
    /// All but its first, as `mlx_lm.perplexity` counts.
    MlxLm,
}

/// A text in windows, each of which is read by itself.
///
/// The windows follow each other without overlap. The tokens behind the last whole window do not count.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'t> {
    /// The tokens of the text.
    pub tokens: &'t [u32],
    /// How many tokens a window has.
    pub length: usize,
    /// Which of them count.
    pub convention: Convention,
    /// What stands in the place of the first token of each window: llama.cpp puts there the one that begins a text.
    pub first: Option<u32>,
}

/// The perplexity of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// The exponential of the mean loss of the tokens that count.
    pub perplexity: f64,
    /// Its standard error, as if the losses were independent; `None` for one token.
    pub error: Option<f64>,
    /// How many tokens counted.
    pub tokens: usize,
}

/// Measures the perplexity of a text, window by window, and calls `progress` with the number of windows done and of all.
///
/// Numbers can be compared where the text, the tokens, the length of the windows and the convention are the same.
///
/// ```no_run
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_models::{Convention, Windows, load, perplexity};
///
/// let (config, mut model) = load("Qwen3-0.6B-4bit")?;
/// # let tokens = vec![0; 8192];
/// let windows = Windows { tokens: &tokens, length: 512, convention: Convention::MlxLm, first: None };
/// let found = perplexity(&config, &mut model, &windows, |_, _| ())?;
/// println!("{} +- {:?}", found.perplexity, found.error);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// No token counts, because the windows are too short or the text is; a token is not in the vocabulary; a loss is not finite.
pub fn perplexity(
    config: &Config,
    model: &mut Model<Decoder>,
    windows: &Windows<'_>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Perplexity> {
    let &Windows { tokens, length, convention, first } = windows;
    // Of losses, of which the first token has none.
    let uncounted = match convention {
        Convention::LlamaCpp => length / 2,
        Convention::MlxLm => 0,
    };
    let least = match convention {
        Convention::LlamaCpp => 3,
        Convention::MlxLm => 2,
    };
    if length < least {
        let message = format!("no token counts in windows of {length} tokens");
        return Err(Error::invalid(message, format!("give at least {least} tokens a window")));
    }
    let total = tokens.len() / length;
    if total == 0 {
        let message = format!("a text of {} tokens has no window of {length}", tokens.len());
        return Err(Error::invalid(message, "give a longer text or shorter windows"));
    }
    if let Some(token) = tokens.iter().chain(&first).find(|&&token| token >= config.vocab_size.unsigned_abs()) {
        let message = format!("token {token} is not among the {} that the model knows", config.vocab_size);
        return Err(Error::invalid(message, "give tokens of this model's tokenizer"));
    }
    let (of_layers, of_losses) = (config.clone(), config.clone());
    let named = |name: &str| CompileOptions { name: name.to_owned(), ..CompileOptions::default() };
    let mut layers =
        compile_with_state(named("the layers on a window"), move |model: &mut Model<Decoder>, tokens: Array| {
            hidden(&of_layers, model, &tokens)
        });
    let mut losses =
        compile_with(named("the losses of some tokens"), move |(x, targets, head): (Array, Array, Array)| {
            cross_entropy(&of_losses.logits(x.matmul(head.t())?)?, &targets)
        });
    let head = head(config, model)?;
    let rows = (LOGITS / 4 / config.vocab_size.max(1)).max(1) as usize;
    let (mut sum, mut squares) = (0.0, 0.0);
    for (done, window) in tokens.chunks_exact(length).enumerate() {
        let mut window = window.to_vec();
        window[0] = first.unwrap_or(window[0]);
        let inputs = Array::from_slice(&window[..length - 1], &[1, length as i32 - 1]);
        let x = layers.call(model, inputs)?.dense()?.squeeze_axes(&[0])?;
        // Of what does not count no logits are made.
        for start in (uncounted..length - 1).step_by(rows) {
            let end = (start + rows).min(length - 1);
            let targets = Array::from_slice(&window[start + 1..=end], &[(end - start) as i32]);
            let x = x.try_index(start as i32..end as i32)?;
            let values = losses.call((x, targets, &head))?.dense()?;
            for (at, &loss) in (start..).zip(values.try_as_slice::<f32>()?) {
                if !loss.is_finite() {
                    let message = format!("the loss of token {} in window {} is {loss}", at + 1, done + 1);
                    let help = "check the weights: some are not finite, or too large for their dtype";
                    return Err(Error::invalid(message, help));
                }
                sum += f64::from(loss);
                squares += f64::from(loss).powi(2);
            }
        }
        progress(done + 1, total);
    }
    let tokens = total * (length - 1 - uncounted);
    let count = tokens as f64;
    let mean = sum / count;
    // Of the mean, by the unbiased variance of the losses; rounding may leave less than nothing of it.
    let error = ((squares / count - mean * mean).max(0.0) / (count - 1.0)).sqrt() * mean.exp();
    Ok(Perplexity { perplexity: mean.exp(), error: (tokens > 1).then_some(error), tokens })
}
