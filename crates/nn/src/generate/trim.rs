//! States that can forget tokens.

use tacit_core::{Error, Result};

use crate::{ArraysCache, Cache, KvCache};

/// A state that can forget the last tokens that it has seen, as a draft's tokens are when they are refused.
///
/// Keys and values are there for each token, and are trimmed. A layer without attention has all tokens in the same arrays: it goes
/// back to a [`Mark`] alone.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, Dtype};
/// use tacit_nn::generate::Trim;
/// use tacit_nn::{ArraysCache, Cache, KvCache};
///
/// let mut state = ArraysCache::new(1);
/// state.set(0, Array::from_slice(&[1.0f32], &[1]))?;
/// let mut layers = vec![Cache::from(state), KvCache::new([1, 2, 64], Dtype::Float32)?.into()];
/// let mark = layers.mark().expect("one layer has no attention");
/// // A step of no tokens of attention, for short.
/// layers[0].as_arrays().expect("arrays").set(0, Array::from_slice(&[2.0f32], &[1]))?;
/// layers.rewind(mark, 0)?;
/// let held = layers[0].as_arrays().expect("arrays").get(0)?.map(|state| state.as_slice::<f32>());
/// assert_eq!(held, Some(&[1.0][..]));
/// # Ok(())
/// # }
/// ```
pub trait Trim {
    /// Forgets the last `tokens` that were seen.
    ///
    /// # Errors
    ///
    /// They cannot be forgotten, as in the ring of a window where they have overwritten older ones. The state is then as it was.
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

    /// Whether a step may see so many tokens more, as it may not at the end of a cache of fixed capacity.
    fn has_room(&self, tokens: i32) -> bool {
        let _ = tokens;
        true
    }

    /// What cannot be trimmed, as it is now; `None` where all can.
    fn mark(&self) -> Option<Mark> {
        None
    }

    /// Goes back to a mark of this state, by forgetting the `tokens` that were seen since.
    ///
    /// # Errors
    ///
    /// The mark is of another state; what can be trimmed cannot forget so many. The state is then as it was.
    fn rewind(&mut self, mark: Mark, tokens: i32) -> Result<()> {
        let _ = mark;
        self.trim(tokens)
    }
}

/// The parts of a state that cannot be trimmed, as they were before some tokens: small beside keys and values, which are not in it.
#[derive(Clone, Debug)]
pub enum Mark {
    /// The mark of a layer without attention.
    Arrays(ArraysCache),
    /// The marks of each part of a state, in their order; `None` for what can be trimmed.
    Parts(Vec<Option<Mark>>),
}

/// Nothing was seen.
impl Trim for () {
    fn trim(&mut self, _: i32) -> Result<()> {
        Ok(())
    }
}

impl Trim for KvCache {
    fn trim(&mut self, tokens: i32) -> Result<()> {
        self.trim(tokens)
    }

    fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        self.reserve_trim(tokens)
    }

    fn has_room(&self, tokens: i32) -> bool {
        self.has_room(tokens)
    }
}

/// A state has all its tokens in the same arrays, and forgets those alone that came after a mark.
impl Trim for ArraysCache {
    fn trim(&mut self, tokens: i32) -> Result<()> {
        if tokens < 1 {
            return Ok(());
        }
        Err(Error::invalid(
            format!("{tokens} tokens cannot be taken out of the state of a layer without attention"),
            "take a `Trim::mark` before the tokens, and go back to it by `Trim::rewind`",
        ))
    }

    fn mark(&self) -> Option<Mark> {
        Some(Mark::Arrays(self.clone()))
    }

    fn rewind(&mut self, mark: Mark, _: i32) -> Result<()> {
        match mark {
            Mark::Arrays(before) if before.slots() == self.slots() => *self = before,
            _ => return Err(foreign()),
        }
        Ok(())
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
            Self::Arrays(_) => Ok(()),
            Self::List(caches) => caches.reserve_trim(tokens),
        }
    }

    fn has_room(&self, tokens: i32) -> bool {
        match self {
            Self::Kv(cache) => cache.has_room(tokens),
            Self::Arrays(_) => true,
            Self::List(caches) => caches.has_room(tokens),
        }
    }

    fn mark(&self) -> Option<Mark> {
        match self {
            Self::Kv(_) => None,
            Self::Arrays(cache) => cache.mark(),
            Self::List(caches) => caches.mark(),
        }
    }

    fn rewind(&mut self, mark: Mark, tokens: i32) -> Result<()> {
        match self {
            Self::Kv(_) => Err(foreign()),
            Self::Arrays(cache) => cache.rewind(mark, tokens),
            Self::List(caches) => caches.rewind(mark, tokens),
        }
    }
}

impl<T: Trim + Clone> Trim for Vec<T> {
    /// Trims all or none: the layers of a model have one sequence.
    fn trim(&mut self, tokens: i32) -> Result<()> {
        all_or_none(self, |parts| parts.iter_mut().try_for_each(|part| part.trim(tokens)))
    }

    fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        all_or_none(self, |parts| parts.iter_mut().try_for_each(|part| part.reserve_trim(tokens)))
    }

    fn has_room(&self, tokens: i32) -> bool {
        self.iter().all(|part| part.has_room(tokens))
    }

    fn mark(&self) -> Option<Mark> {
        let parts: Vec<Option<Mark>> = self.iter().map(Trim::mark).collect();
        parts.iter().any(Option::is_some).then_some(Mark::Parts(parts))
    }

    fn rewind(&mut self, mark: Mark, tokens: i32) -> Result<()> {
        let parts = match mark {
            Mark::Parts(parts) if parts.len() == self.len() => parts,
            _ => return Err(foreign()),
        };
        all_or_none(self, |states| {
            states.iter_mut().zip(parts).try_for_each(|(state, part)| match part {
                Some(mark) => state.rewind(mark, tokens),
                None => state.trim(tokens),
            })
        })
    }
}

fn foreign() -> Error {
    Error::invalid("a state is given the mark of another one", "give a mark back to the state that it was taken of")
}

/// Changes a state of several parts. Where one of them fails, all stay what they were.
pub(super) fn all_or_none<S: Clone>(state: &mut S, change: impl FnOnce(&mut S) -> Result<()>) -> Result<()> {
    let mut changed = state.clone();
    change(&mut changed)?;
    *state = changed;
    Ok(())
}
