//! The nearest of up to sixteen values, or of 256, by the thresholds between them.

use crate::simd::{Simd, Thresholds};

/// Thresholds that ascend, and the code of each rank: of how many of them a float is greater than.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    thresholds: Thresholds,
    codes: [u8; 16],
}

/// A [`Search`] in registers.
#[derive(Clone, Copy)]
pub(crate) struct Ready<S: Simd> {
    ranks: S::Ranks,
    codes: S::T,
}

impl Search {
    pub(crate) const fn new(thresholds: [f32; 15], codes: [u8; 16]) -> Self {
        Self { thresholds: Thresholds::new(thresholds), codes }
    }

    /// Whether codes are ranks.
    pub(crate) fn is_in_order(&self) -> bool {
        (0..16).eq(self.codes)
    }

    #[inline(always)]
    pub(crate) fn ready<S: Simd>(&self, simd: S) -> Ready<S> {
        let codes = self.codes.map(|code| f32::from_bits(u32::from(code)));
        Ready { ranks: simd.ranks(&self.thresholds), codes: simd.table(&codes) }
    }
}

impl<S: Simd> Ready<S> {
    #[inline(always)]
    pub(crate) fn rank(self, simd: S, x: S::F) -> S::I {
        simd.rank(self.ranks, x)
    }

    #[inline(always)]
    pub(crate) fn code(self, simd: S, x: S::F) -> S::I {
        simd.words(simd.lookup(self.codes, self.rank(simd, x)))
    }
}

/// As a [`Search`], of 256 values.
#[derive(Clone, Debug)]
pub(crate) struct FarSearch {
    /// Every sixteenth.
    sixteenths: Thresholds,
    /// The last one is no threshold.
    thresholds: [f32; 256],
    /// As the bits of floats.
    codes: [f32; 256],
}

impl FarSearch {
    /// At most 255 thresholds, and the codes of the ranks.
    pub(crate) fn new(thresholds: &[f32], codes: &[u8]) -> Self {
        let thresholds: [f32; 256] = std::array::from_fn(|at| thresholds.get(at).copied().unwrap_or(f32::INFINITY));
        Self {
            sixteenths: Thresholds::new(std::array::from_fn(|at| thresholds[16 * at + 15])),
            thresholds,
            codes: std::array::from_fn(|at| f32::from_bits(codes.get(at).copied().unwrap_or(0).into())),
        }
    }

    /// What finds the sixteen ranks that one lies in.
    #[inline(always)]
    pub(crate) fn ready<S: Simd>(&self, simd: S) -> S::Ranks {
        simd.ranks(&self.sixteenths)
    }

    #[inline(always)]
    pub(crate) fn rank<S: Simd>(&self, simd: S, sixteens: S::Ranks, x: S::F) -> S::I {
        let mut rank = simd.rank(sixteens, x);
        for _ in 0..4 {
            rank = simd.add_words(rank, rank);
        }
        for step in [8, 4, 2, 1] {
            let middle = simd.add_words(rank, simd.splat_words(step - 1));
            rank = simd.raise(rank, simd.splat_words(step), x, simd.lookup_far(&self.thresholds, middle));
        }
        rank
    }

    #[inline(always)]
    pub(crate) fn code<S: Simd>(&self, simd: S, sixteens: S::Ranks, x: S::F) -> S::I {
        simd.words(simd.lookup_far(&self.codes, self.rank(simd, sixteens, x)))
    }
}
