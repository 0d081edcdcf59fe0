//! Padding: positions of a batch that hold no token.

use mlx_rs::{Array, ops};
use tacit_core::{Result, Tree};

/// On which side sequences are padded to one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PaddingSide {
    /// Before their first token, so that all end together.
    Left,
    /// Behind their last one, so that all begin together.
    Right,
}

/// One range of padding in each sequence of a batch: from the position `from`, and up to `to`.
#[derive(Tree, Clone, Debug)]
pub(super) struct Padding {
    /// `i32[batch, 1]`.
    from: Array,
    /// `i32[batch, 1]`.
    to: Array,
}

impl Padding {
    /// The range of each sequence; an empty one where both of its numbers are equal.
    pub(super) fn new(ranges: &[(i32, i32)]) -> Self {
        let of = |end: fn(&(i32, i32)) -> i32| {
            Array::from_slice(&ranges.iter().map(end).collect::<Vec<_>>(), &[ranges.len() as i32, 1])
        };
        Self { from: of(|range| range.0), to: of(|range| range.1) }
    }

    /// The same ranges, `tokens` positions later.
    pub(super) fn later(&self, tokens: i32) -> Result<Self> {
        let by = Array::from_int(tokens);
        Ok(Self { from: self.from.add(&by)?, to: self.to.add(&by)? })
    }

    /// The ranges of the sequences that `rows` names.
    pub(super) fn rows(&self, rows: &Array) -> Result<Self> {
        Ok(Self { from: self.from.take_axis(rows, 0)?, to: self.to.take_axis(rows, 0)? })
    }

    /// The ranges of several batches as those of one.
    pub(super) fn joined(padding: &[Self]) -> Result<Self> {
        let of = |end: fn(&Self) -> &Array| ops::concatenate(&padding.iter().map(end).collect::<Vec<_>>(), 0);
        Ok(Self { from: of(|range| &range.from)?, to: of(|range| &range.to)? })
    }

    /// The positions of tokens, `i32[1, n]` with -1 where there is none: `i32[batch, n]`, or `i32[1, n]` without padding.
    pub(super) fn positions(padding: &[Self], tokens: &Array) -> Result<Array> {
        let mut positions = tokens.clone();
        for range in padding {
            let behind = tokens.subtract(&range.from)?;
            let within = ops::clip(behind, (&Array::from_int(0), &range.to.subtract(&range.from)?))?;
            positions = positions.subtract(within)?;
        }
        for range in padding {
            let inside = tokens.ge(&range.from)?.logical_and(tokens.lt(&range.to)?)?;
            positions = ops::select(inside, Array::from_int(-1), positions)?;
        }
        Ok(positions)
    }

    /// What to add to a token's place behind `next: i32[1]` for its position, `i32[batch]`: padding that has begun is left out.
    pub(super) fn offset(padding: &[Self], next: &Array, batch: i32) -> Result<Array> {
        if padding.is_empty() && batch == 1 {
            return Ok(next.clone());
        }
        let mut offset = next.add(ops::zeros::<i32>(&[batch, 1])?)?;
        for range in padding {
            let length = range.to.subtract(&range.from)?;
            let begun = range.from.le(next)?.as_dtype(mlx_rs::Dtype::Int32)?;
            offset = offset.subtract(length.multiply(begun)?)?;
        }
        Ok(offset.reshape(&[batch])?)
    }
}
