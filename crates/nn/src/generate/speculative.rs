//! Several tokens at a time, of which a smaller model proposes all but one.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops, random, transforms};
use tacit_core::{Error, Result, Tree};

use super::generation::Engine;
use super::plain::no_distribution;
use super::stats::Clock;
use super::steps::{Steps, padded};
use super::verdict::{Verdict, leading};
use super::{GenerateOptions, GenerateStats, Generation, Sampler, SamplerState, Trim};

/// The smaller model of [`speculate`].
pub struct Draft<'a, F, S> {
    /// Its step, on the same vocabulary but for what one of both is filled up with.
    pub step: F,
    /// What it has seen, which is what the model has.
    pub state: &'a mut S,
    /// How many tokens it proposes at a time.
    pub tokens: usize,
}

/// As [`generate`](super::generate()), with tokens that a smaller model proposes and one step of the model judges together.
///
/// Greedily the tokens are those of the model alone, as far as its logits do not depend on how many tokens a step takes. Drawn
/// ones are distributed as the model's own, by accepting and refusing (Leviathan et al. 2023,
/// [arXiv:2211.17192](https://arxiv.org/abs/2211.17192)); filters, temperature and penalty shape both models' probabilities. The
/// step returns the logits of all its tokens, and both states forget what was refused. There is one sequence. Where the draft
/// has more logits than the model, as with vocabularies that are filled up to a round number, it never proposes those; where it
/// has fewer, the last of its own stands for a token that was made and that it does not know; those of the prompt it has to know.
///
/// ```
/// # extern crate tacit_core as tacit;
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::{Result, Tree};
/// use tacit_nn::generate::{Draft, GenerateOptions, Trim, speculate};
///
/// #[derive(Tree, Clone)]
/// struct Seen(Array);
///
/// impl Trim for Seen {
///     fn trim(&mut self, tokens: i32) -> Result<()> {
///         self.0 = self.0.subtract(Array::from_int(tokens))?;
///         Ok(())
///     }
/// }
///
/// let (one, other) = (
///     Array::from_slice(&[0.0f32, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], &[3, 3]),
///     Array::from_slice(&[0.0f32, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0], &[3, 3]),
/// );
/// let step = |table: Array| move |tokens: &Array, seen: &mut Seen| -> Result<Array> {
///     seen.0 = seen.0.add(Array::from_int(tokens.dim(1)))?;
///     Ok(table.take_axis(tokens, 0)?)
/// };
/// let (mut seen, mut drafted) = (Seen(Array::from_int(0)), Seen(Array::from_int(0)));
/// let draft = Draft { step: step(other), state: &mut drafted, tokens: 2 };
/// let options = GenerateOptions { max_tokens: 4, ..GenerateOptions::default() };
/// let ids = speculate(step(one), &mut seen, draft, &[0, 1], &options)?
///     .map(|token| Ok(token?.id))
///     .collect::<Result<Vec<u32>>>()?;
/// assert_eq!(ids, [2, 0, 1, 2]);
/// assert_eq!((seen.0.item_exact::<i32>(), drafted.0.item_exact::<i32>()), (6, 6));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`generate`](super::generate()); a state cannot forget.
pub fn speculate<'a, S, E, D, G, F>(
    step: impl FnMut(&Array, &mut S) -> Result<Array, E> + 'a,
    state: &'a mut S,
    draft: Draft<'a, F, D>,
    prompt: &[u32],
    options: &GenerateOptions,
) -> Result<Generation<'a>>
where
    S: Tree + Clone + Trim,
    D: Tree + Clone + Trim,
    E: Into<Error>,
    F: FnMut(&Array, &mut D) -> Result<Array, G> + 'a,
    G: Into<Error>,
{
    let clock = Clock::start();
    options.check(&[prompt])?;
    if draft.tokens == 0 {
        return Err(Error::invalid(
            "a draft of 0 tokens proposes nothing",
            "let it propose at least 1, or use `generate`",
        ));
    }
    let Ok(most) = i32::try_from(draft.tokens) else {
        return Err(Error::invalid(
            format!("a draft proposes {} tokens at a time", draft.tokens),
            "let it propose a few, such as 3",
        ));
    };
    let sampler = options.bounded_sampler(&[prompt]);
    let sampling = sampler.start(options.seed, &[prompt])?;
    let mut engine = Speculative {
        model: Behind::new(Steps::new(step, state), prompt),
        draft: Behind::new(Steps::new(draft.step, draft.state), prompt),
        most: draft.tokens,
        sampler,
        sampling,
    };
    if options.max_tokens > 0 {
        // No more than all tokens are ever proposed.
        let most = i32::try_from(options.max_tokens).map_or(most, |tokens| tokens.min(most));
        engine.draft.steps.state.reserve_trim(most)?;
        engine.model.steps.state.reserve_trim(most)?;
        let tokens = padded(&[prompt], 0);
        engine.draft.steps.prefill(&tokens, options.prefill)?;
        engine.model.steps.prefill(&tokens, options.prefill)?;
    } else {
        engine.model.unseen.clear();
        engine.draft.unseen.clear();
    }
    Ok(Generation::new(Box::new(engine), options, 1, prompt.len(), clock))
}

