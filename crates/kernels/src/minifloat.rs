//! Floats to OCP's 4- and 8-bit floats, rounded to nearest even and saturated.

/// The code of `x` in E2M1; what rounds to zero takes the positive one.
#[inline(always)]
pub(crate) fn to_e2m1(x: f32) -> u8 {
    let most = x.abs();
    let mut code = 0_u32;
    // Halfway, the even code is the lower one below these thresholds, and the upper one at those.
    for above in [0.25, 1.25, 2.5, 5.0] {
        code += u32::from(most > above);
    }
    for at in [0.75, 1.75, 3.5] {
        code += u32::from(most >= at);
    }
    (code | u32::from(x < 0.0 && code > 0) << 3) as u8
}

/// The byte of `x`, which is not NaN, in E4M3; magnitudes above 448 take 448.
#[inline(always)]
pub(crate) fn to_e4m3(x: f32) -> u8 {
    let most = x.abs().min(448.0);
    // Below 2^-6 the step is 2^-9, which is also that of f32 at 2^14: the sum rounds there.
    let small = (most + 16384.0).to_bits() - 16384_f32.to_bits();
    // Above, 20 bits of the mantissa are rounded off and the exponent's bias goes from 127 to 7.
    let bits = most.to_bits();
    let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    let large = rounded.wrapping_sub((127 - 7) << 3);
    let code = if most < 0.015_625 { small } else { large };
    (code | x.to_bits() >> 24 & 0x80) as u8
}
