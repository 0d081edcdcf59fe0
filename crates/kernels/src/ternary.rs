//! Ternary values of 2 bits, by the absmean rule of `BitNet` b1.58 (Ma et al., 2024).
//!
//! The scale of a block is the mean of its magnitudes; a code is `clip(round(x / scale), -1, 1) + 1`, four to a byte, the
//! first in the lowest bits.

use crate::{
    Isa, KernelError,
    encode::{self, Format, absmean},
    simd::Simd,
};

/// The value of each code, in units of the block's scale, repeated to a table of 16; code 3 is not used.
pub const VALUES: [f32; 16] = [-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0];

/// Quantizes `x: f32[e]` in flat blocks into `codes: u8[ceil(e/4)]` and `scales: f32[ceil(e/block)]`.
///
/// The mean is taken in `f64`. Rounding is to nearest, ties to even. A block of zeros has scale 0 and codes of 0.
///
/// ```
/// let (mut codes, mut scales) = ([0], [0.0]);
/// tacit_kernels::ternary::quantize(&[1.0, -2.0, 0.2, 0.8], 4, &mut codes, &mut scales)?;
/// assert_eq!((codes, scales), ([0b10_01_00_10], [1.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A block of no elements, a wrong length, or a NaN or infinity in `x`. The outputs are then unspecified.
pub fn quantize(x: &[f32], block: usize, codes: &mut [u8], scales: &mut [f32]) -> Result<(), KernelError> {
    encode::quantize(Isa::detect(), Ternary, x, block, codes, scales)
}

/// Codes `x` as [`quantize`] does, by these scales.
///
/// # Errors
/// As for [`quantize`].
pub fn quantize_by(x: &[f32], block: usize, scales: &[f32], codes: &mut [u8]) -> Result<(), KernelError> {
    encode::quantize_by(Isa::detect(), Ternary, x, block, scales, codes)
}

#[derive(Clone, Copy)]
struct Ternary;

impl Format for Ternary {
    type Stored = f32;
    type Scale = f32;
    type Ready<S: Simd> = ();
    /// Of zero.
    const PAD: u8 = 1;

    #[inline(always)]
    fn bits(self) -> u32 {
        2
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, block: &[f32], _: f32) -> f32 {
        absmean(block)
    }
    #[inline(always)]
    fn unit(self, scale: f32) -> f32 {
        scale
    }
    #[inline(always)]
    fn ready<S: Simd>(self, _: S) {}
    #[inline(always)]
    fn codes<S: Simd>((): (), simd: S, scale: f32, x: S::F) -> S::I {
        // Zero by a scale of zero is NaN, and no comparison with it holds.
        let scaled = simd.div(x, simd.splat(scale));
        let codes = simd.raise(simd.splat_words(1), simd.splat_words(1), scaled, simd.splat(0.5));
        simd.raise(codes, simd.splat_words(u32::MAX), simd.splat(-0.5), scaled)
    }
}
