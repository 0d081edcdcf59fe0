//! Which tokens a query sees, or what is added to its scores.

use std::ops::Range;

use half::f16;

use crate::{
    Floats, KernelError,
    matrix::{check_length, check_size},
    simd::{Kernel, Simd},
};

/// Scores that are less than this count for nothing beside one that is not.
pub(super) const HIDDEN: f32 = -1e30;

/// What hides tokens from queries, read at `entries[entry] + query * row + token * column`.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    /// What is done to the scores.
    pub values: MaskValues<'a>,
    /// Where the mask of each entry begins.
    pub entries: &'a [usize],
    /// From one query of an entry to the next; 0 where all have one mask.
    pub row: usize,
    /// From one token to the next: 1, or 0 where all have one number.
    pub column: usize,
}

/// The numbers of a [`Mask`].
#[derive(Clone, Copy, Debug)]
pub enum MaskValues<'a> {
    /// Scores of tokens that are not visible are replaced.
    Visible {
        /// Whether each is visible: a byte that is not 0.
        visible: &'a [u8],
        /// The score that stands for one that is not.
        hidden: f32,
    },
    /// Numbers that are added to the scores.
    Added(Floats<'a>),
}

impl Mask<'_> {
    /// # Errors
    /// Some entry has no place, its mask reaches beyond the values, or the values of neighbouring tokens are neither one nor neighbours.
    pub(super) fn check(&self, entries: usize, queries: usize, tokens: usize) -> Result<(), KernelError> {
        check_length("mask.entries", self.entries.len(), entries, "one place for each entry")?;
        let (Some(last), false) = (self.entries.iter().max(), queries == 0 || tokens == 0) else { return Ok(()) };
        check_size("mask.column", self.column, self.column.min(1), "0 or 1, as tokens lie side by side")?;
        let reach =
            (queries - 1).checked_mul(self.row).and_then(|rows| rows.checked_add((tokens - 1) * self.column + 1));
        let needed = reach.and_then(|reach| reach.checked_add(*last)).unwrap_or(usize::MAX);
        let count = match self.values {
            MaskValues::Visible { visible, .. } => visible.len(),
            MaskValues::Added(values) => values.len(),
        };
        check_length("mask.values", count.min(needed), needed, "one for each place that the mask reaches")
    }

    /// The score of a token that is not seen, where such a score replaces what it was.
    pub(super) fn replacement(&self) -> Option<f32> {
        match self.values {
            MaskValues::Visible { hidden, .. } => Some(hidden),
            MaskValues::Added(_) => None,
        }
    }

    /// The tokens of `range` from the first to the last that the query sees, if there are any.
    pub(super) fn seen(&self, entry: usize, query: usize, range: &Range<usize>) -> Option<Range<usize>> {
        let start = self.entries[entry] + query * self.row + range.start * self.column;
        let len = if self.column == 0 { 1 } else { range.len() };
        let ends = match self.values {
            MaskValues::Visible { visible, .. } => ends(&visible[start..start + len], |visible| visible != 0),
            MaskValues::Added(Floats::F32(values)) => ends(&values[start..start + len], above),
            MaskValues::Added(Floats::F16(values)) => ends(&values[start..start + len], |value| above(value.to_f32())),
            MaskValues::Added(Floats::Bf16(values)) => ends(&values[start..start + len], |value| above(value.to_f32())),
        }?;
        Some(if self.column == 0 { range.clone() } else { range.start + ends.start..range.start + ends.end })
    }
}

/// Whether a score with this number added to it may count; one that is NaN does.
fn above(value: f32) -> bool {
    value > HIDDEN || value.is_nan()
}

/// From the first to the last for which it holds.
fn ends<T: Copy>(values: &[T], holds: impl Fn(T) -> bool) -> Option<Range<usize>> {
    let first = values.iter().position(|&value| holds(value))?;
    let last = values.iter().rposition(|&value| holds(value))?;
    Some(first..last + 1)
}

/// Puts a mask on the scores of one query.
pub(super) struct Masked<'a> {
    pub(super) mask: &'a Mask<'a>,
    pub(super) entry: usize,
    pub(super) query: usize,
    pub(super) first: usize,
    /// The score of a token that is not visible.
    pub(super) hidden: f32,
    pub(super) scores: &'a mut [f32],
}

impl Kernel for Masked<'_> {
    type Output = ();

    // Plain loops, which compilers make vectors of.
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { mask, entry, query, first, hidden, scores } = self;
        let start = mask.entries[entry] + query * mask.row + first * mask.column;
        let len = if mask.column == 0 { 1 } else { scores.len() };
        match mask.values {
            MaskValues::Visible { visible, .. } => match &visible[start..start + len] {
                [0] if mask.column == 0 => scores.fill(hidden),
                _ if mask.column == 0 => {}
                visible => {
                    for (score, visible) in scores.iter_mut().zip(visible) {
                        *score = if *visible == 0 { hidden } else { *score };
                    }
                }
            },
            MaskValues::Added(Floats::F32(values)) => add(scores, &values[start..start + len], |value| value),
            MaskValues::Added(Floats::F16(values)) => add(scores, &values[start..start + len], f16::to_f32),
            MaskValues::Added(Floats::Bf16(values)) => {
                add(scores, &values[start..start + len], |value| f32::from_bits(u32::from(value.to_bits()) << 16));
            }
        }
    }
}

#[inline(always)]
fn add<T: Copy>(scores: &mut [f32], values: &[T], widen: impl Fn(T) -> f32) {
    if let &[value] = values {
        for score in scores {
            *score += widen(value);
        }
        return;
    }
    for (score, value) in scores.iter_mut().zip(values) {
        *score += widen(*value);
    }
}
