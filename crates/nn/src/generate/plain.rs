//! One token at a time.

use mlx_rs::{Array, transforms};
use tacit_core::{Error, Result, Tree};

use super::generation::Engine;
use super::stats::Clock;
use super::steps::{Steps, padded};
use super::{Generation, Options, Sampled, Sampler, SamplerState, Stats};

/// Runs a step on prompts, in pieces, and then on the tokens that are drawn from its logits.
///
/// The state goes on from what it has seen: given back by another generation or read from a file, the prompts are what follows.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::Result;
/// use tacit_nn::generate;
/// use tacit_nn::generate::Options;
///
/// // After each token comes the next of three, and the state counts them.
/// let table = Array::from_slice(&[0.0f32, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], &[3, 3]);
/// let mut seen = Array::from_int(0);
/// let step = |tokens: &Array, seen: &mut Array| -> Result<Array> {
///     *seen = seen.add(Array::from_int(tokens.dim(1)))?;
///     Ok(table.take_axis(tokens, 0)?)
/// };
/// let options = Options { max_tokens: 4, ..Options::default() };
/// let ids = generate(step, &mut seen, &[[0, 1]], &options)?.map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>()?;
/// assert_eq!(ids, [2, 0, 1, 2]);
/// assert_eq!(seen.item_exact::<i32>(), 6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// An option or a prompt cannot be used; the step fails on a prompt, and the state has then seen the pieces before. The iterator
/// fails where the step does, and where logits are no distribution, because one is NaN: what the state has seen of that is in it.
pub fn generate<'a, S, E>(
    step: impl FnMut(&Array, &mut S) -> Result<Array, E> + 'a,
    state: &'a mut S,
    prompts: &[impl AsRef<[u32]>],
    options: &Options,
) -> Result<Generation<'a>>
where
    S: Tree + Clone,
    E: Into<Error>,
{
    let clock = Clock::start();
    options.check(prompts)?;
    let sampling = options.sampler.start(options.seed, prompts)?;
    let steps = Steps::new(step, state);
    let mut engine =
        Plain { steps, sampler: options.sampler.clone(), sampling, lookahead: options.lookahead, next: None };
    if options.max_tokens > 0 {
        let last = engine.steps.prefill(&padded(prompts, options.padding.unwrap_or(0)), options.prefill)?;
        engine.next = Some(Ok(engine.begin(&last)?));
    }
    let count = prompts.iter().map(|prompt| prompt.as_ref().len()).sum();
    Ok(Generation::new(Box::new(engine), options, prompts.len(), count, clock))
}

struct Plain<'a, S> {
    steps: Steps<'a, S>,
    sampler: Sampler,
    sampling: SamplerState,
    lookahead: bool,
    /// What the state's last tokens led to, or why nothing.
    next: Option<Result<Sampled>>,
}

impl<S: Tree + Clone> Plain<'_, S> {
    /// Draws what follows `tokens: u32[batch, 1]`, as a graph.
    fn draw(&mut self, tokens: &Array) -> Result<Sampled> {
        let logits = self.steps.last_logits(tokens)?;
        self.sampler.sample(&logits, &mut self.sampling)
    }

    /// The same, and begins to compute it.
    fn begin(&mut self, tokens: &Array) -> Result<Sampled> {
        let drawn = self.draw(tokens)?;
        self.steps.begin([drawn.tokens.clone(), drawn.valid.clone(), self.sampling.key.clone()])?;
        Ok(drawn)
    }
}

impl<S: Tree + Clone> Engine for Plain<'_, S> {
    fn advance(&mut self, room: usize, _: &mut Stats) -> Result<Vec<Vec<u32>>> {
        let drawn = self.next.take().ok_or_else(ended)??;
        let column = drawn.tokens.expand_dims(-1)?;
        // The last token goes to the state as well, but nothing is computed of that unless somebody goes on.
        let begins = room > 1;
        if self.lookahead && begins {
            self.next = Some(self.begin(&column));
        }
        let tokens = read(&drawn).inspect_err(|_| self.next = None)?;
        if !self.lookahead && begins {
            self.next = Some(self.begin(&column));
        } else if !begins {
            self.next = Some(self.draw(&column));
        }
        Ok(tokens.into_iter().map(|token| vec![token]).collect())
    }

    fn end(&mut self, _: usize) -> Result<()> {
        Ok(())
    }
}

fn ended() -> Error {
    Error::invalid("the generation has ended", "begin another with the last token as its prompt")
}

/// The tokens on the host.
fn read(drawn: &Sampled) -> Result<Vec<u32>> {
    transforms::eval([&drawn.tokens, &drawn.valid])?;
    let valid = drawn.valid.as_slice::<bool>();
    match valid.iter().position(|valid| !valid) {
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
