//! The trait of drafts, which propose tokens.

use mlx_rs::Array;
use tacit_core::Result;

use super::{GenerateOptions, Sampler, SamplerState};

/// What proposes the next tokens of a text to [`speculate`](super::speculate()): a smaller model ([`DraftModel`](super::DraftModel)), the
/// text itself ([`Lookup`](super::Lookup)), or whatever else guesses well.
///
/// A guess changes neither the tokens of the model nor their probabilities: it only saves steps where it is right. A draft of your own
/// is three methods:
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::Result;
/// use tacit_nn::generate::{Draft, Drawing, GenerateOptions, Proposal, speculate};
///
/// /// Proposes a known answer, as far as it has gone on.
/// struct Known(Vec<u32>);
///
/// impl Draft for Known {
///     fn max_draft_tokens(&self) -> usize {
///         4
///     }
///
///     fn propose(&mut self, count: usize, _: &Drawing<'_>) -> Result<Option<Proposal>> {
///         let tokens = &self.0[..count.min(self.0.len())];
///         Ok((!tokens.is_empty()).then(|| Proposal::certain(tokens)))
///     }
///
///     fn follow(&mut self, tokens: &[u32]) -> Result<()> {
///         self.0.drain(..tokens.len().min(self.0.len()));
///         Ok(())
///     }
/// }
///
/// let table = Array::from_slice(&[0.0f32, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], &[3, 3]);
/// let step = |tokens: &Array, _: &mut ()| -> Result<Array> { Ok(table.take_axis(tokens, 0)?) };
/// let options = GenerateOptions { max_tokens: 4, ..GenerateOptions::default() };
/// let mut state = ();
/// let mut tokens = speculate(step, &mut state, Known(vec![2, 0, 0]), &[0, 1], &options)?;
/// let ids = tokens.by_ref().map(|token| Ok(token?.id)).collect::<Result<Vec<u32>>>()?;
/// assert_eq!(ids, [2, 0, 1, 2]);
/// assert_eq!((tokens.stats().drafted, tokens.stats().accepted), (3, 2));
/// # Ok(())
/// # }
/// ```
pub trait Draft {
    /// The most tokens that it proposes at a time, one at least.
    fn max_draft_tokens(&self) -> usize;

    /// The text goes on by `prompt`, behind what the state of the model has seen. It is called before the first proposal of each generation.
    ///
    /// # Errors
    ///
    /// It cannot propose anything, and has seen nothing; or a step fails.
    fn start(&mut self, prompt: &[u32], options: &GenerateOptions) -> Result<()> {
        let _ = (prompt, options);
        Ok(())
    }

    /// Proposes the next tokens, `count` at most and one at least, or nothing.
    ///
    /// Each other number of tokens may be one more trace of a step that is compiled: `count` or none are best. The proposal is a graph,
    /// of which nothing needs to be computed here.
    ///
    /// # Errors
    ///
    /// A step fails. It is then as it was.
    fn propose(&mut self, count: usize, drawing: &Drawing<'_>) -> Result<Option<Proposal>>;

    /// The model's graph stands on that of the proposal: what that has changed may be computed.
    ///
    /// # Errors
    ///
    /// As those of MLX.
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// The text has gone on by `tokens`: those of the last proposal that were accepted, and one that was not proposed.
    ///
    /// # Errors
    ///
    /// Those of the proposal that were refused cannot be forgotten.
    fn follow(&mut self, tokens: &[u32]) -> Result<()>;

    /// The text is at its end, which does not contain its last `unread` tokens.
    ///
    /// # Errors
    ///
    /// They cannot be forgotten, or a step fails.
    fn end(&mut self, unread: usize) -> Result<()> {
        let _ = unread;
        Ok(())
    }

    /// The model has failed on the last proposal, if there was one, which is forgotten. The prompt of the next generation begins
    /// with the last token of the text again.
    fn fail(&mut self) {}
}

/// A draft that serves one generation after the other, such as the turns of a conversation.
impl<D: Draft + ?Sized> Draft for &mut D {
    fn max_draft_tokens(&self) -> usize {
        (**self).max_draft_tokens()
    }

    fn start(&mut self, prompt: &[u32], options: &GenerateOptions) -> Result<()> {
        (**self).start(prompt, options)
    }

    fn propose(&mut self, count: usize, drawing: &Drawing<'_>) -> Result<Option<Proposal>> {
        (**self).propose(count, drawing)
    }

    fn begin(&mut self) -> Result<()> {
        (**self).begin()
    }

    fn follow(&mut self, tokens: &[u32]) -> Result<()> {
        (**self).follow(tokens)
    }

    fn end(&mut self, unread: usize) -> Result<()> {
        (**self).end(unread)
    }

    fn fail(&mut self) {
        (**self).fail();
    }
}

/// How the model's tokens are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Drawing<'a> {
    /// The sampler.
    pub sampler: &'a Sampler,
    /// Its state at the end of the text, with a key of the draft's own. A draft draws from a clone.
    pub state: &'a SamplerState,
    /// The number of tokens that the model has logits of.
    pub vocabulary: i32,
}

/// Tokens that may follow a text.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The tokens: `u32[n]`.
    pub tokens: Array,
    /// The probabilities that each was drawn by, after those before it: `f32[n, vocabulary]`. `None` where nothing was drawn: any other
    /// token had the probability 0.
    pub law: Option<Array>,
    /// Whether the logits that each was drawn from were a distribution, as [`Sampled::valid`](super::Sampled::valid): `bool[n]`.
    pub valid: Option<Array>,
}

impl Proposal {
    /// Tokens that were not drawn.
    #[must_use]
    pub fn certain(tokens: &[u32]) -> Self {
        Self { tokens: Array::from_slice(tokens, &[tokens.len() as i32]), law: None, valid: None }
    }
}