struct Speculative<'a, S, D> {
    model: Behind<'a, S>,
    draft: Behind<'a, D>,
    most: usize,
    sampler: Sampler,
    sampling: SamplerState,
}

/// A model and the tokens of the sequence that its state has not seen.
struct Behind<'a, S> {
    steps: Steps<'a, S>,
    unseen: Vec<u32>,
}

impl<'a, S: Tree + Clone + Trim> Behind<'a, S> {
    /// One that has seen all of a prompt but its last token.
    fn new(steps: Steps<'a, S>, prompt: &[u32]) -> Self {
        Self { steps, unseen: prompt.last().copied().into_iter().collect() }
    }

    /// What the state has not seen, with the last token that the step knows in the place of those that it does not.
    fn tokens(&self) -> Array {
        let last = self.steps.vocabulary.map_or(u32::MAX, |known| (known as u32).saturating_sub(1));
        let tokens: Vec<u32> = self.unseen.iter().map(|&token| token.min(last)).collect();
        Array::from_slice(&tokens, &[1, tokens.len() as i32])
    }

    /// The sequence has gone on by `tokens`, of which the state has seen `seen` and others, too, that it forgets.
    fn follow(&mut self, tokens: &[u32], seen: usize) -> Result<()> {
        let right = seen.min(tokens.len() - 1);
        if seen > right {
            self.steps.state.trim((seen - right) as i32)?;
        }
        self.unseen = tokens[right..].to_vec();
        Ok(())
    }

    /// Sees the whole sequence but its last `unread` tokens.
    fn end(&mut self, unread: usize) -> Result<()> {
        if unread > self.unseen.len() {
            self.steps.state.trim((unread - self.unseen.len()) as i32)?;
        }
        self.unseen.truncate(self.unseen.len().saturating_sub(unread));
        if !self.unseen.is_empty() {
            self.steps.logits(&self.tokens())?;
            self.unseen.clear();
        }
        Ok(())
    }
}

/// What a round made, to be read.
struct Round {
    /// The tokens that were proposed: `u32[n]`.
    drafted: Array,
    /// How many of them stay: `u32[1]`.
    stay: Array,
    /// What the model says after each of them, `u32[n + 1]`, or after those that stay, `u32[1]`.
    next: Array,
    /// Whether the draft's logits were distributions, then whether the model's were: `bool[2n + 1]`.
    valid: Array,
    /// The recent tokens before each, and after the last.
    recent: Option<Array>,
    /// The key of the next round.
    key: Array,
}

