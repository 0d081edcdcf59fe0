//! A model, and the tokens of the text that its state has not seen yet.

use mlx_rs::Array;
use tacit_core::{Result, Tree};

use super::steps::{Steps, padded};
use super::{GenerateOptions, Mark, Trim};

/// A model, and the tokens of the text that its state has not seen.
///
/// In a round the state sees those, and tokens that may be refused. What can be trimmed forgets the refused ones. A state that
/// cannot goes back to its mark, and has not seen the tokens since then that stay: these are given to it again, with the next round's.
pub(super) struct Behind<'a, S> {
    pub(super) steps: Steps<'a, S>,
    pub(super) unseen: Vec<u32>,
    mark: Option<Mark>,
    /// The tokens of the text that the state has seen since the mark.
    since: Vec<u32>,
}

/// What a model was before a round.
pub(super) struct Before<S> {
    state: S,
    unseen: Vec<u32>,
    mark: Option<Mark>,
    since: Vec<u32>,
}

impl<'a, S: Tree + Clone + Trim> Behind<'a, S> {
    pub(super) fn new(steps: Steps<'a, S>) -> Self {
        Self { steps, unseen: Vec::new(), mark: None, since: Vec::new() }
    }

    /// Sees to it that the tokens of a round of at most `max_draft_tokens` proposed ones can be forgotten.
    pub(super) fn reserve(&mut self, max_draft_tokens: usize, options: &GenerateOptions) -> Result<()> {
        // Of a round whose state goes back, the token before the proposed ones is forgotten, too. No round is longer than all of the
        // text that is made.
        let round =
            max_draft_tokens.saturating_add(usize::from(self.steps.state.mark().is_some())).min(options.max_tokens);
        self.steps.state.reserve_trim(i32::try_from(round).unwrap_or(i32::MAX))
    }

    /// Sees a prompt but for its last token.
    pub(super) fn prefill(&mut self, prompt: &[u32], options: &GenerateOptions) -> Result<()> {
        // Of a round that failed nothing is known any more.
        self.mark = None;
        self.since.clear();
        self.steps.prefill(&padded(&[prompt], 0), options.prefill)?;
        self.unseen = prompt.last().copied().into_iter().collect();
        Ok(())
    }

    /// The most of `tokens` that a step may see behind what the state has not seen, if it may see that.
    pub(super) fn room_for(&self, tokens: usize) -> Option<usize> {
        (0..=tokens).rev().find(|&tokens| self.has_room(tokens))
    }

    /// Whether a step may see what the state has not seen, and so many tokens behind that.
    fn has_room(&self, more: usize) -> bool {
        i32::try_from(self.unseen.len() + more).is_ok_and(|tokens| self.steps.state.has_room(tokens))
    }

    /// What the state has not seen.
    pub(super) fn tokens(&self) -> Array {
        Array::from_slice(&self.unseen, &[1, self.unseen.len() as i32])
    }

    /// From now on the state sees tokens that it may have to forget.
    pub(super) fn mark(&mut self) {
        self.mark = self.steps.state.mark();
        self.since.clear();
    }

    /// What it is, until it sees tokens of a round. It is marked anew then.
    pub(super) fn before(&mut self) -> Before<S> {
        let state = self.steps.state.clone();
        let (unseen, since) = (self.unseen.clone(), self.since.clone());
        Before { state, unseen, mark: self.mark.take(), since }
    }

    /// The round did not take place.
    pub(super) fn restore(&mut self, before: Before<S>) {
        let Before { state, unseen, mark, since } = before;
        *self.steps.state = state;
        (self.unseen, self.mark, self.since) = (unseen, mark, since);
    }

    /// The state has seen what it had not.
    pub(super) fn catch_up(&mut self) {
        self.since.append(&mut self.unseen);
    }

    /// No round follows: the state sees all that it had to forget, as far as the step does not fail again.
    pub(super) fn see_accepted(&mut self) {
        let last = self.unseen.split_off(self.unseen.len().saturating_sub(1));
        if !self.unseen.is_empty() && self.steps.logits(&self.tokens()).is_ok() {
            self.unseen.clear();
        }
        self.unseen.extend(last);
    }

    /// The text has gone on by `tokens`, the last of which nobody proposed. The state has seen `seen` proposed ones, of which it forgets
    /// those that the text does not contain. In the place of a token that the step does not know it will see the last that it knows.
    pub(super) fn follow(&mut self, tokens: &[u32], seen: usize) -> Result<()> {
        let right = seen.min(tokens.len() - 1);
        self.since.extend_from_slice(&tokens[..right]);
        self.forget(seen - right)?;
        let last = self.steps.vocabulary.map_or(u32::MAX, |known| (known as u32).saturating_sub(1));
        self.unseen.extend(tokens[right..].iter().map(|&token| token.min(last)));
        Ok(())
    }

    /// Sees the whole text but its last `unread` tokens.
    pub(super) fn end(&mut self, unread: usize) -> Result<()> {
        let seen = unread.saturating_sub(self.unseen.len());
        self.unseen.truncate(self.unseen.len().saturating_sub(unread));
        self.since.truncate(self.since.len().saturating_sub(seen));
        self.forget(seen)?;
        if !self.has_room(0) {
            // A generation without drafts leaves out the last token then, too.
            self.unseen.pop();
        }
        // A draft whose state holds less than the model's stays behind.
        if !self.unseen.is_empty() && self.has_room(0) {
            self.steps.logits(&self.tokens())?;
            self.catch_up();
        }
        Ok(())
    }

    /// The state forgets the last `wrong` tokens that it has seen, which `since` does not contain.
    fn forget(&mut self, wrong: usize) -> Result<()> {
        if wrong == 0 {
            return Ok(());
        }
        match self.mark.take() {
            None => self.steps.state.trim(wrong as i32),
            Some(mark) => {
                self.steps.state.rewind(mark, (self.since.len() + wrong) as i32)?;
                self.unseen.splice(0..0, self.since.drain(..));
                Ok(())
            }
        }
    }
}
