//! The rank of a float among thresholds that lie in a few runs of equal steps, as those of a table whose decades are
//! divided evenly: it is computed, without a search.
//!
//! In each run the place of a float among the thresholds is a line, which is at `k + 1/2` at threshold `k`, or nearer to that than
//! [`NEAR`]. Rounding keeps the order of two floats, and so does the line. So a place that is not as near to a half is rounded to
//! the number of thresholds below, exactly; and one that is leaves a single threshold to compare with.

use crate::simd::{Simd, Thresholds, nearest_integers, rounded_off};

/// How far from a half a line may be at a threshold. One of 128 vectors of sixteen floats holds a place that is as near to one.
const NEAR: f32 = 1.0 / 4096.0;

/// At most sixteen runs, and a threshold between each and the next, which is in none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    between: Thresholds,
    slopes: [f32; 16],
    offsets: [f32; 16],
    /// How many thresholds are below each run, and up to its end.
    least: [f32; 16],
    greatest: [f32; 16],
}

/// [`Runs`] in registers.
#[derive(Clone, Copy)]
pub(crate) struct Ready<S: Simd> {
    between: S::Ranks,
    slopes: S::T,
    offsets: S::T,
    least: S::T,
    greatest: S::T,
}

impl Runs {
    /// The runs of thresholds that ascend, at most 255; none if they are in more runs.
    pub(crate) fn from_thresholds(thresholds: &[f32]) -> Option<Self> {
        let (mut slopes, mut offsets) = ([0.0; 16], [0.0; 16]);
        let (mut least, mut greatest) = ([0.0; 16], [0.0; 16]);
        let mut between = [f32::INFINITY; 15];
        let (mut run, mut begin) = (0, 0);
        loop {
            let end = begin + even(&thresholds[begin..]);
            [slopes[run], offsets[run]] = line(&thresholds[begin..end], begin)?;
            [least[run], greatest[run]] = [begin as f32, end as f32];
            let Some(&next) = thresholds.get(end) else { break };
            *between.get_mut(run)? = next;
            (run, begin) = (run + 1, end + 1);
        }
        Some(Self { between: Thresholds::new(between), slopes, offsets, least, greatest })
    }

    #[inline(always)]
    pub(crate) fn ready<S: Simd>(&self, simd: S) -> Ready<S> {
        Ready {
            between: simd.ranks(&self.between),
            slopes: simd.table(&self.slopes),
            offsets: simd.table(&self.offsets),
            least: simd.table(&self.least),
            greatest: simd.table(&self.greatest),
        }
    }
}

impl<S: Simd> Ready<S> {
    /// In the lowest byte of each word, how many of the thresholds each float is greater than.
    #[inline(always)]
    pub(crate) fn rank(self, simd: S, thresholds: &[f32; 256], x: S::F) -> S::I {
        let run = simd.rank(self.between, x);
        let place = simd.fma(x, simd.lookup(self.slopes, run), simd.lookup(self.offsets, run));
        // In this order what is no number has the least place, as it has the least rank in a search.
        let place = simd.min(simd.max(place, simd.lookup(self.least, run)), simd.lookup(self.greatest, run));
        let nearest = nearest_integers(simd, place);
        if simd.all_less(rounded_off(simd, place, nearest), simd.splat(0.5 - NEAR)) {
            return nearest;
        }
        let below = nearest_integers(simd, simd.sub(place, simd.splat(0.5)));
        simd.raise(below, simd.splat_words(1), x, simd.lookup_far(simd.far(thresholds), below))
    }
}

/// How many thresholds from the first on are equally far apart; 0 if the first two are one.
fn even(thresholds: &[f32]) -> usize {
    let mut steps = thresholds.windows(2).map(|pair| pair[1] - pair[0]);
    let Some(first) = steps.next().filter(|step| *step > 0.0) else { return 0 };
    2 + steps.take_while(|step| (step - first).abs() < NEAR * first).count()
}

/// The slope and the offset of the line that is at a half at each of these thresholds, of which so many lie before; none if there is
/// no such line.
fn line(thresholds: &[f32], before: usize) -> Option<[f32; 2]> {
    let [first, .., last] = thresholds else { return Some([0.0, before as f32]) };
    let slope = (thresholds.len() - 1) as f64 / (f64::from(*last) - f64::from(*first));
    let offset = (before as f64 + 0.5 - slope * f64::from(*first)) as f32;
    let slope = slope as f32;
    let is_near = |(at, x): (usize, &f32)| {
        let half = (before + at) as f32 + 0.5;
        // With one rounding and with two, as instruction sets have it.
        [x.mul_add(slope, offset), x * slope + offset].iter().all(|place| (place - half).abs() < NEAR)
    };
    thresholds.iter().enumerate().all(is_near).then_some([slope, offset])
}
