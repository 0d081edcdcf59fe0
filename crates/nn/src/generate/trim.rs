//! States that can forget.

use tacit_core::{Error, Result};

use crate::{ArraysCache, Cache, KvCache};

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

/// A state has all its tokens in the same arrays, and forgets none of them.
impl Trim for ArraysCache {
    fn trim(&mut self, tokens: i32) -> Result<()> {
        self.reserve_trim(tokens)
    }

    fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        if tokens < 1 {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{tokens} tokens cannot be taken out of the state of a layer without attention"),
            "generate without a draft, or keep a clone of the caches from before the tokens",
        ))
    }
}

impl Trim for Cache {
    fn trim(&mut self, tokens: i32) -> Result<()> {
        match self {
            Self::Kv(cache) => cache.trim(tokens),
            Self::Arrays(cache) => cache.trim(tokens),
            Self::List(caches) => Trim::trim(caches, tokens),
        }
    }

    fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        match self {
            Self::Kv(cache) => cache.reserve_trim(tokens),
            Self::Arrays(cache) => cache.reserve_trim(tokens),
            Self::List(caches) => caches.reserve_trim(tokens),
        }
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
