//! States of several sequences.

use mlx_rs::Array;
use tacit_core::{Error, Result, Tree};

use super::trim::all_or_none;
use crate::{ArraysCache, Cache, KvCache, PaddingSide};

/// A state that knows which tokens belong to which sequence: needed to generate from several prompts.
///
/// Prompts of a batch differ in length, and their sequences end at different times while the step goes on with all of them. The
/// caches of this crate implement it, and lists and tuples of what does. A state of one's own that is given single prompts
/// implements it without a method; a batch is then refused.
///
/// ```
/// # extern crate tacit_core as tacit;
/// use mlx_rs::Array;
/// use tacit_core::Tree;
/// use tacit_nn::generate::Sequences;
///
/// #[derive(Tree, Clone)]
/// struct Seen(Array);
///
/// impl Sequences for Seen {}
/// assert!(Seen(Array::from_int(0)).pad_left(3, &[3, 2]).is_err());
/// ```
pub trait Sequences: Tree + Clone {
    /// Announces the next `tokens`: prompts of these lengths, padded on the left. It is called for every batch of several
    /// prompts.
    ///
    /// # Errors
    ///
    /// The state does not know its sequences, or cannot be told of padding here. It is then as it was.
    fn pad_left(&mut self, tokens: i32, lengths: &[i32]) -> Result<()> {
        let _ = tokens;
        Err(unknown(lengths.len()))
    }

    /// The sequences at these places of the batch, in this order.
    ///
    /// # Errors
    ///
    /// The state does not know its sequences, or has no such place.
    fn select(&self, rows: &[i32]) -> Result<Self> {
        Err(unknown(rows.len()))
    }

    /// Joins batches, which may have different numbers of tokens, into one.
    ///
    /// # Errors
    ///
    /// The states do not know their sequences, or cannot stand in one batch.
    fn merge(parts: &[Self]) -> Result<Self> {
        Err(unknown(parts.len()))
    }
}

fn unknown(sequences: usize) -> Error {
    Error::invalid(
        format!("the state of {sequences} sequences does not know which of its tokens are whose"),
        "implement the methods of `Sequences` for it, or give one prompt at a time",
    )
}

/// An array says nothing of sequences.
impl Sequences for Array {}

/// Nothing was seen of any sequence.
impl Sequences for () {
    fn pad_left(&mut self, _: i32, _: &[i32]) -> Result<()> {
        Ok(())
    }

    fn select(&self, _: &[i32]) -> Result<Self> {
        Ok(())
    }

    fn merge(_: &[Self]) -> Result<Self> {
        Ok(())
    }
}

impl Sequences for KvCache {
    fn pad_left(&mut self, tokens: i32, lengths: &[i32]) -> Result<()> {
        let sinks = self.window().bounds().map_or(0, |(_, sinks)| sinks);
        // A sequence that ends is merged with the others, and may end before its first token.
        if lengths.len() > 1 && self.len().saturating_add(tokens) < sinks {
            let before = self.len();
            return Err(Error::invalid(
                format!("prompts of {tokens} tokens behind {before} do not fill the {sinks} sinks that a batch shares"),
                "give longer prompts, or each by itself",
            ));
        }
        self.prepare(tokens, lengths, PaddingSide::Left)
    }

    fn select(&self, rows: &[i32]) -> Result<Self> {
        self.filter(rows)
    }

    fn merge(parts: &[Self]) -> Result<Self> {
        Self::merge(parts)
    }
}

impl Sequences for ArraysCache {
    fn pad_left(&mut self, tokens: i32, lengths: &[i32]) -> Result<()> {
        self.check_batch(lengths.len())?;
        if lengths.iter().any(|&length| length != tokens) {
            // Padding would stand between the tokens that the state has seen and the next ones.
            if !self.is_empty() {
                return Err(Error::invalid(
                    format!("prompts of {lengths:?} tokens go on from a state, which takes no padding"),
                    "give the sequences prompts of one length, or each by itself",
                ));
            }
            self.set_left_padding(&lengths.iter().map(|length| tokens - length).collect::<Vec<_>>());
        }
        Ok(())
    }

