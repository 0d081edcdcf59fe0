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
        let mut trimmed = self.clone();
        trimmed.iter_mut().try_for_each(|each| each.trim(tokens))?;
        *self = trimmed;
        Ok(())
    }

    fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        let mut made = self.clone();
        made.iter_mut().try_for_each(|each| each.reserve_trim(tokens))?;
        *self = made;
        Ok(())
    }
}
