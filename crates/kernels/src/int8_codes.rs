//! How bytes of codes become the weights of integer products.

use std::marker::PhantomData;

use crate::{
    codec::{Offset, Signed, Unsigned},
    integers::Kind,
    simd::Dot,
};

/// Codes of one kind.
pub(crate) trait Decode {
    /// Whether a byte holds two codes.
    const PAIRS: bool;
    /// Bits of a code that is loaded as a byte, or of both.
    #[cfg(target_arch = "x86_64")]
    const BITS: usize = 8;

    /// What the weights are above the integers, where those of signed integers are `signed` above them.
    fn above(signed: i32) -> i32;

    /// A vector of the bytes that [`weights`](Self::weights) takes, from `4 * LANES * BITS / 8` bytes of codes.
    ///
    /// # Safety
    /// They are readable at `from`, and behind them [`SLACK`](crate::simd::SLACK) bytes if a code has not 8 bits.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load<S: Dot>(simd: S, from: *const u8) -> S::I {
        // SAFETY: the caller's promise.
        unsafe { simd.load_words(from) }
    }

    /// The weights of a vector of codes: of those in the lower halves of its bytes, and of those in the upper ones if there are
    /// such.
    fn weights<S: Dot>(simd: S, table: S::B, codes: S::I) -> [S::I; 2];

    /// Adds the products of one vector of weights with activations.
    #[inline(always)]
    fn product<S: Dot>(simd: S, sum: S::I, weights: S::I, x: S::I) -> S::I {
        simd.dot(sum, weights, x)
    }

    /// Adds the products of the weights with activations to two sums, of which the sum counts.
    #[inline(always)]
    fn dot<S: Dot>(simd: S, sums: [S::I; 2], weights: [S::I; 2], x: [S::I; 2]) -> [S::I; 2] {
        let first = Self::product(simd, sums[0], weights[0], x[0]);
        [first, if Self::PAIRS { Self::product(simd, sums[1], weights[1], x[1]) } else { sums[1] }]
    }

    /// The same with one sum.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn dot_all<S: Dot>(simd: S, sum: S::I, weights: [S::I; 2], x: [S::I; 2]) -> S::I {
        let first = Self::product(simd, sum, weights[0], x[0]);
        if Self::PAIRS { Self::product(simd, first, weights[1], x[1]) } else { first }
    }
}

/// Codes of four bits that are looked up.
pub(crate) struct LookedUp;

/// Codes of four bits that stand for themselves.
pub(crate) struct Themselves;

/// Integers of eight bits.
pub(crate) struct Bytes<K>(PhantomData<K>);

/// Integers of `BITS` bits of a stream, 2, 3, 5, 6 or 7, in offset binary or unsigned.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Packed<const BITS: usize, const OFFSET: bool>;

/// The kind of bytes, as a type.
pub(crate) trait ByteKind {
    const KIND: Kind;
}

impl ByteKind for Unsigned {
    const KIND: Kind = Kind::Unsigned;
}

impl ByteKind for Offset {
    const KIND: Kind = Kind::Offset;
}

impl ByteKind for Signed {
    const KIND: Kind = Kind::Signed;
}

impl Decode for LookedUp {
    const PAIRS: bool = true;

    fn above(signed: i32) -> i32 {
        signed
    }

    #[inline(always)]
    fn weights<S: Dot>(simd: S, table: S::B, codes: S::I) -> [S::I; 2] {
        [simd.lookup_weights(table, codes), simd.lookup_weights(table, simd.shift(codes, 4))]
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

impl<K: ByteKind> Decode for Bytes<K> {
    const PAIRS: bool = false;

    fn above(signed: i32) -> i32 {
        K::KIND.above(signed)
    }

    #[inline(always)]
    fn weights<S: Dot>(simd: S, _: S::B, codes: S::I) -> [S::I; 2] {
        [if K::KIND.flips_sign(S::ABOVE) { simd.sign_flipped(codes) } else { codes }; 2]
    }
}

#[cfg(target_arch = "x86_64")]
impl<const BITS: usize, const OFFSET: bool> Decode for Packed<BITS, OFFSET> {
    const PAIRS: bool = false;
    const BITS: usize = BITS;

    fn above(_: i32) -> i32 {
        if OFFSET { 1 << (BITS - 1) } else { 0 }
    }

    #[inline(always)]
    unsafe fn load<S: Dot>(simd: S, from: *const u8) -> S::I {
        // SAFETY: the caller's promise.
        unsafe { simd.load_unpacked::<BITS>(from) }
    }

    #[inline(always)]
    fn weights<S: Dot>(_: S, _: S::B, codes: S::I) -> [S::I; 2] {
        [codes; 2]
    }

    #[inline(always)]
    fn product<S: Dot>(simd: S, sum: S::I, weights: S::I, x: S::I) -> S::I {
        simd.dot_small(sum, weights, x)
    }
}
