//! Tokens drawn from logits, by ops of the graph alone.

use std::collections::BTreeMap;

use mlx_rs::ops::indexing::{TryIndexOp, argmax_axis};
use mlx_rs::{Array, Dtype, ops, random};
use tacit_core::{Error, Result, Tree};

/// How the next token is drawn from logits.
///
/// Bias and repetition penalty change the logits. Top-p, min-p and top-k then leave some tokens out, each by the
/// probabilities at temperature 1 of all tokens; the temperature shapes what is left. Names, order and meaning are those of mlx-lm
/// (`mlx_lm/sample_utils.py`), where 0 turns a filter off as well; here a `top_k` of the vocabulary or more keeps everything.
/// Of equal logits at the border of a filter, any may be the ones that stay.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_nn::generate::Sampler;
///
/// let sampler = Sampler { temperature: 0.5, top_k: 2, ..Sampler::default() };
/// let logits = Array::from_slice(&[1.0f32, 3.0, 2.0, 0.0], &[1, 4]);
/// let mut state = sampler.start(7, &[[0u32]])?;
/// let drawn = sampler.sample(&logits, &mut state)?.tokens.item_exact::<u32>();
/// assert!(drawn == 1 || drawn == 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sampler {
    /// The logits are divided by it; with 0 the token with the largest logit is taken.
    pub temperature: f32,
    /// Only so many of the likeliest tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only the likeliest tokens are kept, as many as needed for this total probability; 0 and 1 keep all.
    pub top_p: f32,
    /// Only tokens with at least this fraction of the largest probability are kept; 0 keeps all.
    pub min_p: f32,
    /// Logits of recent tokens are divided by it where they are positive, and multiplied where they are not (Keskar et al.,
    /// [arXiv:1909.05858](https://arxiv.org/abs/1909.05858)); 1 and 0 change nothing.
    pub repetition_penalty: f32,
    /// How many of the last tokens are recent. For [`generate`](super::generate()) it may be greater than the text is long.
    pub repetition_window: usize,
    /// What is added to the logits of single tokens; minus infinity forbids one.
    pub bias: BTreeMap<u32, f32>,
}

/// The most tokens that a penalty looks back at: the longest contexts that there are, and 64 MB a sequence.
const MOST_RECENT: usize = 1 << 24;

impl Default for Sampler {
    /// The likeliest token, always; with a temperature, a draw from all tokens. A repetition penalty looks at 20 tokens.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: 20,
            bias: BTreeMap::new(),
        }
    }
}

/// What a [`Sampler`] carries from one token to the next: arrays alone, so that no compiled step is traced anew.
#[derive(Tree, Clone, Debug)]
pub struct SamplerState {
    /// The key of the next draw.
    pub(super) key: Array,
    /// The last tokens of each sequence, `u32[batch, window]`, where there is a repetition penalty.
    pub(super) recent: Option<Array>,
}

/// What was drawn.
#[derive(Tree, Clone, Debug)]
pub struct Sampled {
    /// A token of the vocabulary for each row of logits: `u32[batch]`.
    pub tokens: Array,
    /// Whether the row's logits were a distribution: `bool[batch]`. They are no distribution where one of them is NaN or infinity, or all
    /// are minus infinity; the token is then an arbitrary one.
    pub valid: Array,
}

/// What filters leave of logits.
struct Candidates {
    /// Logits at the temperature, their largest 0, those left out minus infinity: `f32[batch, n]`.
    logits: Array,
    /// Which tokens they are of, `u32[batch, n]`, where they are not in the vocabulary's order.
    ids: Option<Array>,
}

