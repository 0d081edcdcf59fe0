//! Ranks among thresholds, for vectors that cannot look up 32 numbers at once.

use super::vector::Simd;

/// How many thresholds each float is greater than, by a binary search: the eighth, and tables of those of the later steps.
#[inline(always)]
pub(super) fn rank_by_steps<S: Simd>(simd: S, first: S::F, later: [S::T; 3], x: S::F) -> S::I {
    let mut rank = simd.raise(simd.splat_words(0), simd.splat_words(8), x, first);
    for (table, step) in later.into_iter().zip([4, 2, 1]) {
        rank = simd.raise(rank, simd.splat_words(step), x, simd.lookup(table, rank));
    }
    rank
}
