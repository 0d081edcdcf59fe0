//! MXFP4: OCP's E2M1 elements, two to a byte, with a power of two for each 32 of them (OCP MX specification 1.0).
//!
//! The value of a code is its E2M1 value times `2^(scale - 127)`.

use crate::{
    Isa, KernelError, ScaleRule, encode,
    minifloat::TO_E2M1,
    mx::{Element, GROUP, Mx},
    search,
    simd::Simd,
};

/// Quantizes `x: f32[e]` in flat groups of 32 into `codes: u8[ceil(e/2)]`, the first in the low nibble, and `scales: u8[ceil(e/32)]`.
///
/// Elements round to nearest, ties to even, and saturate at 6. MLX's files hold the same bytes as words.
///
/// ```
/// use tacit_kernels::{ScaleRule, mxfp4};
///
/// let (mut codes, mut scales) = ([0; 2], [0]);
/// mxfp4::quantize(&[12.0, -8.0, 1.0, 0.0], ScaleRule::Ceil, &mut codes, &mut scales)?;
/// assert_eq!((codes, scales), ([0xe7, 0x01], [128]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A wrong length, or a NaN or infinity in `x`. The outputs are then unspecified.
pub fn quantize(x: &[f32], rule: ScaleRule, codes: &mut [u8], scales: &mut [u8]) -> Result<(), KernelError> {
    encode::quantize(Isa::detect(), Mx { element: Fp4, rule }, x, GROUP, codes, scales)
}

/// Codes `x` as [`quantize`] does, by these scales.
///
/// # Errors
/// As for [`quantize`].
pub fn quantize_by(x: &[f32], scales: &[u8], codes: &mut [u8]) -> Result<(), KernelError> {
    // The rule is that of scales, which are given.
    encode::quantize_by(Isa::detect(), Mx { element: Fp4, rule: ScaleRule::Ceil }, x, GROUP, scales, codes)
}

#[derive(Clone, Copy)]
struct Fp4;

impl Element for Fp4 {
    const TOP: f32 = 6.0;
    const BITS: u32 = 4;

    type Ready<S: Simd> = search::Ready<S>;

    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> search::Ready<S> {
        TO_E2M1.ready(simd)
    }
    #[inline(always)]
    fn codes<S: Simd>(ready: search::Ready<S>, simd: S, x: S::F) -> S::I {
        ready.code(simd, x)
    }
}
