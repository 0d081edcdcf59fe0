//! Generation of several tokens at a time, of which a draft proposes all but one.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops, random, transforms};
use tacit_core::{Aval, Error, Result, Tree};

use super::behind::Behind;
use super::generation::Engine;
use super::plain::no_distribution;
use super::stats::Clock;
use super::steps::Steps;
use super::verdict::{Verdict, leading};
use super::{Draft, Drawing, GenerateOptions, GenerateStats, Generation, Proposal, Sampler, SamplerState, Trim};

/// As [`generate`](super::generate()), with tokens that a [`Draft`] proposes and one step of the model judges together: those of a
/// smaller model ([`DraftModel`](super::DraftModel)), or of the text so far ([`Lookup`](super::Lookup)).
///
/// Greedily the tokens are those of the model alone, as far as its logits do not depend on how many tokens a step takes. Drawn
/// ones are distributed as the model's own, by accepting and refusing (Leviathan et al. 2023,
/// [arXiv:2211.17192](https://arxiv.org/abs/2211.17192)). The step returns the logits of all its tokens, and the state forgets what was
/// refused, or goes back to its [mark](Trim::mark). There is one sequence.
///
/// A step is given at most one token more than the draft proposes, and as many in most rounds, so that it is traced for few
/// numbers of tokens. A state that goes back has not seen the tokens that were accepted in that round: they are given to it again, in
/// the place of as many proposed ones.
///
/// ```
/// # extern crate tacit_core as tacit;
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::{Result, Tree};
/// use tacit_nn::generate::{DraftModel, GenerateOptions, Trim, speculate};
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
/// let draft = DraftModel::new(step(other), &mut drafted, 2);
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
/// As for [`generate`](super::generate()); the draft proposes no tokens or too many; a state cannot forget. Where a step fails, a state
/// that went back is given the accepted tokens by one more step: if that fails as well, it lacks those.
pub fn speculate<'a, S: Tree + Clone + Trim, E: Into<Error>>(
    step: impl FnMut(&Array, &mut S) -> Result<Array, E> + 'a,
    state: &'a mut S,
    draft: impl Draft + 'a,
    prompt: &[u32],
    options: &GenerateOptions,
) -> Result<Generation<'a>> {
    let clock = Clock::start();
    options.check(&[prompt])?;
    let max_draft_tokens = draft.max_draft_tokens();
    if max_draft_tokens == 0 {
        return Err(Error::invalid(
            "a draft of 0 tokens proposes nothing",
            "let it propose at least 1, or use `generate`",
        ));
    }
    if i32::try_from(max_draft_tokens).is_err() {
        return Err(Error::invalid(
            format!("a draft proposes {max_draft_tokens} tokens at a time"),
            "let it propose a few, such as 3",
        ));
    }
    let sampler = options.bounded_sampler(&[prompt]);
    let sampling = sampler.start(options.seed, &[prompt])?;
    let mut engine = Speculative {
        model: Behind::new(Steps::new(step, state)),
        draft: Box::new(draft),
        max_draft_tokens,
        sampler,
        sampling,
    };
    engine.model.reserve(max_draft_tokens, options)?;
    engine.draft.start(prompt, options)?;
    engine.model.prefill(prompt, options)?;
    Ok(Generation::new(Box::new(engine), options, 1, prompt.len(), clock))
}

struct Speculative<'a, S> {
    model: Behind<'a, S>,
    draft: Box<dyn Draft + 'a>,
    max_draft_tokens: usize,
    sampler: Sampler,
    sampling: SamplerState,
}

/// The arrays of a round, to be read.
struct Round {
    /// The tokens that were proposed, `u32[n]`, if some were.
    drafted: Option<Array>,
    /// How many of them stay: `u32[1]`.
    stay: Array,
    /// What the model says after each of them, `u32[n + 1]`, or after those that stay, `u32[1]`.
    next: Array,
    /// Whether the logits of each were distributions, the draft's before the model's: `bool[m + n + 1]`.
    valid: Array,
    /// The recent tokens before each, and after the last.
    recent: Option<Array>,
    /// The key of the next round.
    key: Array,
}

