//! Binary values of 1 bit: the sign, times the mean magnitude of the block (`XNOR-Net`, Rastegari et al., 2016).
//!
//! Eight codes to a byte, the first in the lowest bit: 1 for values from zero up, 0 for negative ones.

use crate::{Encoder, encode::ByAbsmean, encoder::Rule, simd::Simd};

/// The value of each code, in units of the block's scale, repeated to a table of 16.
pub const VALUES: [f32; 16] = [-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0];

/// The encoder of blocks of `block` elements, with a float for each.
///
/// The mean is taken in `f64`. Zeros of either sign are positive.
///
/// ```
/// use tacit_kernels::{BlockScales, binary};
///
/// let (mut codes, mut scales) = ([0], [0.0]);
/// binary::encoder(4).quantize(&[1.0, -2.0, 3.0, 0.0], &mut codes, BlockScales::Floats(&mut scales))?;
/// assert_eq!((codes, scales), ([0b1101], [1.5]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn encoder(block: usize) -> Encoder {
    Encoder::new(block, Rule::Binary)
}

#[derive(Clone, Copy)]
pub(crate) struct Binary;

impl ByAbsmean for Binary {
    const BITS: u32 = 1;

    #[inline(always)]
    fn coded<S: Simd>(simd: S, scale: f32, x: S::F) -> S::I {
        // A scale that is given may be negative.
        let x = simd.mul(x, simd.splat(if scale < 0.0 { -1.0 } else { 1.0 }));
        // What is greater than the float below zero.
        simd.raise(simd.splat_words(0), simd.splat_words(1), x, simd.splat(0.0_f32.next_down()))
    }
}
