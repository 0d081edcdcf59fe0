//! A draft by a smaller model.

use std::fmt;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops};
use tacit_core::{Error, Result, Tree};

use super::behind::{Before, Behind};
use super::steps::Steps;
use super::{Draft, Drawing, GenerateOptions, Proposal, Trim};

/// A smaller model that drafts tokens for [`speculate`](super::speculate()).
///
/// Filters, temperature and penalty of the model shape its probabilities as well. Where it has more logits than the model, as with
/// vocabularies that are filled up to a round number, it never proposes those; where it has fewer, the last of its own stands for a
/// token that was drawn and that it does not know; those of the prompt it has to know.
pub struct DraftModel<'a, S> {
    model: Behind<'a, S>,
    max_draft_tokens: usize,
    /// How many tokens it proposed last.
    proposed: usize,
    /// What it was before them, until they are computed.
    before: Option<Before<S>>,
}

impl<'a, S: Tree + Clone + Trim> DraftModel<'a, S> {
    /// A draft by a step, which proposes `tokens` tokens at a time.
    ///
    /// Its vocabulary has to be the model's, though either may be filled up, and its state has to have seen what the model's state
    /// has.
    pub fn new<E: Into<Error>>(
        step: impl FnMut(&Array, &mut S) -> Result<Array, E> + 'a,
        state: &'a mut S,
        tokens: usize,
    ) -> Self {
        Self { model: Behind::new(Steps::new(step, state)), max_draft_tokens: tokens, proposed: 0, before: None }
    }

    fn drafted(&mut self, count: usize, drawing: &Drawing<'_>) -> Result<Proposal> {
        let mut sampling = drawing.state.clone();
        let (mut drafted, mut laws, mut valid) = (Vec::new(), Vec::new(), Vec::new());
        let mut tokens = self.model.tokens();
        for number in 0..count {
            let logits = self.model.steps.last_logits(&tokens)?;
            if number == 0 {
                // The state has now seen all of the text, and nothing that may be refused.
                self.model.catch_up();
                self.model.mark();
            }
            let logits = of_vocabulary(logits, drawing.vocabulary)?;
            if drawing.sampler.temperature != 0.0 {
                laws.push(drawing.sampler.probabilities(&logits, &sampling)?);
            }
            let drawn = drawing.sampler.sample(&logits, &mut sampling)?;
            tokens = drawn.tokens.expand_dims(-1)?;
            drafted.push(drawn.tokens);
            valid.push(drawn.valid);
        }
        let law = if laws.is_empty() { None } else { Some(ops::concatenate(&laws, 0)?) };
        Ok(Proposal { tokens: ops::concatenate(&drafted, 0)?, law, valid: Some(ops::concatenate(&valid, 0)?) })
    }
}

impl<S: Tree + Clone + Trim> Draft for DraftModel<'_, S> {
    fn max_draft_tokens(&self) -> usize {
        self.max_draft_tokens
    }

    fn start(&mut self, prompt: &[u32], options: &GenerateOptions) -> Result<()> {
        (self.proposed, self.before) = (0, None);
        self.model.reserve(self.max_draft_tokens, options)?;
        self.model.prefill(prompt, options)
    }

    fn propose(&mut self, count: usize, drawing: &Drawing<'_>) -> Result<Option<Proposal>> {
        // The last token that it proposes it does not see.
        let Some(seen) = count.checked_sub(1).and_then(|seen| self.model.room_for(seen)) else { return Ok(None) };
        let count = seen + 1;
        self.before = Some(self.model.before());
        let drafted = self.drafted(count, drawing).inspect_err(|_| self.fail())?;
        self.proposed = count;
        Ok(Some(drafted))
    }

    fn begin(&mut self) -> Result<()> {
        // Its buffers are not written in place while something else holds them.
        self.before = None;
        self.model.steps.begin([])
    }

    fn follow(&mut self, tokens: &[u32]) -> Result<()> {
        // It has not seen the last token that it proposed.
        let seen = std::mem::take(&mut self.proposed).saturating_sub(1);
        self.model.follow(tokens, seen)
    }

    fn end(&mut self, unread: usize) -> Result<()> {
        self.model.end(unread)
    }

    fn fail(&mut self) {
        self.proposed = 0;
        if let Some(before) = self.before.take() {
            self.model.restore(before);
        }
        // Whoever goes on gives the last token again, as to the model.
        self.model.see_accepted();
    }
}

impl<S> fmt::Debug for DraftModel<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DraftModel").field("max_draft_tokens", &self.max_draft_tokens).finish_non_exhaustive()
    }
}

/// Logits `[1, n]` of so many tokens: those of others are left out, and tokens without one are never drawn.
fn of_vocabulary(logits: Array, vocabulary: i32) -> Result<Array> {
    let more = vocabulary - logits.dim(1);
    if more < 0 {
        return Ok(logits.try_index((.., ..vocabulary))?);
    }
    if more == 0 {
        return Ok(logits);
    }
    let never = ops::full::<f32>(&[logits.dim(0), more], Array::from_f32(f32::NEG_INFINITY))?;
    Ok(ops::concatenate(&[&logits, &never.as_dtype(logits.dtype())?], 1)?)
}