    fn select(&self, rows: &[i32]) -> Result<Self> {
        self.filter(rows)
    }

    fn merge(parts: &[Self]) -> Result<Self> {
        Self::merge(parts)
    }
}

impl Sequences for Cache {
    fn pad_left(&mut self, tokens: i32, lengths: &[i32]) -> Result<()> {
        match self {
            Self::Kv(cache) => Sequences::pad_left(cache, tokens, lengths),
            Self::Arrays(cache) => Sequences::pad_left(cache, tokens, lengths),
            Self::List(caches) => caches.pad_left(tokens, lengths),
        }
    }

    fn select(&self, rows: &[i32]) -> Result<Self> {
        Ok(match self {
            Self::Kv(cache) => Self::Kv(cache.filter(rows)?),
            Self::Arrays(cache) => Self::Arrays(cache.filter(rows)?),
            Self::List(caches) => Self::List(caches.select(rows)?),
        })
    }

    fn merge(parts: &[Self]) -> Result<Self> {
        /// The parts of one kind, if all are of it.
        fn all<'p, T: Clone + 'p>(parts: &'p [Cache], of: impl Fn(&'p Cache) -> Option<&'p T>) -> Option<Vec<T>> {
            parts.iter().map(|part| of(part).cloned()).collect()
        }
        if let Some(parts) = all(parts, |part| if let Self::Kv(cache) = part { Some(cache) } else { None }) {
            return Ok(Self::Kv(KvCache::merge(&parts)?));
        }
        if let Some(parts) = all(parts, |part| if let Self::Arrays(cache) = part { Some(cache) } else { None }) {
            return Ok(Self::Arrays(ArraysCache::merge(&parts)?));
        }
        let lists = all(parts, |part| if let Self::List(caches) = part { Some(caches) } else { None });
        let lists = lists.ok_or_else(|| {
            Error::invalid("caches of different kinds are merged", "merge the caches of one layer of one model")
        })?;
        Ok(Self::List(Sequences::merge(&lists)?))
    }
}

/// The layers of a model have the same sequences.
impl<T: Sequences> Sequences for Vec<T>
where
    Self: Tree,
{
    fn pad_left(&mut self, tokens: i32, lengths: &[i32]) -> Result<()> {
        all_or_none(self, |parts| parts.iter_mut().try_for_each(|part| part.pad_left(tokens, lengths)))
    }

    fn select(&self, rows: &[i32]) -> Result<Self> {
        self.iter().map(|part| part.select(rows)).collect()
    }

    fn merge(parts: &[Self]) -> Result<Self> {
        let layers = parts.first().map_or(0, Vec::len);
        if parts.iter().any(|part| part.len() != layers) {
            return Err(Error::invalid("states of different layers are merged", "merge the states of one model"));
        }
        (0..layers).map(|at| T::merge(&parts.iter().map(|part| part[at].clone()).collect::<Vec<_>>())).collect()
    }
}

macro_rules! tuples {
    ($($($part:ident $at:tt),+;)+) => {
        $(
            impl<$($part: Sequences),+> Sequences for ($($part,)+) {
                fn pad_left(&mut self, tokens: i32, lengths: &[i32]) -> Result<()> {
                    all_or_none(self, |parts| {
                        $(parts.$at.pad_left(tokens, lengths)?;)+
                        Ok(())
                    })
                }

                fn select(&self, rows: &[i32]) -> Result<Self> {
                    Ok(($(self.$at.select(rows)?,)+))
                }

                fn merge(parts: &[Self]) -> Result<Self> {
                    Ok(($($part::merge(&parts.iter().map(|part| part.$at.clone()).collect::<Vec<_>>())?,)+))
                }
            }
        )+
    };
}

tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
}
