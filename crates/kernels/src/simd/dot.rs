//! Products of bytes that are summed in words, beside vectors of floats.

#[cfg(target_arch = "aarch64")]
#[path = "dot/neon.rs"]
mod instructions;
#[cfg(target_arch = "x86_64")]
#[path = "dot/x86.rs"]
mod instructions;

use super::{Isa, Simd};

/// What a machine has for products of bytes; more of it further down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ByteSums {
    /// Nothing but what every vector machine has: sums of two products, or none at all.
    Pairs,
    /// Sums of four products: AVX-512's VNNI, or `sdot`.
    Fours,
    /// Products of two rows of eight bytes with two others as well: `smmla`.
    #[cfg(target_arch = "aarch64")]
    Squares,
}

/// Vectors of words of four bytes that are multiplied with bytes.
pub(crate) trait Dot: Simd {
    /// What the bytes that [`dot`](Self::dot) takes as weights are above the signed ones that they stand for.
    const ABOVE: i32;
    /// Sixteen weights to look up.
    type B: Copy;

    fn weights_table(self, values: [i8; 16]) -> Self::B;
    /// The weights that the lowest four bits of each byte stand for.
    fn lookup_weights(self, table: Self::B, words: Self::I) -> Self::I;
    /// Flips the sign of each byte: a signed one becomes the unsigned one that is 128 more, and an unsigned one the signed one
    /// that is 128 less.
    fn sign_flipped(self, bytes: Self::I) -> Self::I;
    /// Adds to each word the four products of its weights with its signed bytes of `x`, of which none is -128.
    fn dot(self, sum: Self::I, weights: Self::I, x: Self::I) -> Self::I;
    /// Adds the products of two words of codes from 0 to 15, which are weights as they are, to the sum of the two sums.
    #[inline(always)]
    fn dot_codes(self, sums: [Self::I; 2], codes: [Self::I; 2], x: [Self::I; 2]) -> [Self::I; 2] {
        [self.dot(sums[0], codes[0], x[0]), self.dot(sums[1], codes[1], x[1])]
    }
    /// The same with one sum.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn dot_all_codes(self, sum: Self::I, codes: [Self::I; 2], x: [Self::I; 2]) -> Self::I {
        self.dot(self.dot(sum, codes[0], x[0]), codes[1], x[1])
    }
    /// Adds to each word the four products of its weights, which are from 0 to 127, with its signed bytes of `x`, of which none is -128.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn dot_small(self, sum: Self::I, weights: Self::I, x: Self::I) -> Self::I {
        self.dot(sum, weights, x)
    }
    /// `4 * LANES` integers of `BITS` bits each, 2, 3, 5, 6 or 7, of a stream, as bytes.
    ///
    /// # Safety
    /// [`SLACK`](super::SLACK) bytes are readable behind their own at `from`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load_unpacked<const BITS: usize>(self, from: *const u8) -> Self::I;
    /// For each 16 bytes of the first `LANES` vectors the sums of their words: lane `r` of the result for a part is the sum of
    /// that part of vector `r`. There are as many parts as a vector has.
    #[cfg(target_arch = "x86_64")]
    fn add_across(self, words: &[Self::I; 16]) -> [Self::I; 4];
}

/// A loop with its arguments, to be compiled for each instruction set that has [`Dot`].
pub(crate) trait DotKernel {
    fn run<S: Dot>(self, simd: S);
}

/// What this machine has beside the vectors of an instruction set.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn byte_sums(isa: Isa) -> ByteSums {
    instructions::byte_sums(isa)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn byte_sums(_: Isa) -> ByteSums {
    ByteSums::Pairs
}

/// Runs the kernel on an instruction set that this machine has, any but the portable one.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn run_dot<K: DotKernel>(isa: Isa, kernel: K) {
    debug_assert!(isa != Isa::Scalar);
    instructions::run(isa, kernel);
}
