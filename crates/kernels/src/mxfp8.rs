//! MXFP8: OCP's E4M3 elements, with a power of two for each 32 of them (OCP MX specification 1.0).
//!
//! The value of a code is its E4M3 value times `2^(scale - 127)`.

use crate::{
    Isa, KernelError, ScaleRule, encode,
    minifloat::to_e4m3,
    mx::{Element, GROUP, Mx},
    simd::Simd,
};

/// Quantizes `x: f32[e]` in flat groups of 32 into `codes: u8[e]` and `scales: u8[ceil(e/32)]`.
///
/// Elements round to nearest, ties to even, and saturate at 448. MLX's files hold the same bytes as words.
///
/// ```
/// use tacit_kernels::{ScaleRule, mxfp8};
///
/// let (mut codes, mut scales) = ([0; 2], [0]);
/// mxfp8::quantize(&[448.0, -1.0], ScaleRule::Ceil, &mut codes, &mut scales)?;
/// assert_eq!((codes, scales), ([0x7e, 0xb8], [127]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A wrong length, or a NaN or infinity in `x`. The outputs are then unspecified.
pub fn quantize(x: &[f32], rule: ScaleRule, codes: &mut [u8], scales: &mut [u8]) -> Result<(), KernelError> {
    encode::quantize(Isa::detect(), Mx { element: Fp8, rule }, x, GROUP, codes, scales)
}

/// Codes `x` as [`quantize`] does, by these scales.
///
/// # Errors
/// As for [`quantize`].
pub fn quantize_by(x: &[f32], scales: &[u8], codes: &mut [u8]) -> Result<(), KernelError> {
    // The rule is that of scales, which are given.
    encode::quantize_by(Isa::detect(), Mx { element: Fp8, rule: ScaleRule::Ceil }, x, GROUP, scales, codes)
}

#[derive(Clone, Copy)]
struct Fp8;

impl Element for Fp8 {
    const TOP: f32 = 448.0;
    const BITS: u32 = 8;

    type Ready<S: Simd> = ();

    #[inline(always)]
    fn ready<S: Simd>(self, _: S) {}
    #[inline(always)]
    fn codes<S: Simd>((): (), simd: S, x: S::F) -> S::I {
        to_e4m3(simd, x)
    }
}
