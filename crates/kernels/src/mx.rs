//! The scale that OCP's microscaling (MX) formats share: a power of two for each 32 elements.

use crate::{encode::Format, matrix::e8m0, simd::Simd};

/// Elements that share a scale.
pub(crate) const GROUP: usize = 32;

/// How a group's largest magnitude decides on its power of two.
///
/// With `most` the largest magnitude of the elements and `top` the greatest value of a code (6 in E2M1, 448 in E4M3),
/// decided in exact arithmetic. Decoding does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// `2^ceil(log2(most / top))`, as MLX does from 0.32.2 on: nothing saturates.
    #[default]
    Ceil,
    /// `2^round(log2(most / top))`, as MLX did before: half of the groups saturate, by less than half.
    Round,
    /// `2^(floor(log2(most)) - floor(log2(top)))`, as OCP's specification 1.0 has it.
    Floor,
}

impl ScaleRule {
    /// The E8M0 byte of a group whose largest magnitude is `most`; 127 of zeros.
    #[inline(always)]
    pub(crate) fn byte(self, most: f32, top: f32) -> u8 {
        if most == 0.0 {
            return 127;
        }
        let (exponent, mantissa) = split(most);
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

/// An element format of the MX family.
pub(crate) trait Element: Copy + Send + Sync {
    /// The greatest value of a code.
    const TOP: f32;
    /// Bits of a code.
    const BITS: u32;
    /// What coding takes, in registers.
    type Ready<S: Simd>: Copy;
    fn ready<S: Simd>(self, simd: S) -> Self::Ready<S>;
    /// The codes of scaled elements.
    fn codes<S: Simd>(ready: Self::Ready<S>, simd: S, x: S::F) -> S::I;
}

/// Groups of `element`, whose scales the rule decides.
#[derive(Clone, Copy)]
pub(crate) struct Mx<E> {
    pub(crate) element: E,
    pub(crate) rule: ScaleRule,
}

impl<E: Element> Format for Mx<E> {
    type Stored = u8;
    /// What elements are multiplied by.
    type Scale = f32;
    type Ready<S: Simd> = E::Ready<S>;

    #[inline(always)]
    fn bits(self) -> u32 {
        E::BITS
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, _: &[f32], absmax: f32) -> u8 {
        self.rule.byte(absmax, E::TOP)
    }
    #[inline(always)]
    fn unit(self, byte: u8) -> f32 {
        // The reciprocal of a power of two is exact, and 2^127 at most; 255 is NaN, which no rule gives.
        e8m0(254_u8.saturating_sub(byte))
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> E::Ready<S> {
        self.element.ready(simd)
    }
    #[inline(always)]
    fn codes<S: Simd>(ready: E::Ready<S>, simd: S, reciprocal: f32, x: S::F) -> S::I {
        E::codes(ready, simd, simd.mul(x, simd.splat(reciprocal)))
    }
}