impl<S: Tree + Clone + Trim, D: Tree + Clone + Trim> Speculative<'_, S, D> {
    /// The graph of a round that proposes `count` tokens. Where it fails, the states are what they were.
    fn round(&mut self, count: usize) -> Result<Round> {
        let before = (self.model.steps.state.clone(), self.draft.steps.state.clone());
        let known = self.model.steps.vocabulary;
        let mut made = self.propose_and_judge(count);
        // Only now is it known which tokens the model knows: the draft may have proposed others, and nothing is computed yet.
        let now = self.model.steps.vocabulary;
        if known.is_none() && now.is_some() && self.draft.steps.vocabulary > now {
            (*self.model.steps.state, *self.draft.steps.state) = before.clone();
            made = self.propose_and_judge(count);
        }
        if made.is_err() {
            (*self.model.steps.state, *self.draft.steps.state) = before;
        }
        made
    }

    fn propose_and_judge(&mut self, count: usize) -> Result<Round> {
        let greedy = self.sampler.temperature == 0.0;
        let mut sampling = self.sampling.clone();
        let (mut drafted, mut theirs, mut valid) = (Vec::new(), Vec::new(), Vec::new());
        let mut tokens = self.draft.tokens();
        for _ in 0..count {
            let logits = self.draft.steps.last_logits(&tokens)?;
            let logits = of_vocabulary(logits, self.model.steps.vocabulary)?;
            if !greedy {
                theirs.push(self.sampler.probabilities(&logits, &sampling)?);
            }
            let drawn = self.sampler.sample(&logits, &mut sampling)?;
            tokens = drawn.tokens.expand_dims(-1)?;
            drafted.push(drawn.tokens);
            valid.push(drawn.valid);
        }
        let drafted = ops::concatenate(&drafted, 0)?;
        let seen = ops::concatenate(&[&self.model.tokens(), &drafted.expand_dims(0)?], 1)?;
        let logits = self.model.steps.logits(&seen)?;
        let &[_, given, vocabulary] = logits.shape() else {
            return Err(Error::invalid(
                "a step that judges a draft gives the logits of its last token alone",
                "return those of all its tokens, [batch, tokens, vocabulary]",
            ));
        };
        let theirs = theirs.into_iter().map(|law| widened(law, vocabulary, 0.0)).collect::<Result<Vec<_>>>()?;
        let logits = logits.try_index((0, given - count as i32 - 1.., ..))?;
        let recent = self.sampling.recent.as_ref();
        let recent = recent.map(|recent| Sampler::recent_along(recent, &drafted)).transpose()?;
        let (key, now) = random::split(&sampling.key, 2)?;
        let mut rows = SamplerState { key: now.clone(), recent: recent.clone() };
        let (stay, next);
        if greedy {
            let drawn = self.sampler.sample(&logits, &mut rows)?;
            stay = leading(&drawn.tokens.try_index(..count as i32)?.eq(&drafted)?)?;
            next = drawn.tokens;
            valid.push(drawn.valid);
        } else {
            let ours = self.sampler.probabilities(&logits, &rows)?;
            (stay, next) = Verdict::of(&drafted, &ours, &ops::concatenate(&theirs, 0)?)?.draw(&now)?;
            valid.push(ours.sum_axis(-1, None)?.is_finite()?);
        }
        Ok(Round { drafted, stay, next, valid: ops::concatenate(&valid, 0)?, recent, key })
    }
}

impl<S: Tree + Clone + Trim, D: Tree + Clone + Trim> Engine for Speculative<'_, S, D> {
    fn advance(&mut self, room: usize, _: &[bool], stats: &mut GenerateStats) -> Result<Vec<Vec<u32>>> {
        let count = self.most.min(room.saturating_sub(1)).max(1);
        let round = self.round(count)?;
        let begun = [&round.drafted, &round.stay, &round.next, &round.valid].map(Clone::clone);
        self.draft.steps.begin([])?;
        self.model.steps.begin(begun)?;
        transforms::eval([&round.drafted, &round.stay, &round.next, &round.valid])?;
        let stay = round.stay.as_slice::<u32>()[0] as usize;
        // What comes after a token that was refused is nobody's concern.
        if round.valid.as_slice::<bool>()[..=count + stay].contains(&false) {
            return Err(no_distribution(0));
        }
        let next = round.next.as_slice::<u32>();
        let mut tokens = round.drafted.as_slice::<u32>()[..stay].to_vec();
        tokens.push(next[stay.min(next.len() - 1)]);
        if let Some(recent) = &round.recent {
            let last = Array::from_slice(&tokens[stay..], &[1, 1]);
            let followed = recent.try_index((stay as i32..stay as i32 + 1, 1..))?;
            self.sampling.recent = Some(ops::concatenate(&[&followed, &last], 1)?);
        }
        self.sampling.key = round.key;
        self.model.follow(&tokens, count)?;
        self.draft.follow(&tokens, count - 1)?;
        stats.drafted += count;
        stats.accepted += stay;
        Ok(vec![tokens])
    }

    fn end(&mut self, unread: usize) -> Result<()> {
        self.model.end(unread)?;
        self.draft.end(unread)
    }

    fn fail(&mut self) {}
}

/// A draft's logits `[batch, n]` for as many tokens as the model knows, of which it proposes none that it has not.
fn of_vocabulary(logits: Array, vocabulary: Option<i32>) -> Result<Array> {
    match vocabulary {
        Some(known) if known < logits.dim(1) => Ok(logits.try_index((.., ..known))?),
        Some(known) => widened(logits, known, f32::NEG_INFINITY),
        None => Ok(logits),
    }
}

/// Rows filled up with a number to so many columns.
fn widened(rows: Array, columns: i32, with: f32) -> Result<Array> {
    let more = columns - rows.dim(1);
    if more <= 0 {
        return Ok(rows);
    }
    let filling = ops::full::<f32>(&[rows.dim(0), more], Array::from_f32(with))?.as_dtype(rows.dtype())?;
    Ok(ops::concatenate(&[rows, filling], 1)?)
}
