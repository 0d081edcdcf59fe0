//! Generation of one token at a time.

use mlx_rs::{Array, transforms};
use tacit_core::tree::{self, Open};
use tacit_core::{Error, Result};

use super::generation::Engine;
use super::stats::Clock;
use super::steps::{Steps, last_of, padded};
use super::{GenerateOptions, GenerateStats, Generation, Sampled, Sampler, SamplerState, Sequences};

/// Runs a step on prompts, in pieces, and then on the tokens that are drawn from its logits.
///
/// The state goes on from what it has seen: given back by another generation or read from a file, the prompts are what follows.
/// Where they differ in length, it is told which tokens are [`padding`](GenerateOptions::padding), and where sequences end at different
/// times, it is left with what each had seen when it ended: see [`Sequences`].
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::Result;
/// use tacit_nn::generate;
/// use tacit_nn::generate::GenerateOptions;
///
/// // After each token comes the next of three, and the state counts them.
/// let table = Array::from_slice(&[0.0f32, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], &[3, 3]);
/// let mut seen = Array::from_int(0);
/// let step = |tokens: &Array, seen: &mut Array| -> Result<Array> {
///     *seen = seen.add(Array::from_int(tokens.dim(1)))?;
///     Ok(table.take_axis(tokens, 0)?)
/// };
/// let options = GenerateOptions { max_tokens: 4, ..GenerateOptions::default() };
/// let ids = generate(step, &mut seen, &[[0, 1]], &options)?.map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>()?;
/// assert_eq!(ids, [2, 0, 1, 2]);
/// assert_eq!(seen.item_exact::<i32>(), 6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// An option or a prompt cannot be used; the state of several prompts does not know its sequences, cannot be padded, or has sinks
/// that the prompts do not fill. The step fails on a prompt, or a token without a logit has a bias: the state has then seen the
/// pieces before, or is what it was if there is padding. The iterator fails where the step does, and where logits of a sequence that
/// goes on are no distribution, because one is NaN: what the state has seen of that is in it. So is what fails only when it is
/// computed, such as a token that a model does not know: unless there is padding, the state is then of no more use.
pub fn generate<'a, S: Sequences, E: Into<Error>>(
    step: impl FnMut(&Array, &mut S) -> Result<Array, E> + 'a,
    state: &'a mut S,
    prompts: &[impl AsRef<[u32]>],
    options: &GenerateOptions,
) -> Result<Generation<'a>> {
    let clock = Clock::start();
    options.check(prompts)?;
    let sampler = options.bounded_sampler(prompts);
    let sampling = sampler.start(options.seed, prompts)?;
    let steps = Steps::new(step, state);
    let ended = prompts.iter().map(|_| None).collect();
    let mut engine = Plain { steps, sampler, sampling, lookahead: options.lookahead, next: None, ended };
    engine.prefill(prompts, options)?;
    let count = prompts.iter().map(|prompt| prompt.as_ref().len()).sum();
    Ok(Generation::new(Box::new(engine), options, prompts.len(), count, clock))
}

struct Plain<'a, S> {
    steps: Steps<'a, S>,
    sampler: Sampler,
    sampling: SamplerState,
    lookahead: bool,
    /// What the state's last tokens led to, as columns, or why nothing.
    next: Option<Result<Sampled>>,
    /// What each sequence had seen that ended while others went on.
    ended: Vec<Option<S>>,
}

