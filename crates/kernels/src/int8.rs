//! Symmetric 8-bit integers: `round(x * 127 / absmax)`, for each block.
//!
//! The value of a code is `code * (absmax / 127)`. Codes run from -127 to 127.

use crate::{
    Encoder,
    encode::Format,
    encoder::Rule,
    simd::{Simd, nearest_integers},
};

/// The encoder of blocks of `block` elements, with the absmax of each; a row is a block of its length. Codes are signed bytes.
///
/// A code is `x * (127 / absmax)` rounded to the nearest integer, ties to even, as bitsandbytes' LLM.int8 rounds.
/// A block of zeros has absmax 0 and codes 0; where `127 / absmax` overflows it is the greatest finite number.
///
/// ```
/// use tacit_kernels::{BlockScales, int8};
///
/// let (mut codes, mut absmax) = ([0_i8; 4], [0.0; 2]);
/// let scales = BlockScales::Floats(&mut absmax[..]);
/// int8::encoder(2).quantize(&[1.0, -0.5, 254.0, 1.0], int8::as_bytes(&mut codes), scales)?;
/// assert_eq!((codes, absmax), ([127, -64, 127, 0], [1.0, 254.0]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn encoder(block: usize) -> Encoder {
    Encoder::new(block, Rule::Int8)
}

/// The bytes of signed codes.
pub fn as_bytes(codes: &mut [i8]) -> &mut [u8] {
    // SAFETY: bytes and signed bytes have the same size and alignment, and every value is one of both.
    unsafe { std::slice::from_raw_parts_mut(codes.as_mut_ptr().cast::<u8>(), codes.len()) }
}

#[derive(Clone, Copy)]
pub(crate) struct Int8;

#[derive(Clone, Copy, Default)]
pub(crate) struct Scale {
    /// What a code is multiplied by.
    pub(crate) unit: f32,
    /// What an element is multiplied by.
    pub(crate) factor: f32,
}

impl Scale {
    #[inline(always)]
    pub(crate) fn new(absmax: f32) -> Self {
        Self { unit: absmax / 127.0, factor: if absmax == 0.0 { 0.0 } else { (127.0 / absmax).min(f32::MAX) } }
    }
}

impl Format for Int8 {
    type Stored = f32;
    type Scale = Scale;
    type Ready<S: Simd> = ();

    #[inline(always)]
    fn bits(self) -> u32 {
        8
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[f32], absmax: f32) -> f32 {
        absmax
    }
    #[inline(always)]
    fn unit(self, absmax: f32) -> Scale {
        Scale::new(absmax)
    }
    #[inline(always)]
    fn ready<S: Simd>(self, _: S) {}
    #[inline(always)]
    fn codes<S: Simd>((): (), simd: S, Scale { factor, .. }: Scale, x: S::F) -> S::I {
        let units = simd.mul(x, simd.splat(factor));
        nearest_integers(simd, simd.max(simd.min(units, simd.splat(127.0)), simd.splat(-127.0)))
    }
}
