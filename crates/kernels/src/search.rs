//! The nearest of up to sixteen values, or of 256, by the thresholds between them.

use crate::{
    runs::{self, Runs},
    simd::{Simd, Thresholds},
};

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
    /// What computes ranks, if the thresholds are such.
    runs: Option<Runs>,
    /// As the bits of floats.
    codes: [f32; 256],
}

/// What finds a rank of a [`FarSearch`], in registers.
#[derive(Clone, Copy)]
pub(crate) enum Far<S: Simd> {
    Runs(runs::Ready<S>),
    /// The sixteen ranks that it lies in.
    Sixteens(S::Ranks),
}

impl FarSearch {
    /// At most 255 thresholds, and the codes of the ranks.
    pub(crate) fn new(thresholds: &[f32], codes: &[u8]) -> Self {
        let runs = Runs::from_thresholds(thresholds);
        let thresholds: [f32; 256] = std::array::from_fn(|at| thresholds.get(at).copied().unwrap_or(f32::INFINITY));
        Self {
            sixteenths: Thresholds::new(std::array::from_fn(|at| thresholds[16 * at + 15])),
            thresholds,
            runs,
            codes: std::array::from_fn(|at| f32::from_bits(codes.get(at).copied().unwrap_or(0).into())),
        }
    }

    /// Whether codes are ranks.
    pub(crate) fn is_in_order(&self) -> bool {
        (0..=u8::MAX).map(u32::from).eq(self.codes.map(f32::to_bits))
    }

    #[inline(always)]
    pub(crate) fn ready<S: Simd>(&self, simd: S) -> Far<S> {
        match &self.runs {
            Some(runs) => Far::Runs(runs.ready(simd)),
            None => Far::Sixteens(simd.ranks(&self.sixteenths)),
        }
    }

    /// The rank of each float, in the lowest byte of its word.
    #[inline(always)]
    pub(crate) fn rank<S: Simd>(&self, simd: S, ready: Far<S>, x: S::F) -> S::I {
        let sixteens = match ready {
            Far::Runs(runs) => return runs.rank(simd, &self.thresholds, x),
            Far::Sixteens(sixteens) => sixteens,
        };
        let mut rank = simd.rank(sixteens, x);
        for _ in 0..4 {
            rank = simd.add_words(rank, rank);
        }
        for step in [8, 4, 2, 1] {
            let middle = simd.add_words(rank, simd.splat_words(step - 1));
            let thresholds = simd.lookup_far(simd.far(&self.thresholds), middle);
            rank = simd.raise(rank, simd.splat_words(step), x, thresholds);
        }
        rank
    }

    #[inline(always)]
    pub(crate) fn code<S: Simd>(&self, simd: S, ready: Far<S>, x: S::F) -> S::I {
        simd.words(simd.lookup_far(simd.far(&self.codes), self.rank(simd, ready, x)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Isa, dynamic8,
        nearest::Table,
        simd::{Kernel, run},
        stochastic::Levels,
    };

    /// The ranks of whole vectors.
    struct Ranks<'a>(&'a FarSearch, &'a [f32], &'a mut [u8]);

    impl Kernel for Ranks<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let Self(search, x, ranks) = self;
            let ready = search.ready(simd);
            for (x, ranks) in x.chunks_exact(S::LANES).zip(ranks.chunks_exact_mut(S::LANES)) {
                // SAFETY: there is a vector of floats, and as many bytes.
                unsafe {
                    let words = search.rank(simd, ready, simd.load(x.as_ptr()));
                    simd.store_bytes(ranks.as_mut_ptr(), words);
                }
            }
        }
    }

    /// Every sign and exponent with some mantissas, what lies at each threshold and about it, and steps from each to the next.
    fn floats(thresholds: &[f32]) -> Vec<f32> {
        let mut x: Vec<f32> =
            (0..1 << 17).map(|at: u32| f32::from_bits(at << 15 | at.wrapping_mul(0x9e37) & 0x7fff)).collect();
        x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, f32::from_bits(1)]);
        for threshold in thresholds {
            x.push(*threshold);
            let (mut below, mut above) = (*threshold, *threshold);
            for _ in 0..300 {
                (below, above) = (below.next_down(), above.next_up());
                x.extend([below, above]);
            }
        }
        for pair in thresholds.windows(2) {
            x.extend((1..64_u8).map(|at| pair[0] + (pair[1] - pair[0]) * f32::from(at) / 64.0));
        }
        // One that is near a threshold decides how the others of its vector are found: again, with other neighbors.
        x.extend((0..x.len()).map(|at| x[at * 7919 % x.len()]).collect::<Vec<_>>());
        x.resize(x.len().next_multiple_of(16), 0.0);
        x
    }

    fn ranks(search: &FarSearch, x: &[f32], isa: Isa) -> Vec<u8> {
        let mut ranks = vec![0; x.len()];
        run(isa, Ranks(search, x, &mut ranks));
        ranks
    }

    #[test]
    fn ranks_of_runs_are_those_of_a_search() {
        for values in [dynamic8::map(), dynamic8::unsigned_map()] {
            let nearest = Table::new(values).expect("a table").thresholds().to_vec();
            let between = Levels::new(values).expect("levels").thresholds().to_vec();
            for thresholds in [nearest, between] {
                let search = FarSearch::new(&thresholds, &[]);
                assert!(search.runs.is_some(), "the decades of the table are divided evenly");
                let x = floats(&thresholds);
                let searched = FarSearch { runs: None, ..search.clone() };
                let expected: Vec<u8> =
                    x.iter().map(|x| thresholds.partition_point(|threshold| x > threshold) as u8).collect();
                for isa in Isa::available() {
                    for (name, search) in [("runs", &search), ("a search", &searched)] {
                        let found = ranks(search, &x, isa);
                        let off = (0..x.len()).find(|&at| found[at] != expected[at]);
                        assert_eq!(
                            off,
                            None,
                            "{name} on {isa:?}: {:?}",
                            off.map(|at| (x[at], found[at], expected[at]))
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn thresholds_in_many_runs_are_searched() {
        let squares: Vec<f32> = (0..255_u16).map(|at| f32::from(at) * f32::from(at)).collect();
        assert!(FarSearch::new(&squares, &[]).runs.is_none());
        let equal = [1.0; 255];
        assert!(FarSearch::new(&equal, &[]).runs.is_none());
        let even: Vec<f32> = (0..255_u8).map(f32::from).collect();
        let search = FarSearch::new(&even, &[]);
        assert!(search.runs.is_some());
        let x: Vec<f32> = (0..512_u16).map(|at| f32::from(at) / 2.0).collect();
        let expected: Vec<u8> = x.iter().map(|x| even.partition_point(|threshold| x > threshold) as u8).collect();
        for isa in Isa::available() {
            assert_eq!(ranks(&search, &x, isa), expected, "{isa:?}");
        }
    }
}
