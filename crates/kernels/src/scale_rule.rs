//! The power of two of a group of elements of microscaling (MX) formats.

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
