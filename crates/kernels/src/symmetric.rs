//! Symmetric integers: a scale for each block, and a middle code that stands for zero.
//!
//! The value of a code is `(code - 2^(bits - 1)) * scale`. There is one integer more below zero than above, so that the element
//! of the largest magnitude takes the code 0, exactly, and decides on the sign of the scale, as in GGUF's `Q4_0` and `Q6_K`.

use crate::{
    Encoder, KernelError,
    encode::{self, Format},
    encoder::Rule,
    matrix::offset,
    nearest::reciprocal,
    simd::{Simd, TO_INTEGERS},
};

/// The encoder of blocks of `block` elements into a stream of codes of 2 to 8 bits, the first in the lowest bits, with a float for
/// each block.
///
/// A code is `x / scale` rounded to the nearest integer, ties to even, and raised by `2^(bits - 1)`; the scale's magnitude is taken
/// for at least 1e-38.
///
/// ```
/// use tacit_kernels::{BlockScales, symmetric};
///
/// let (mut codes, mut scales) = ([0; 2], [0.0]);
/// symmetric::encoder(4, 4).quantize(&[4.0, -3.5, 0.0, 1.2], &mut codes, BlockScales::Floats(&mut scales))?;
/// // In units of -0.5 the elements are -8, 7, 0 and -2.4.
/// assert_eq!((codes, scales), ([0xf0, 0x68], [-0.5]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn encoder(block: usize, bits: u32) -> Encoder {
    Encoder::new(block, Rule::Symmetric { bits })
}

#[derive(Clone, Copy)]
pub(crate) struct Symmetric {
    bits: u32,
    /// What the code of zero is.
    middle: f32,
}

impl Symmetric {
    pub(crate) fn new(bits: u32) -> Result<Self, KernelError> {
        // The only integers of one bit are -1 and 0.
        if !(2..=8).contains(&bits) {
            return Err(KernelError::Bits { bits });
        }
        Ok(Self { bits, middle: offset(bits) })
    }
}

impl Format for Symmetric {
    type Stored = f32;
    /// The reciprocal of the scale.
    type Scale = f32;
    /// What the code of zero is.
    type Ready<S: Simd> = f32;

    #[inline(always)]
    fn bits(self) -> u32 {
        self.bits
    }
    #[inline(always)]
    fn scale<S: Simd>(self, simd: S, block: &[f32], _: f32) -> f32 {
        let (low, high) = encode::range(simd, block);
        let edge = if low.abs() > high.abs() { low } else { high };
        // The scale of zeros is not negative.
        0.0 - edge / self.middle
    }
    #[inline(always)]
    fn unit(self, scale: f32) -> f32 {
        reciprocal(scale)
    }
    #[inline(always)]
    fn ready<S: Simd>(self, _: S) -> f32 {
        self.middle
    }
    #[inline(always)]
    fn codes<S: Simd>(middle: f32, simd: S, reciprocal: f32, x: S::F) -> S::I {
        let units = simd.mul(x, simd.splat(reciprocal));
        let limited = simd.min(simd.max(units, simd.splat(-middle)), simd.splat(middle - 1.0));
        // An even number more does not change which of two integers is even.
        simd.words(simd.add(limited, simd.splat(TO_INTEGERS + middle)))
    }
}