impl<S: Sequences> Plain<'_, S> {
    /// Gives the state the prompts, and begins the first tokens.
    fn prefill<P: AsRef<[u32]>>(&mut self, prompts: &[P], options: &GenerateOptions) -> Result<()> {
        let lengths: Vec<i32> = prompts.iter().map(|prompt| prompt.as_ref().len() as i32).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        // What was told of padding holds for these prompts alone.
        let before = lengths.iter().any(|&length| length < longest).then(|| self.steps.state.clone());
        if prompts.len() > 1 {
            self.steps.state.pad_left(longest, &lengths)?;
        }
        let tokens = padded(prompts, options.padding.unwrap_or(0));
        let begun = self.steps.prefill(&tokens, options.prefill).and_then(|last| self.begin(&last));
        if let (Err(_), Some(before)) = (&begun, before) {
            *self.steps.state = before;
        }
        self.next = Some(Ok(begun?));
        Ok(())
    }

    /// Keeps what sequences have seen that ended with the last token.
    fn keep_ended(&mut self, open: &[bool]) -> Result<()> {
        let mut rows = Vec::new();
        for (row, _) in open.iter().enumerate().filter(|(_, open)| !**open) {
            if self.ended[row].is_none() {
                // A part of a buffer would hold the whole, which is then no longer written in place.
                let state = tree::map(&self.steps.state.select(&[row as i32])?, Open::Fully, |leaf| {
                    leaf.as_dense().map_or_else(|| Ok(leaf.clone()), |array| Ok(array.contiguous()?.into()))
                })?;
                rows.push(row);
                self.ended[row] = Some(state);
            }
        }
        tree::async_eval(&rows.iter().map(|&row| &self.ended[row]).collect::<Vec<_>>())
    }

    /// Puts what sequences had seen when they ended in the place of what came after.
    fn restore_ended(&mut self) -> Result<()> {
        if self.ended.iter().all(Option::is_none) {
            return Ok(());
        }
        let rows = self.ended.iter_mut().enumerate();
        let parts = rows.map(|(row, state)| state.take().map_or_else(|| self.steps.state.select(&[row as i32]), Ok));
        *self.steps.state = S::merge(&parts.collect::<Result<Vec<S>>>()?)?;
        Ok(())
    }

    /// Draws what follows `tokens: u32[batch, 1]`, in columns as well, as a graph. Where that fails, the state is what it was.
    fn draw(&mut self, tokens: &Array) -> Result<Sampled> {
        self.steps.then(tokens, |logits| self.sampler.sample_columns(&last_of(logits)?, &mut self.sampling))
    }

    /// The same, and begins to compute it.
    fn begin(&mut self, tokens: &Array) -> Result<Sampled> {
        let drawn = self.draw(tokens)?;
        self.steps.begin([drawn.tokens.clone(), drawn.valid.clone(), self.sampling.key.clone()])?;
        Ok(drawn)
    }
}

impl<S: Sequences> Engine for Plain<'_, S> {
    fn advance(&mut self, room: usize, open: &[bool], _: &mut GenerateStats) -> Result<Vec<Vec<u32>>> {
        self.keep_ended(open)?;
        let drawn = self.next.take().ok_or_else(ended)??;
        // The last token goes to the state as well, but nothing is computed of that unless somebody goes on.
        let begins = room > 1;
        if self.lookahead && begins {
            self.next = Some(self.begin(&drawn.tokens));
        }
        let tokens = read(&drawn, open).inspect_err(|_| self.next = None)?;
        if !self.lookahead && begins {
            self.next = Some(self.begin(&drawn.tokens));
        } else if !begins {
            self.next = Some(self.draw(&drawn.tokens));
        }
        Ok(tokens.into_iter().map(|token| vec![token]).collect())
    }

    fn end(&mut self, _: usize) -> Result<()> {
        self.restore_ended()
    }

    fn fail(&mut self) {
        // The error that is told is the one that it failed with.
        let _ = self.restore_ended();
    }
}

fn ended() -> Error {
    Error::invalid("the generation has ended", "begin another with the last token as its prompt")
}

/// The tokens on the host, those of sequences that are not open whatever they are.
fn read(drawn: &Sampled, open: &[bool]) -> Result<Vec<u32>> {
    transforms::eval([&drawn.tokens, &drawn.valid])?;
    let valid = drawn.valid.as_slice::<bool>();
    match valid.iter().zip(open).position(|(valid, open)| *open && !valid) {
        Some(row) => Err(no_distribution(row)),
        None => Ok(drawn.tokens.as_slice::<u32>().to_vec()),
    }
}

pub(super) fn no_distribution(sequence: usize) -> Error {
    Error::invalid(
        format!(
            "the logits of sequence {sequence} are no distribution: one is NaN or infinity, or all are minus infinity"
        ),
        "look for NaN in the weights, or for half floats that overflow; begin again with new caches",
    )
}
