//! OCP's 4- and 8-bit floats: their values, and floats rounded to them, to nearest even and saturated.

use crate::{
    search::Search,
    simd::{SMALLEST_NORMAL, Simd},
};

/// OCP's E2M1 values, by code; the fourth bit is the sign.
pub const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The value of an OCP E4M3 byte; 0x7f and 0xff are NaN.
#[must_use]
pub const fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = ((byte >> 3 & 15) as u32, (byte & 7) as u32);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The value of an E8M0 byte.
#[must_use]
pub const fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits((byte as u32) << 23),
    }
}

/// The codes in E2M1; what rounds to zero takes the positive one.
pub(crate) const TO_E2M1: Search = {
    // What lies between two magnitudes, and whether the code of the larger one is even: halfway, that one is taken.
    const MIDDLES: [(f32, bool); 7] =
        [(0.25, false), (0.75, true), (1.25, false), (1.75, true), (2.5, false), (3.5, true), (5.0, false)];
    let (mut thresholds, mut codes) = ([f32::INFINITY; 15], [7; 16]);
    let mut i = 0;
    while i < 7 {
        let (middle, up) = MIDDLES[i];
        thresholds[7 + i] = if up { middle.next_down() } else { middle };
        thresholds[6 - i] = if up { -middle } else { (-middle).next_down() };
        codes[7 + i] = i as u8;
        codes[6 - i] = 8 | (i as u8 + 1);
        i += 1;
    }
    Search::new(thresholds, codes)
};

/// In the lowest bytes the floats, which are no NaN, in E4M3; magnitudes above 448 take 448.
#[inline(always)]
pub(crate) fn to_e4m3<S: Simd>(simd: S, x: S::F) -> S::I {
    let words = |word: u32| simd.splat_words(word);
    let magnitude = simd.floats(simd.and(simd.words(x), words(i32::MAX as u32)));
    let magnitude = simd.min(magnitude, simd.splat(448.0));
    // Below 2^-6 the step is 2^-9, which is also that of f32 at 2^14: the sum rounds there.
    let small = simd.words(simd.add(magnitude, simd.splat(16384.0)));
    let small = simd.add_words(small, words(16384_f32.to_bits().wrapping_neg()));
    // Above, 20 bits of the mantissa are rounded off and the exponent's bias goes from 127 to 7.
    let bits = simd.words(magnitude);
    let odd = simd.and(simd.shift(bits, 20), words(1));
    let large = simd.shift(simd.add_words(simd.add_words(bits, words(0x7_ffff)), odd), 20);
    let large = simd.add_words(large, words((120_u32 << 3).wrapping_neg()));
    let sign = simd.and(simd.shift(simd.words(x), 24), words(0x80));
    let code = simd.raise(sign, small, simd.splat(SMALLEST_NORMAL), magnitude);
    simd.raise(code, large, magnitude, simd.splat(SMALLEST_NORMAL.next_down()))
}
