//! States that can forget.

use tacit_core::Result;

use crate::KvCache;

/// A state that can forget the last tokens that it has seen, as a draft's tokens are when they are refused.
pub trait Trim {
    /// Forgets the last `tokens` that were seen.
    ///
    /// # Errors
    ///
    /// They cannot be forgotten, such as by a ring that they have overwritten older ones of. Nothing has changed.
    fn trim(&mut self, tokens: i32) -> Result<()>;

    /// Sees to it that up to so many tokens can be forgotten from now on, before any of them is seen.
    ///
    /// # Errors
    ///
    /// They never can.
    fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        let _ = tokens;
        Ok(())
    }
}

impl Trim for KvCache {
    fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        self.reserve_trim(tokens)
    }

    fn trim(&mut self, tokens: i32) -> Result<()> {
        self.trim(tokens)
    }
}

impl<T: Trim + Clone> Trim for Vec<T> {
    /// Of all or of none: the layers of a model have one sequence.
    fn trim(&mut self, tokens: i32) -> Result<()> {
        all_or_none(self, |all| all.iter_mut().try_for_each(|each| each.trim(tokens)))
    }

    fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        all_or_none(self, |all| all.iter_mut().try_for_each(|each| each.reserve_trim(tokens)))
    }
}

/// Changes a state of several parts. Where one of them fails, all stay what they were.
pub(super) fn all_or_none<S: Clone>(state: &mut S, change: impl FnOnce(&mut S) -> Result<()>) -> Result<()> {
    let mut changed = state.clone();
    change(&mut changed)?;
    *state = changed;
    Ok(())
}
