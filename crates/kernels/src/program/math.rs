//! Elementary functions of one number without branches, so that a loop over them becomes vector code.
//!
//! Products and sums are rounded one by one, never fused: a function gives the same bits on every machine.

use crate::simd::{EXP, LN_2, TO_INTEGERS};

/// `log(1 + r) = r - r^2 / 2 + r^3 p(r)` for `1 + r` between `sqrt(1/2)` and `sqrt(2)`. Source: Cephes.
const LOG: [f32; 9] = [
    7.037_683_6e-2,
    -1.151_461e-1,
    1.167_699_9e-1,
    -1.242_014_1e-1,
    1.424_932_3e-1,
    -1.666_805_8e-1,
    2.000_071_5e-1,
    -2.499_999_4e-1,
    3.333_333e-1,
];

/// `tanh(x) = x + x^3 p(x^2)` for `|x| < 0.625`. Source: Cephes.
const TANH: [f32; 5] = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];

/// `erf(x) = x p(x^2) / q(x^2)` for `|x|` up to [`ERF_ONE`]. Source: Eigen's rational approximation.
const ERF_P: [f32; 7] =
    [-2.726_142_3e-10, 2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906_3e-4, -2.954_6e-3, -1.609_603_3e-2];
const ERF_Q: [f32; 5] = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2];

/// From here on the error function is 1.
const ERF_ONE: f32 = 3.832_507;

/// `erf^-1(x) = x p(log(1 - x^2))` with one polynomial where the logarithm is at least `-ERF_INV_NEAR_LOG` and another one below, the
/// highest power first. Source: MLX.
pub(super) const ERF_INV_NEAR: [f32; 10] = [
    5.438_778_3e-9,
    1.432_854_5e-7,
    1.227_747_9e-6,
    1.129_636_26e-7,
    -5.615_307_6e-5,
    -1.476_976_3e-4,
    2.314_686_8e-3,
    1.153_925_8e-2,
    -2.320_154_8e-1,
    8.862_269e-1,
];
pub(super) const ERF_INV_FAR: [f32; 9] = [
    3.036_975_7e-10,
    2.932_431e-8,
    1.221_503_3e-6,
    2.841_089_6e-5,
    3.935_529_7e-4,
    3.026_988_1e-3,
    4.831_858e-3,
    -2.646_461_4e-1,
    8.400_165e-1,
];
pub(super) const ERF_INV_NEAR_LOG: f32 = 6.125;

/// `sin(r) = r + r^3 p(r^2)` and `cos(r) = 1 - r^2 / 2 + r^4 p(r^2)` for `|r| <= pi / 4`. Source: Cephes.
const SIN: [f32; 3] = [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1];
const COS: [f32; 3] = [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2];

/// Above it [`sin`] and [`cos`] have no digits left that are right.
pub(super) const LARGEST_ANGLE: f32 = 1e7;

/// The terms with the highest power first.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, terms: [f32; N]) -> f32 {
    let mut sum = terms[0];
    let mut i = 1;
    while i < N {
        sum = sum * x + terms[i];
        i += 1;
    }
    sum
}

/// `2^n` for a whole number between -126 and 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `e^x` within two units of the last place.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let bounded = if x > 89.0 { 89.0 } else { x };
    let bounded = if bounded < -104.0 { -104.0 } else { bounded };
    let sum = bounded * std::f32::consts::LOG2_E + TO_INTEGERS;
    let n = sum - TO_INTEGERS;
    let r = (bounded - n * LN_2[0]) - n * LN_2[1];
    let value = polynomial(r, EXP) * (r * r) + r + 1.0;
    // The exponent in two halves, so that neither leaves the normal numbers.
    let n = (sum.to_bits() as i32).wrapping_sub(TO_INTEGERS.to_bits() as i32);
    let half = n >> 1;
    value * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// The natural logarithm within two units of the last place.
#[inline(always)]
pub(super) fn log(x: f32) -> f32 {
    let small = x < f32::MIN_POSITIVE;
    let normal = if small { x * 8_388_608.0 } else { x };
    // Between `sqrt(1/2)` and `sqrt(2)`, and the exponent that was taken away.
    let bits = normal.to_bits().wrapping_sub(0x3f35_04f3);
    let n = ((bits as i32) >> 23) as f32 - if small { 23.0 } else { 0.0 };
    let r = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let square = r * r;
    let mut value = polynomial(r, LOG) * r * square;
    value += n * LN_2[1];
    value -= 0.5 * square;
    let value = r + value + n * LN_2[0];
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    let value = if x < 0.0 { f32::NAN } else { value };
    // Infinity and NaN are their own.
    if x < f32::INFINITY { value } else { x }
}

/// The hyperbolic tangent within three units of the last place.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let square = x * x;
    // The sum of zeros is positive.
    let near = (polynomial(square, TANH) * square * x + x).copysign(x);
    let far = (1.0 - 2.0 / (exp(magnitude + magnitude) + 1.0)).copysign(x);
    if magnitude < 0.625 { near } else { far }
}