impl Sampler {
    /// Checks that each option is within its bounds.
    ///
    /// # Errors
    ///
    /// One of them is not.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str, value: f32, help: &str| Err(Error::invalid(format!("{what} is {value}"), help));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong("the temperature", self.temperature, "give 0 for the likeliest token, or a positive number");
        }
        for (name, value) in [("top-p", self.top_p), ("min-p", self.min_p)] {
            if !(0.0..=1.0).contains(&value) {
                return wrong(name, value, "give a probability, from 0 to 1");
            }
        }
        if !(self.repetition_penalty >= 0.0 && self.repetition_penalty.is_finite()) {
            return wrong(
                "the repetition penalty",
                self.repetition_penalty,
                "give a positive number; 1 changes nothing",
            );
        }
        if self.penalizes() && self.repetition_window == 0 {
            return Err(Error::invalid(
                format!("a repetition penalty of {} looks at no tokens", self.repetition_penalty),
                "give a `repetition_window` of at least 1, or a penalty of 1, which changes nothing",
            ));
        }
        match self.bias.iter().find(|(_, bias)| bias.is_nan() || **bias == f32::INFINITY) {
            Some((token, bias)) => Err(Error::invalid(
                format!("the bias of token {token} is {bias}"),
                "give a number, or minus infinity to forbid the token",
            )),
            None => Ok(()),
        }
    }

    /// The state before the first draw after these prompts, one a sequence.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check); or there is a repetition penalty, and a prompt is empty or the window is of more than 2^24 tokens.
    pub fn start<P: AsRef<[u32]>>(&self, seed: u64, prompts: &[P]) -> Result<SamplerState> {
        self.check()?;
        let recent = if self.penalizes() {
            let window = self.repetition_window;
            if window > MOST_RECENT {
                return Err(Error::invalid(
                    format!("a repetition penalty looks at {window} tokens, and each step at as many"),
                    format!(
                        "give a `repetition_window` of at most {MOST_RECENT}, or no more than there will be tokens"
                    ),
                ));
            }
            let mut recent = Vec::with_capacity(prompts.len() * window);
            for prompt in prompts {
                let prompt = prompt.as_ref();
                let last = &prompt[prompt.len().saturating_sub(window)..];
                let Some(&first) = last.first() else {
                    return Err(Error::invalid(
                        "a prompt is empty",
                        "give at least one token, such as the one that begins a text",
                    ));
                };
                // The penalty is of a set, so that a token may fill what a short prompt leaves.
                recent.extend(std::iter::repeat_n(first, window - last.len()).chain(last.iter().copied()));
            }
            Some(Array::from_slice(&recent, &[prompts.len() as i32, window as i32]))
        } else {
            None
        };
        Ok(SamplerState { key: random::key(seed)?, recent })
    }

    /// Draws a token of each row of `logits: [batch, vocabulary]`, in the graph: it may stand in a compiled step.
    ///
    /// # Errors
    ///
    /// The logits are no matrix; the vocabulary does not have a token that has a bias; the state is of another sampler or batch.
    pub fn sample(&self, logits: &Array, state: &mut SamplerState) -> Result<Sampled> {
        let Sampled { tokens, valid } = self.sample_columns(logits, state)?;
        Ok(Sampled { tokens: tokens.squeeze_axes(&[-1])?, valid: valid.squeeze_axes(&[-1])? })
    }

    /// The same as columns, `[batch, 1]`: a step takes its tokens so.
    pub(super) fn sample_columns(&self, logits: &Array, state: &mut SamplerState) -> Result<Sampled> {
        let (logits, valid) = self.adjusted(logits, state.recent.as_ref())?;
        let tokens = if self.temperature == 0.0 {
            // Of a row that is no distribution it is some token, too.
            argmax_axis(&logits, -1, true)?
        } else {
            let (next, key) = random::split(&state.key, 2)?;
            let candidates = self.candidates(&logits, &valid)?;
            let drawn = random::categorical(&candidates.logits, -1, None, &key)?.expand_dims(-1)?;
            state.key = next;
            match &candidates.ids {
                Some(ids) => ids.take_along_axis(&drawn, -1)?,
                None => drawn,
            }
        };
        if let Some(recent) = &mut state.recent {
            *recent = ops::concatenate(&[&*recent, &tokens], 1)?.try_index((.., 1..))?;
        }
        Ok(Sampled { tokens, valid })
    }

    /// The probabilities that [`sample`](Self::sample) draws by: `f32[batch, vocabulary]`, NaN in rows that are no
    /// distribution.
    ///
    /// # Errors
    ///
    /// As for [`sample`](Self::sample).
    pub fn probabilities(&self, logits: &Array, state: &SamplerState) -> Result<Array> {
        let (logits, valid) = self.adjusted(logits, state.recent.as_ref())?;
        let probabilities = self.distribution(&logits, &valid)?;
        Ok(ops::select(valid, probabilities, Array::from_f32(f32::NAN))?)
    }

    /// Which of recent tokens follow from one more: the rows of `recent: u32[1, window]` before each of `tokens: u32[n]` and
    /// after the last, `u32[n + 1, window]`.
    pub(super) fn recent_along(recent: &Array, tokens: &Array) -> Result<Array> {
        let window = recent.dim(1);
        let sequence = ops::concatenate(&[&recent.reshape(&[-1])?, tokens], 0)?;
        let places = ops::arange::<_, i32>(0, tokens.dim(0) + 1, None)?.expand_dims(1)?;
        Ok(sequence.take_axis(places.add(ops::arange::<_, i32>(0, window, None)?)?, 0)?)
    }

    /// The probabilities of logits that are adjusted.
    fn distribution(&self, logits: &Array, valid: &Array) -> Result<Array> {
        let vocabulary = logits.dim(-1);
        if self.temperature == 0.0 {
            let likeliest = argmax_axis(logits, -1, true)?;
            return Ok(ops::arange::<_, u32>(0, vocabulary, None)?.eq(likeliest)?.as_dtype(Dtype::Float32)?);
        }
        let candidates = self.candidates(logits, valid)?;
        let probabilities = ops::softmax_axis(&candidates.logits, -1, None)?;
        Ok(match &candidates.ids {
            Some(ids) => ops::zeros::<f32>(&[logits.dim(0), vocabulary])?.put_along_axis(ids, probabilities, -1)?,
            None => probabilities,
        })
    }

    /// The logits in `f32` with bias and penalty, and which rows are a distribution: `bool[batch, 1]`.
    fn adjusted(&self, logits: &Array, recent: Option<&Array>) -> Result<(Array, Array)> {
        let &[batch, vocabulary] = logits.shape() else {
            return Err(Error::invalid(
                format!("tokens are drawn from logits of shape {:?}", logits.shape()),
                "give those of one position of each sequence, of shape [batch, vocabulary]",
            ));
        };
        if recent.is_some() != self.penalizes() || recent.is_some_and(|recent| recent.dim(0) != batch) {
            return Err(Error::invalid(
                format!("the state of a sampler is not that of {batch} sequences with these options"),
                "make it with `Sampler::start` of the same sampler, with as many prompts as there are sequences",
            ));
        }
        if let Some((token, _)) = self.bias.last_key_value().filter(|(token, _)| **token >= vocabulary as u32) {
            return Err(Error::invalid(
                format!("token {token} has a bias, and the vocabulary has {vocabulary} tokens"),
                "leave it out, or use the tokenizer of this model",
            ));
        }
        let mut logits = logits.as_dtype(Dtype::Float32)?;
        if !self.bias.is_empty() {
            let tokens: Vec<u32> = self.bias.keys().copied().collect();
            let added: Vec<f32> = self.bias.values().copied().collect();
            let shape = [1, tokens.len() as i32];
            let tokens = ops::broadcast_to(Array::from_slice(&tokens, &shape), &[batch, shape[1]])?;
            let changed = logits.take_along_axis(&tokens, -1)?.add(Array::from_slice(&added, &shape))?;
            logits = logits.put_along_axis(&tokens, changed, -1)?;
        }
        if let Some(recent) = recent {
            let penalty = Array::from_f32(self.repetition_penalty);
            // A token that only the tokenizer knows has no logit: another recent one stands for it, which is penalized once
            // however often it is there, and where none is known nothing changes.
            let known = recent.lt(Array::from_slice(&[vocabulary as u32], &[1]))?;
            let other = ops::select(&known, recent, Array::from_slice(&[0u32], &[1]))?.max_axis(-1, true)?;
            let recent = ops::select(&known, recent, other)?;
            let chosen = logits.take_along_axis(&recent, -1)?;
            let negative = chosen.lt(Array::from_f32(0.0))?;
            let changed = ops::select(negative, chosen.multiply(&penalty)?, chosen.divide(&penalty)?)?;
            let changed = ops::select(known.any_axis(-1, true)?, changed, chosen)?;
            logits = logits.put_along_axis(&recent, changed, -1)?;
        }
        // NaN is the largest of whatever it is among. A finite number less itself is 0; infinity or NaN less itself is NaN, and NaN
        // is not equal to itself. `is_finite` would be eight nodes.
        let largest = logits.max_axis(-1, true)?;
        let difference = largest.subtract(&largest)?;
        let valid = difference.eq(&difference)?;
        Ok((logits, valid))
    }

    /// Every filter keeps some of the largest logits, so that their order does not matter, and that of the least work is chosen.
    /// Rows that are no distribution count as zeros: NaN has no place in an order.
    fn candidates(&self, logits: &Array, valid: &Array) -> Result<Candidates> {
        let logits = ops::select(valid, logits, Array::from_f32(0.0))?;
        let vocabulary = logits.dim(-1);
        let largest = logits.max_axis(-1, true)?;
        let mut scores = logits.subtract(&largest)?;
        // Of all tokens, whatever is left out.
        let total = ops::logsumexp_axis(&scores, -1, true)?;
        let mut ids = None;
        if self.top_k > 0 && self.top_k < vocabulary as usize {
            let k = self.top_k as i32;
            let top = ops::argpartition_axis(scores.negative()?, k - 1, -1)?.try_index((.., ..k))?;
            scores = scores.take_along_axis(&top, -1)?;
            ids = Some(top);
        }
        let left_out = Array::from_f32(f32::NEG_INFINITY);
        if 0.0 < self.top_p && self.top_p < 1.0 {
            let order = ops::argsort_axis(scores.negative()?, -1)?;
            scores = scores.take_along_axis(&order, -1)?;
            ids = Some(match ids {
                Some(ids) => ids.take_along_axis(&order, -1)?,
                None => order,
            });
            let likelier = scores.subtract(&total)?.exp()?.cumsum(-1, false, false)?;
            scores = ops::select(likelier.lt(Array::from_f32(self.top_p))?, scores, &left_out)?;
        }
        if self.min_p > 0.0 {
            let least = Array::from_f32(self.min_p.ln());
            scores = ops::select(scores.ge(least)?, scores, &left_out)?;
        }
        Ok(Candidates { logits: scores.divide(Array::from_f32(self.temperature))?, ids })
    }

    fn penalizes(&self) -> bool {
        ![0.0, 1.0].contains(&self.repetition_penalty)
    }
}
