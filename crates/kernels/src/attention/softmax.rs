//! A softmax that is taken a part of a row at a time.
//!
//! With `m` the greatest score so far, a row keeps `sum(exp(s - m))` and `sum(exp(s - m) v)`; when a greater one comes, both
//! are scaled. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).

use crate::{
    Isa,
    simd::{Kernel, Simd, exp, run},
};

/// What is known of a row's scores so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) max: f32,
    /// `sum(exp(s - max))`.
    pub(super) sum: f32,
    /// Whether scores were passed over because a mask hides their tokens.
    pub(super) hidden: bool,
}

impl Row {
    pub(super) const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0, hidden: false };

    /// Takes more scores, which become their weights relative to the greatest so far; gives what the weights before them are
    /// multiplied with.
    pub(super) fn take(&mut self, isa: Isa, scores: &mut [f32]) -> f32 {
        let max = run(isa, Max { scores });
        let max = if max > self.max { max } else { self.max };
        if max == f32::NEG_INFINITY {
            // Infinities that cancel out, and NaN.
            if scores.iter().any(|score| score.is_nan()) {
                self.sum = f32::NAN;
            }
            scores.fill(0.0);
            return 1.0;
        }
        let factor = run(isa, Factor(self.max - max));
        self.max = max;
        self.sum = self.sum * factor + run(isa, Weigh { max, scores });
        factor
    }

    /// Takes what is known of other scores; gives what the weights of each are multiplied with.
    pub(super) fn join(&mut self, isa: Isa, other: &Self) -> (f32, f32) {
        self.hidden |= other.hidden;
        let max = if other.max > self.max { other.max } else { self.max };
        if max == f32::NEG_INFINITY {
            self.sum += other.sum;
            return (1.0, 1.0);
        }
        let factors = (run(isa, Factor(self.max - max)), run(isa, Factor(other.max - max)));
        self.sum = self.sum * factors.0 + other.sum * factors.1;
        self.max = max;
        factors
    }
}

/// The greatest of some numbers, NaN left out unless there is nothing else; minus infinity of none.
struct Max<'a> {
    scores: &'a [f32],
}

impl Kernel for Max<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut max = [simd.splat(f32::NEG_INFINITY); 2];
        let pairs = self.scores.chunks_exact(2 * S::LANES);
        let rest = pairs.remainder();
        for pair in pairs {
            for (i, max) in max.iter_mut().enumerate() {
                // SAFETY: the pair has two vectors. What is NaN comes first, so that it is left out.
                *max = simd.max(unsafe { simd.load(pair.as_ptr().add(i * S::LANES)) }, *max);
            }
        }
        let mut lanes = [f32::NEG_INFINITY; 16];
        // SAFETY: there are 16 floats, the most that a vector holds.
        unsafe { simd.store(lanes.as_mut_ptr(), simd.max(max[0], max[1])) };
        rest.iter()
            .chain(&lanes[..S::LANES])
            .fold(f32::NEG_INFINITY, |max, &score| if score > max { score } else { max })
    }
}

struct Factor(f32);

impl Kernel for Factor {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut lanes = [0.0; 16];
        // SAFETY: there are 16 floats, the most that a vector holds.
        unsafe { simd.store(lanes.as_mut_ptr(), exp(simd, simd.splat(self.0))) };
        lanes[0]
    }
}

/// Makes `exp(s - max)` of scores, and gives the sum.
struct Weigh<'a> {
    max: f32,
    scores: &'a mut [f32],
}

impl Kernel for Weigh<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let less = simd.splat(-self.max);
        let mut sum = simd.splat(0.0);
        let mut chunks = self.scores.chunks_exact_mut(S::LANES);
        for chunk in &mut chunks {
            // SAFETY: the chunk is a vector.
            unsafe {
                let weights = exp(simd, simd.add(simd.load(chunk.as_ptr()), less));
                simd.store(chunk.as_mut_ptr(), weights);
                sum = simd.add(sum, weights);
            }
        }
        let rest = chunks.into_remainder();
        if !rest.is_empty() {
            let mut lanes = [f32::NEG_INFINITY; 16];
            lanes[..rest.len()].copy_from_slice(rest);
            // SAFETY: there are 16 floats, the most that a vector holds.
            unsafe {
                let weights = exp(simd, simd.add(simd.load(lanes.as_ptr()), less));
                simd.store(lanes.as_mut_ptr(), weights);
                sum = simd.add(sum, weights);
            }
            rest.copy_from_slice(&lanes[..rest.len()]);
        }
        simd.sum(sum)
    }
}
