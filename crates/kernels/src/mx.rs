//! OCP's microscaling (MX) formats: a power of two for each 32 elements, of E2M1 or E4M3 (OCP MX specification 1.0).
//!
//! The value of a code is its element's value times `2^(scale - 127)`.

use crate::{
    Encoder,
    encode::Format,
    encoder::Rule,
    matrix::e8m0,
    minifloat::{TO_E2M1, to_e4m3},
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

/// How a group's largest magnitude decides on its power of two.
///
/// With `absmax` the largest magnitude of the elements and `top` the greatest value of a code (6 in E2M1, 448 in E4M3),
/// decided in exact arithmetic. Decoding does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// `2^ceil(log2(absmax / top))`, as MLX does from 0.32.2 on: nothing saturates.
    #[default]
    Ceil,
    /// `2^round(log2(absmax / top))`, as MLX did before: half of the groups saturate, by less than half.
    Round,
    /// `2^(floor(log2(absmax)) - floor(log2(top)))`, as OCP's specification 1.0 has it.
    Floor,
}

impl ScaleRule {
    /// The E8M0 byte of a group whose largest magnitude is `absmax`; 127 of zeros.
    #[inline(always)]
    pub(crate) fn byte(self, absmax: f32, top: f32) -> u8 {
        if absmax == 0.0 {
            return 127;
        }
        let (exponent, mantissa) = split(absmax);
        let (top_exponent, top_mantissa) = split(top);
        let up = match self {
            Self::Ceil => i32::from(mantissa > top_mantissa),
            // top is 1.5 or 1.75 times a power of two, so that the ratio of mantissas lies between 1/2 and sqrt(2).
            Self::Round => -i32::from(2.0 * f64::from(mantissa).powi(2) < f64::from(top_mantissa).powi(2)),
            Self::Floor => 0,
        };
        (exponent - top_exponent + up + 127).clamp(0, 254) as u8
    }
}

/// The exponent and the mantissa, from 1 to below 2, of a positive number.
#[inline(always)]
fn split(x: f32) -> (i32, f32) {
    // A subnormal number is brought to where its bits say the same as those of others.
    let (x, shift) = if x < f32::MIN_POSITIVE { (x * 16_777_216.0, 24) } else { (x, 0) };
    let bits = x.to_bits();
    ((bits >> 23) as i32 - 127 - shift, f32::from_bits(bits & 0x7f_ffff | 127 << 23))
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
