//! The options of a generation.

use tacit_core::{Error, Result};

use super::Sampler;

/// The options of [`generate`](super::generate()).
///
/// ```
/// use tacit_nn::generate::{GenerateOptions, Sampler};
///
/// let sampler = Sampler { temperature: 0.7, top_p: 0.9, ..Sampler::default() };
/// let options = GenerateOptions { sampler, seed: 1, max_tokens: 100, ..GenerateOptions::default() };
/// assert_eq!(options.prefill, 512);
/// ```
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// How tokens are drawn.
    pub sampler: Sampler,
    /// The seed of the draws: the same seed, prompts and options give the same tokens. Texts of one seed are drawn by the same
    /// random numbers, so give each turn of a conversation another one.
    pub seed: u64,
    /// The maximum number of tokens for each prompt.
    pub max_tokens: usize,
    /// Sequences of tokens after which one stops; most models have one or two of a single token.
    pub stop: Vec<Vec<u32>>,
    /// The number of prompt tokens that a step takes at a time.
    pub prefill: usize,
    /// The token that fills shorter prompts on the left, up to the length of the longest. Without it they have one length.
    /// [`generate`](super::generate()) tells the state which tokens these are.
    pub padding: Option<u32>,
    /// Whether a step begins before its token is read, so that the next graph is built while this one is computed.
    pub lookahead: bool,
}

impl Default for GenerateOptions {
    /// At most 256 tokens, each of them the likeliest one, with prompts in pieces of 512.
    fn default() -> Self {
        Self {
            sampler: Sampler::default(),
            seed: 0,
            max_tokens: 256,
            stop: Vec::new(),
            prefill: 512,
            padding: None,
            lookahead: true,
        }
    }
}

impl GenerateOptions {
    /// The sampler for these prompts. It looks back at no more tokens than there will be: more are a larger array, and change
    /// nothing.
    pub(super) fn bounded_sampler<P: AsRef<[u32]>>(&self, prompts: &[P]) -> Sampler {
        let longest = prompts.iter().map(|prompt| prompt.as_ref().len()).max().unwrap_or(0);
        let most = longest.saturating_add(self.max_tokens).max(1);
        Sampler { repetition_window: self.sampler.repetition_window.min(most), ..self.sampler.clone() }
    }

    /// Checks the options and the prompts, of which there is at least one.
    pub(super) fn check<P: AsRef<[u32]>>(&self, prompts: &[P]) -> Result<()> {
        self.sampler.check()?;
        if self.prefill == 0 {
            return Err(Error::invalid("prompts are given in pieces of 0 tokens", "give a `prefill` of at least 1"));
        }
        if self.stop.iter().any(Vec::is_empty) {
            return Err(Error::invalid("a sequence to stop after is empty", "leave it out, or give its tokens"));
        }
        if prompts.is_empty() {
            return Err(Error::invalid("there are no prompts", "give at least one"));
        }
        if prompts.iter().any(|prompt| prompt.as_ref().is_empty()) {
            return Err(Error::invalid(
                "a prompt is empty",
                "give at least one token, such as the one that begins a text",
            ));
        }
        let lengths = || prompts.iter().map(|prompt| prompt.as_ref().len());
        if self.padding.is_none() && lengths().min() != lengths().max() {
            return Err(Error::invalid(
                format!("prompts of {:?} tokens are one batch", lengths().collect::<Vec<_>>()),
                "say by `padding` what they are filled up with",
            ));
        }
        Ok(())
    }
}
