//! The exponential function of numbers that are not positive, as a softmax needs it.

use super::{integers::TO_INTEGERS, vector::Simd};

/// What is less counts as minus infinity: its exponential is not a normal number.
const LEAST: f32 = -87.0;

/// The natural logarithm of 2, in two numbers of which the first has few digits.
pub(crate) const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `e^r = 1 + r + r^2 p(r)` for `|r|` up to half of the logarithm of 2: `p`, the highest power first. Source: Cephes.
pub(crate) const EXP: [f32; 6] = [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// `e^x` within two units of the last place for `x <= 0`, NaN for NaN, and 0 where it is not a normal number.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::F) -> S::F {
    let least = simd.splat(LEAST);
    let bounded = simd.max(least, x);
    // x = n ln 2 + r: a sum with so large a number is rounded to a whole one.
    let sum = simd.fma(bounded, simd.splat(std::f32::consts::LOG2_E), simd.splat(TO_INTEGERS));
    let n = simd.add(sum, simd.splat(-TO_INTEGERS));
    let mut r = simd.fma(n, simd.splat(-LN_2[0]), bounded);
    r = simd.fma(n, simd.splat(-LN_2[1]), r);
    let mut series = simd.splat(EXP[0]);
    for term in &EXP[1..] {
        series = simd.fma(series, r, simd.splat(*term));
    }
    let value = simd.fma(series, simd.mul(r, r), simd.add(r, simd.splat(1.0)));
    // The bits of a NaN are no exponent.
    let scaled = simd.fma(bounded, simd.splat(0.0), simd.scale(value, simd.words(sum)));
    simd.keep(scaled, x, least)
}
