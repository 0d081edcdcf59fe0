//! Floats that are rounded to integers by a sum.

use super::vector::Simd;

/// Between 2^23 and 2^24 floats are the integers, and their bits end as the integers' do.
pub(crate) const TO_INTEGERS: f32 = 12_582_912.0;

/// In the lowest bytes the integers nearest to `x`, of two the even one; `|x|` is below 2^22.
#[inline(always)]
pub(crate) fn nearest_integers<S: Simd>(simd: S, x: S::F) -> S::I {
    simd.words(simd.add(x, simd.splat(TO_INTEGERS)))
}

/// How far each `x` is from what [`nearest_integers`] made of it.
#[inline(always)]
pub(crate) fn rounded_off<S: Simd>(simd: S, x: S::F, nearest: S::I) -> S::F {
    let off = simd.sub(x, simd.sub(simd.floats(nearest), simd.splat(TO_INTEGERS)));
    simd.floats(simd.and(simd.words(off), simd.splat_words(i32::MAX as u32)))
}
