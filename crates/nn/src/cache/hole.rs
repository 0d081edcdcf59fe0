//! Tokens of a batch that are none.

use mlx_rs::{Array, ops};
use tacit_core::{Result, Tree};

/// On which side sequences are padded to one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Before their first token, so that all end together.
    Left,
    /// Behind their last one, so that all begin together.
    Right,
}

/// A range of tokens of each sequence that are padding.
#[derive(Tree, Clone, Debug)]
pub(super) struct Hole {
    /// `i32[batch, 1]`.
    from: Array,
    /// `i32[batch, 1]`.
    to: Array,
}

impl Hole {
    /// One of each sequence, empty where both numbers are one.
    pub(super) fn new(ranges: &[(i32, i32)]) -> Self {
        let of = |end: fn(&(i32, i32)) -> i32| {
            Array::from_slice(&ranges.iter().map(end).collect::<Vec<_>>(), &[ranges.len() as i32, 1])
        };
        Self { from: of(|range| range.0), to: of(|range| range.1) }
    }

    /// So many tokens later.
    pub(super) fn later(&self, tokens: i32) -> Result<Self> {
        let by = Array::from_int(tokens);
        Ok(Self { from: self.from.add(&by)?, to: self.to.add(&by)? })
    }

    /// Of some sequences.
    pub(super) fn rows(&self, rows: &Array) -> Result<Self> {
        Ok(Self { from: self.from.take_axis(rows, 0)?, to: self.to.take_axis(rows, 0)? })
    }

    /// Those of several batches as one.
    pub(super) fn joined(holes: &[Self]) -> Result<Self> {
        let of = |end: fn(&Self) -> &Array| ops::concatenate(&holes.iter().map(end).collect::<Vec<_>>(), 0);
        Ok(Self { from: of(|hole| &hole.from)?, to: of(|hole| &hole.to)? })
    }

    /// The positions of tokens, `i32[1, n]` with -1 where there is none: `i32[batch, n]`, or `i32[1, n]` without holes.
    pub(super) fn positions(holes: &[Self], tokens: &Array) -> Result<Array> {
        let mut positions = tokens.clone();
        for hole in holes {
            let behind = tokens.subtract(&hole.from)?;
            let within = ops::clip(behind, (&Array::from_int(0), &hole.to.subtract(&hole.from)?))?;
            positions = positions.subtract(within)?;
        }
        for hole in holes {
            let padding = tokens.ge(&hole.from)?.logical_and(tokens.lt(&hole.to)?)?;
            positions = ops::select(padding, Array::from_int(-1), positions)?;
        }
        Ok(positions)
    }

    /// What to add to a token's place behind `next: i32[1]` for its position, `i32[batch]`: padding that has begun is left out.
    pub(super) fn offset(holes: &[Self], next: &Array, batch: i32) -> Result<Array> {
        let mut offset = next.add(ops::zeros::<i32>(&[batch, 1])?)?;
        for hole in holes {
            let length = hole.to.subtract(&hole.from)?;
            let begun = hole.from.le(next)?.as_dtype(mlx_rs::Dtype::Int32)?;
            offset = offset.subtract(length.multiply(begun)?)?;
        }
        Ok(offset.reshape(&[batch])?)
    }
}
