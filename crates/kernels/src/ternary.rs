//! Ternary values of 2 bits, by the absmean rule of `BitNet` b1.58 (Ma et al., 2024).
//!
//! The scale of a block is the mean of its magnitudes; a code is `clip(round(x / scale), -1, 1) + 1`, four to a byte, the
//! first in the lowest bits.

use crate::{Encoder, encode::ByAbsmean, encoder::Rule, simd::Simd};

/// The value of each code, in units of the block's scale, repeated to a table of 16; code 3 is not used.
pub const VALUES: [f32; 16] = [-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0];

/// The code that fills a last byte up: that of 0.
pub const PADDING: u8 = 1;

/// The encoder of blocks of `block` elements, with a float for each.
///
/// The mean is taken in `f64`. Rounding is to nearest, ties to even. A block of zeros has scale 0 and codes of 0.
///
/// ```
/// use tacit_kernels::{BlockScales, ternary};
///
/// let (mut codes, mut scales) = ([0], [0.0]);
/// ternary::encoder(4).quantize(&[1.0, -2.0, 0.2, 0.8], &mut codes, BlockScales::Floats(&mut scales))?;
/// assert_eq!((codes, scales), ([0b10_01_00_10], [1.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn encoder(block: usize) -> Encoder {
    Encoder { padding: PADDING, ..Encoder::new(block, Rule::Ternary) }
}

#[derive(Clone, Copy)]
pub(crate) struct Ternary;

impl ByAbsmean for Ternary {
    const BITS: u32 = 2;

    #[inline(always)]
    fn coded<S: Simd>(simd: S, scale: f32, x: S::F) -> S::I {
        // Zero by a scale of zero is NaN, and no comparison with it holds.
        let scaled = simd.div(x, simd.splat(scale));
        let codes = simd.raise(simd.splat_words(1), simd.splat_words(1), scaled, simd.splat(0.5));
        simd.raise(codes, simd.splat_words(u32::MAX), simd.splat(-0.5), scaled)
    }
}
