//! OCP's microscaling (MX) formats: a power of two for each 32 elements, of E2M1 or E4M3 (OCP MX specification 1.0).
//!
//! The value of a code is its element's value times `2^(scale - 127)`.

use crate::{
    Encoder, ScaleRule,
    encode::Format,
    encoder::Rule,
    minifloat::{TO_E2M1, e8m0, to_e4m3},
    search,
    simd::Simd,
};

/// Elements that share a scale.
const GROUP: usize = 32;

/// The encoder of MXFP4: E2M1 elements, two to a byte, the first in the low nibble, with a power of two for each 32 of them.
///
/// Elements round to nearest, ties to even, and saturate at 6. MLX's files hold the same bytes as words. Codes by scales that
/// are given do not depend on the rule.
///
/// ```
/// use tacit_kernels::{BlockScales, ScaleRule, mx};
///
/// let (mut codes, mut scales) = ([0; 2], [0]);
/// mx::mxfp4(ScaleRule::Ceil).quantize(&[12.0, -8.0, 1.0, 0.0], &mut codes, BlockScales::Bytes(&mut scales))?;
/// assert_eq!((codes, scales), ([0xe7, 0x01], [128]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn mxfp4(rule: ScaleRule) -> Encoder {
    Encoder::new(GROUP, Rule::Mxfp4(rule))
}

/// The encoder of MXFP8: E4M3 elements, with a power of two for each 32 of them.
///
/// As [`mxfp4`], but elements saturate at 448.
///
/// ```
/// use tacit_kernels::{BlockScales, ScaleRule, mx};
///
/// let (mut codes, mut scales) = ([0; 2], [0]);
/// mx::mxfp8(ScaleRule::Ceil).quantize(&[448.0, -1.0], &mut codes, BlockScales::Bytes(&mut scales))?;
/// assert_eq!((codes, scales), ([0x7e, 0xb8], [127]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn mxfp8(rule: ScaleRule) -> Encoder {
    Encoder::new(GROUP, Rule::Mxfp8(rule))
}

/// Groups of elements of 4 bits, E2M1, or of 8, E4M3, whose scales the rule decides.
#[derive(Clone, Copy)]
pub(crate) struct Mx<const BITS: u32> {
    pub(crate) rule: ScaleRule,
}

impl<const BITS: u32> Format for Mx<BITS> {
    type Stored = u8;
    /// What elements are multiplied by.
    type Scale = f32;
    type Ready<S: Simd> = search::Ready<S>;

    #[inline(always)]
    fn bits(self) -> u32 {
        BITS
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[f32], absmax: f32) -> u8 {
        self.rule.byte(absmax, if BITS == 4 { 6.0 } else { 448.0 })
    }
    #[inline(always)]
    fn unit(self, byte: u8) -> f32 {
        // The reciprocal of a power of two is exact, and 2^127 at most; 255 is NaN, which no rule gives.
        e8m0(254_u8.saturating_sub(byte))
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> search::Ready<S> {
        TO_E2M1.ready(simd)
    }
    #[inline(always)]
    fn codes<S: Simd>(ready: search::Ready<S>, simd: S, reciprocal: f32, x: S::F) -> S::I {
        let scaled = simd.mul(x, simd.splat(reciprocal));
        if BITS == 4 { ready.code(simd, scaled) } else { to_e4m3(simd, scaled) }
    }
}