impl<S: Tree + Clone + Trim> Speculative<'_, S> {
    /// The graph of a round of at most so many proposed tokens. Where it fails, the states are what they were.
    fn round(&mut self, max_draft_tokens: usize) -> Result<Round> {
        let before = self.model.steps.state.clone();
        self.propose_and_judge(max_draft_tokens).inspect_err(|_| {
            *self.model.steps.state = before;
            self.model.see_accepted();
            self.draft.fail();
        })
    }

    fn propose_and_judge(&mut self, max_draft_tokens: usize) -> Result<Round> {
        // What is drawn for a draft is drawn for nothing else, in this round or in another: else what it draws would tell of what it
        // is judged by, and the tokens would not be the model's.
        let (key, now) = random::split(&self.sampling.key, 2)?;
        let (for_draft, for_verdict) = random::split(&now, 2)?;
        let proposal = match self.model.steps.vocabulary.filter(|_| max_draft_tokens > 0) {
            // What the model does not know is not proposed: with its first step that is known.
            None => None,
            Some(vocabulary) => {
                let state = SamplerState { key: for_draft, ..self.sampling.clone() };
                let drawing = Drawing { sampler: &self.sampler, state: &state, vocabulary };
                let proposal = self.draft.propose(max_draft_tokens, &drawing)?;
                proposal.map(|proposal| checked(proposal, max_draft_tokens, vocabulary)).transpose()?
            }
        };
        self.model.mark();
        match proposal {
            Some(proposal) => self.judge(proposal, &for_verdict, key),
            None => self.alone(),
        }
    }

    /// What the model says by itself.
    fn alone(&mut self) -> Result<Round> {
        let mut sampling = self.sampling.clone();
        let logits = self.model.steps.last_logits(&self.model.tokens())?;
        let drawn = self.sampler.sample(&logits, &mut sampling)?;
        let stay = Array::from_slice(&[0u32], &[1]);
        // As before the token, which the host appends.
        let recent = self.sampling.recent.clone();
        Ok(Round { drafted: None, stay, next: drawn.tokens, valid: drawn.valid, recent, key: sampling.key })
    }

    /// What the model says of tokens that may follow, with a key for this and one for the next round.
    fn judge(&mut self, proposal: Proposal, for_verdict: &Array, key: Array) -> Result<Round> {
        let Proposal { tokens: drafted, law, valid } = proposal;
        let count = drafted.dim(0);
        let tokens = ops::concatenate(&[&self.model.tokens(), &drafted.expand_dims(0)?], 1)?;
        let logits = self.model.steps.logits(&tokens)?;
        let (positions, vocabulary) = match *logits.shape() {
            [_, positions, vocabulary] if positions > count => (positions, vocabulary),
            _ => {
                return Err(Error::invalid(
                    "a step that judges a draft gives the logits of its last token alone",
                    "return those of all its tokens, [batch, tokens, vocabulary]",
                ));
            }
        };
        let logits = logits.try_index((0, positions - count - 1.., ..))?;
        let recent = self.sampling.recent.as_ref();
        let recent = recent.map(|recent| Sampler::recent_along(recent, &drafted)).transpose()?;
        let mut rows = SamplerState { key: for_verdict.clone(), recent: recent.clone() };
        let mut valid: Vec<Array> = valid.into_iter().collect();
        let (stay, next);
        if self.sampler.temperature == 0.0 {
            let drawn = self.sampler.sample(&logits, &mut rows)?;
            stay = leading(&drawn.tokens.try_index(..count)?.eq(&drafted)?)?;
            next = drawn.tokens;
            valid.push(drawn.valid);
        } else {
            let ours = self.sampler.probabilities(&logits, &rows)?;
            let law = law.map_or_else(|| certain(&drafted, vocabulary), Ok)?;
            (stay, next) = Verdict::new(&drafted, &ours, &law)?.draw(for_verdict)?;
            valid.push(ours.sum_axis(-1, None)?.is_finite()?);
        }
        Ok(Round { drafted: Some(drafted), stay, next, valid: ops::concatenate(&valid, 0)?, recent, key })
    }
}