/// The logistic function within three units of the last place; it may be 0 where it is not a normal number.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The error function within six units of the last place, of numbers that are not nearly subnormal.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let bounded = if x > ERF_ONE { ERF_ONE } else { x };
    let bounded = if bounded < -ERF_ONE { -ERF_ONE } else { bounded };
    let square = bounded * bounded;
    let value = bounded * polynomial(square, ERF_P) / polynomial(square, ERF_Q);
    // The approximation may miss one by a unit there, and what `1 + erf` multiplies may be infinite.
    let value = if value > 1.0 || x >= ERF_ONE { 1.0 } else { value };
    if value < -1.0 || x <= -ERF_ONE { -1.0 } else { value }
}

/// The inverse of the error function within eight units of the last place.
#[inline(always)]
pub(super) fn erf_inv(x: f32) -> f32 {
    // Neither factor loses what is left of one beside it.
    let log = log((1.0 - x) * (1.0 + x));
    let (near, far) = (polynomial(log, ERF_INV_NEAR), polynomial(log, ERF_INV_FAR));
    x * if log < -ERF_INV_NEAR_LOG { far } else { near }
}

/// The sine within two units of the last place, or 2^-24, of angles up to [`LARGEST_ANGLE`].
#[inline(always)]
pub(super) fn sin(x: f32) -> f32 {
    shifted_sine(x, 0)
}

/// The cosine, as [`sin`].
#[inline(always)]
pub(super) fn cos(x: f32) -> f32 {
    shifted_sine(x, 1)
}

/// The sine of an angle, and of `quarters` quarters of a turn more.
#[inline(always)]
fn shifted_sine(x: f32, quarters: u32) -> f32 {
    // A whole number in the lowest bits, as with `TO_INTEGERS`.
    const WHOLE: f64 = 6_755_399_441_055_744.0;
    let wide = f64::from(x);
    let sum = wide * std::f64::consts::FRAC_2_PI + WHOLE;
    let n = sum - WHOLE;
    let r = (wide - n * std::f64::consts::FRAC_PI_2) as f32;
    let quadrant = (sum.to_bits() as u32).wrapping_add(quarters);
    let square = r * r;
    let sine = polynomial(square, SIN) * square * r + r;
    let cosine = polynomial(square, COS) * (square * square) - 0.5 * square + 1.0;
    let value = if quadrant & 1 == 0 { sine } else { cosine };
    f32::from_bits(value.to_bits() ^ ((quadrant & 2) << 30))
}

/// The number rounded to `bf16`, to nearest even.
#[inline(always)]
pub(super) fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    // A NaN stays one.
    f32::from_bits(if x.is_nan() { (bits | 0x0040_0000) & 0xffff_0000 } else { rounded })
}

/// The number rounded to `f16`, to nearest even: what is too large becomes infinite, what is too small subnormal or zero.
#[inline(always)]
pub(super) fn f16(x: f32) -> f32 {
    const SMALLEST_NORMAL: f32 = 1.0 / 16384.0;
    const TOO_LARGE: f32 = 65536.0;
    const EXPONENT: u32 = 0x7f80_0000;
    let magnitude = x.abs();
    let bounded = if magnitude > SMALLEST_NORMAL { magnitude } else { SMALLEST_NORMAL };
    let bounded = if bounded < TOO_LARGE { bounded } else { TOO_LARGE };
    // Added to the magnitude it leaves as many digits as an `f16` has.
    let power = f32::from_bits((bounded.to_bits() & EXPONENT) + (13 << 23));
    let rounded = (magnitude + power) - power;
    let value = if rounded >= TOO_LARGE { f32::INFINITY } else { rounded };
    f32::from_bits(value.to_bits() | (x.to_bits() & 0x8000_0000))
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    #[test]
    fn the_error_function_of_what_is_far_out_is_one() {
        for x in [super::ERF_ONE, 5.0, 100.0, f32::MAX, f32::INFINITY] {
            assert_eq!([super::erf(x).to_bits(), super::erf(-x).to_bits()], [1f32.to_bits(), (-1f32).to_bits()], "{x}");
        }
        assert!(super::erf(f32::NAN).is_nan());
    }

    /// Floats of every magnitude and sign, and those where the rounding turns.
    fn sweep() -> impl Iterator<Item = f32> {
        let turns = (0..=u16::MAX).flat_map(|bits| {
            let (a, b) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits.wrapping_add(1)).to_f32());
            let between = a.midpoint(b);
            [a, between, between.next_up(), between.next_down()]
        });
        (0..=u32::MAX).step_by(if cfg!(miri) { 40_000_003 } else { 4_001 }).map(f32::from_bits).chain(turns)
    }

    #[test]
    fn half_types_are_rounded_as_the_hardware_does() {
        for x in sweep() {
            let (found, expected) = (super::f16(x), f16::from_f32(x).to_f32());
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && x.is_nan(), "{x:e} is {found:e}");
            let (found, expected) = (super::bf16(x), bf16::from_f32(x).to_f32());
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && x.is_nan(), "{x:e} is {found:e}");
        }
    }
}
