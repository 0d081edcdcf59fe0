//! How bytes of codes become the weights of integer products.

use crate::{integers::Integers, simd::Dot};

/// Codes of one kind.
pub(crate) trait Decode {
    /// Whether a byte holds two codes.
    const PAIRS: bool;

    /// What the weights are above the integers, where those of signed integers are `signed` above them.
    fn above(signed: i32) -> i32;

    /// The weights of a vector of codes: of those in the lower halves of its bytes, and of those in the upper ones if there are
    /// such.
    fn weights<S: Dot>(simd: S, table: S::B, codes: S::I) -> [S::I; 2];

    /// Adds the products of the weights with activations to two sums, of which the sum counts.
    fn dot<S: Dot>(simd: S, sums: [S::I; 2], weights: [S::I; 2], x: [S::I; 2]) -> [S::I; 2];

    /// The same with one sum.
    #[cfg(target_arch = "x86_64")]
    fn dot_all<S: Dot>(simd: S, sum: S::I, weights: [S::I; 2], x: [S::I; 2]) -> S::I;
}

/// Codes of four bits that are looked up.
pub(crate) struct LookedUp;

/// Codes of four bits that stand for themselves.
pub(crate) struct Themselves;

/// Integers of eight bits, `SIGNED` or not.
pub(crate) struct Bytes<const SIGNED: bool>;

impl Decode for LookedUp {
    const PAIRS: bool = true;

    fn above(signed: i32) -> i32 {
        signed
    }

    #[inline(always)]
    fn weights<S: Dot>(simd: S, table: S::B, codes: S::I) -> [S::I; 2] {
        [simd.lookup_weights(table, codes), simd.lookup_weights(table, simd.shift(codes, 4))]
    }

    #[inline(always)]
    fn dot<S: Dot>(simd: S, sums: [S::I; 2], weights: [S::I; 2], x: [S::I; 2]) -> [S::I; 2] {
        [simd.dot(sums[0], weights[0], x[0]), simd.dot(sums[1], weights[1], x[1])]
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn dot_all<S: Dot>(simd: S, sum: S::I, weights: [S::I; 2], x: [S::I; 2]) -> S::I {
        simd.dot(simd.dot(sum, weights[0], x[0]), weights[1], x[1])
    }
}

impl Decode for Themselves {
    const PAIRS: bool = true;

    fn above(_: i32) -> i32 {
        0
    }

    #[inline(always)]
    fn weights<S: Dot>(simd: S, _: S::B, codes: S::I) -> [S::I; 2] {
        let four_bits = simd.splat_words(0x0f0f_0f0f);
        [simd.and(codes, four_bits), simd.and(simd.shift(codes, 4), four_bits)]
    }

    #[inline(always)]
    fn dot<S: Dot>(simd: S, sums: [S::I; 2], weights: [S::I; 2], x: [S::I; 2]) -> [S::I; 2] {
        simd.dot_codes(sums, weights, x)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn dot_all<S: Dot>(simd: S, sum: S::I, weights: [S::I; 2], x: [S::I; 2]) -> S::I {
        simd.dot_all_codes(sum, weights, x)
    }
}

impl<const SIGNED: bool> Decode for Bytes<SIGNED> {
    const PAIRS: bool = false;

    fn above(signed: i32) -> i32 {
        Integers::Bytes { bytes: &[], signed: SIGNED }.above(signed)
    }

    #[inline(always)]
    fn weights<S: Dot>(simd: S, _: S::B, codes: S::I) -> [S::I; 2] {
        [if Self::above(S::ABOVE) == 0 { codes } else { simd.turned(codes) }; 2]
    }

    #[inline(always)]
    fn dot<S: Dot>(simd: S, sums: [S::I; 2], weights: [S::I; 2], x: [S::I; 2]) -> [S::I; 2] {
        [simd.dot(sums[0], weights[0], x[0]), sums[1]]
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn dot_all<S: Dot>(simd: S, sum: S::I, weights: [S::I; 2], x: [S::I; 2]) -> S::I {
        simd.dot(sum, weights[0], x[0])
    }
}