impl<S: Tree + Clone + Trim> Engine for Speculative<'_, S> {
    fn advance(&mut self, room: usize, _: &[bool], stats: &mut GenerateStats) -> Result<Vec<Vec<u32>>> {
        // Tokens that the model has to see again take the places of proposed ones.
        let max_draft_tokens = (self.max_draft_tokens + 1).saturating_sub(self.model.unseen.len()).min(room - 1);
        let max_draft_tokens = self.model.room_for(max_draft_tokens).unwrap_or(0);
        let round = self.round(max_draft_tokens)?;
        self.draft.begin()?;
        let mut read = vec![round.stay.clone(), round.next.clone(), round.valid.clone()];
        read.extend(round.drafted.clone());
        // Greedily nothing that is read is drawn by the key, whose graph would grow.
        self.model.steps.begin(read.iter().chain([&round.key]).cloned())?;
        transforms::eval(&read)?;
        let drafted = round.drafted.as_ref().map_or(&[][..], |drafted| drafted.as_slice::<u32>());
        let stay = round.stay.as_slice::<u32>()[0] as usize;
        let valid = round.valid.as_slice::<bool>();
        let (of_draft, of_model) = valid.split_at(valid.len() - (drafted.len() + 1));
        // What comes after a token that was refused is nobody's concern.
        if of_draft.iter().take(stay + 1).chain(&of_model[..=stay]).any(|valid| !valid) {
            return Err(no_distribution(0));
        }
        let next = round.next.as_slice::<u32>();
        let mut tokens = drafted[..stay].to_vec();
        tokens.push(next[stay.min(next.len() - 1)]);
        if let Some(recent) = &round.recent {
            let last = Array::from_slice(&tokens[stay..], &[1, 1]);
            let followed = recent.try_index((stay as i32..stay as i32 + 1, 1..))?;
            self.sampling.recent = Some(ops::concatenate(&[&followed, &last], 1)?);
        }
        self.sampling.key = round.key;
        self.model.catch_up();
        self.model.follow(&tokens, drafted.len())?;
        self.draft.follow(&tokens)?;
        stats.drafted += drafted.len();
        stats.accepted += stay;
        Ok(vec![tokens])
    }

    fn end(&mut self, unread: usize) -> Result<()> {
        self.model.end(unread)?;
        self.draft.end(unread)
    }

    fn fail(&mut self) {}
}

/// A proposal of tokens that the model knows.
fn checked(proposal: Proposal, max_draft_tokens: usize, vocabulary: i32) -> Result<Proposal> {
    let Proposal { tokens, law, valid } = proposal;
    let wrong = |what: &Array, help: &str| {
        Err(Error::invalid(
            format!("a draft that is asked for {max_draft_tokens} tokens proposes {}", Aval::from(what)),
            help,
        ))
    };
    let count = match *tokens.shape() {
        [count] if (1..=max_draft_tokens).contains(&(count as usize)) && tokens.dtype() == Dtype::Uint32 => count,
        _ => return wrong(&tokens, "give one axis of tokens, u32, at least one and no more than were asked for"),
    };
    if let Some(law) = law.as_ref().filter(|law| law.shape() != [count, vocabulary] || law.dtype() != Dtype::Float32) {
        return wrong(law, "give probabilities, f32, of all tokens that the model knows, a row for each proposed one");
    }
    if let Some(valid) = valid.as_ref().filter(|valid| valid.shape() != [count] || valid.dtype() != Dtype::Bool) {
        return wrong(valid, "say by a bool of each token whether it was drawn from a distribution");
    }
    // MLX checks no index.
    let tokens = ops::minimum(&tokens, Array::from_slice(&[vocabulary as u32 - 1], &[1]))?;
    Ok(Proposal { tokens, law, valid })
}

/// The probabilities of tokens that were not drawn: `f32[n, vocabulary]`.
fn certain(tokens: &Array, vocabulary: i32) -> Result<Array> {
    let words = ops::arange::<_, u32>(0, vocabulary, None)?;
    Ok(words.eq(tokens.expand_dims(1)?)?.as_dtype(Dtype::Float32)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proposes one token, always.
    struct One;

    impl Draft for One {
        fn max_draft_tokens(&self) -> usize {
            1
        }

        fn propose(&mut self, _: usize, _: &Drawing<'_>) -> Result<Option<Proposal>> {
            Ok(Some(Proposal::certain(&[0])))
        }

        fn follow(&mut self, _: &[u32]) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_key_of_the_next_round_is_computed_whether_something_is_drawn_or_not() -> Result<()> {
        let table = Array::from_slice(&[0.0f32, 1.0, 1.0, 0.0], &[2, 2]);
        for temperature in [0.0, 1.0] {
            let step = |tokens: &Array, (): &mut ()| -> Result<Array> { Ok(table.take_axis(tokens, 0)?) };
            let (mut state, options, prompt) = ((), GenerateOptions::default(), [0u32, 1]);
            let sampler = Sampler { temperature, ..Sampler::default() };
            let sampling = sampler.start(options.seed, &[prompt])?;
            let model = Behind::new(Steps::new(step, &mut state));
            let mut engine = Speculative { model, draft: Box::new(One), max_draft_tokens: 1, sampler, sampling };
            engine.model.prefill(&prompt, &options)?;
            for _ in 0..3 {
                engine.advance(8, &[true], &mut GenerateStats::default())?;
                let key = engine.sampling.key.clone();
                // Another thread refuses what is lazy.
                std::thread::spawn(move || key.eval()).join().expect("it does not panic")?;
            }
        }
        Ok(())
    }
}
