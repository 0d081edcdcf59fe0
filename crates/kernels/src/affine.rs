//! MLX's affine format: unsigned integers with a scale and a bias for each group along the row.
//!
//! The value of a code is `code * scale + bias`. One edge of the group's range, the one of larger magnitude, is hit
//! exactly, and so is zero; the scale is negative where that edge is the upper one.

use crate::{
    Isa, KernelError,
    encode::{self, Format},
    matrix::check_length,
    simd::Simd,
};

/// Quantizes the rows of `x: f32[n, k]` into `codes`, one stream of bits with the least significant first,
/// `scales: f32[n, k / group]` and `biases`, of as many.
///
/// The stream, read as little-endian words, and the numbers are those of `mlx.quantize` on the CPU, to the bit; MLX
/// has 2, 3, 4, 5, 6 and 8 bits, and groups of 32, 64 and 128. A group whose range overflows `f32` decodes to NaN, as
/// there.
///
/// ```
/// let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
/// let (mut codes, mut scales, mut biases) = ([0; 16], [0.0], [0.0]);
/// tacit_kernels::affine::quantize(&x, 32, 32, 4, &mut codes, &mut scales, &mut biases)?;
/// // The edge that is hit exactly is the upper one, from which codes count down.
/// assert_eq!((scales[0], biases[0], codes[15] >> 4), (31.0 / -15.0, 31.0, 0));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// Bits outside 1 to 8, rows that do not divide into groups, a wrong length, or a NaN or infinity in `x`. The outputs
/// are then unspecified.
pub fn quantize(
    x: &[f32],
    k: usize,
    group: usize,
    bits: u32,
    codes: &mut [u8],
    scales: &mut [f32],
    biases: &mut [f32],
) -> Result<(), KernelError> {
    let format = Affine::new(x.len(), k, group, bits)?;
    let groups = x.len() / group;
    check_length("scales", scales.len(), groups, "each group of elements has one")?;
    check_length("biases", biases.len(), groups, "each group of elements has one")?;
    let mut stored = vec![Line::default(); groups];
    encode::quantize(Isa::detect(), format, x, group, codes, &mut stored)?;
    for ((line, scale), bias) in stored.into_iter().zip(scales).zip(biases) {
        (*scale, *bias) = (line.scale, line.bias);
    }
    Ok(())
}

/// Codes `x` as [`quantize`] does, by these scales and biases.
///
/// # Errors
/// As for [`quantize`].
pub fn quantize_by(
    x: &[f32],
    k: usize,
    group: usize,
    bits: u32,
    scales: &[f32],
    biases: &[f32],
    codes: &mut [u8],
) -> Result<(), KernelError> {
    let format = Affine::new(x.len(), k, group, bits)?;
    check_length("biases", biases.len(), scales.len(), "each group of elements has one")?;
    let lines: Vec<Line> = scales.iter().zip(biases).map(|(&scale, &bias)| Line { scale, bias }).collect();
    encode::quantize_by(Isa::detect(), format, x, group, &lines, codes)
}

#[derive(Clone, Copy)]
pub(crate) struct Affine {
    bits: u32,
    /// The greatest code.
    top: f32,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Line {
    pub(crate) scale: f32,
    pub(crate) bias: f32,
}

/// What coding an element takes. A product with the reciprocal takes a third of the time of a quotient, and is at most 5e-5
/// from it where that is a code: the nearest integer is that of the quotient unless it is nearly half a step away.
#[derive(Clone, Copy, Default)]
pub(crate) struct Unit {
    line: Line,
    reciprocal: f32,
    /// The distance to the nearest integer below which it is.
    certain: f32,
}

impl Affine {
    fn new(elements: usize, k: usize, group: usize, bits: u32) -> Result<Self, KernelError> {
        if !(1..=8).contains(&bits) {
            return Err(KernelError::Bits { bits });
        }
        if group == 0 {
            return Err(KernelError::EmptyBlock);
        }
        if !k.is_multiple_of(group) || (k == 0) != (elements == 0) || (k > 0 && !elements.is_multiple_of(k)) {
            return Err(KernelError::Group { elements, k, group });
        }
        Ok(Self::of(bits))
    }

    /// Of 1 to 8 bits.
    pub(crate) fn of(bits: u32) -> Self {
        Self { bits, top: ((1 << bits) - 1) as f32 }
    }
}

impl Format for Affine {
    type Stored = Line;
    type Scale = Unit;
    /// The greatest code.
    type Ready<S: Simd> = f32;

    #[inline(always)]
    fn bits(self) -> u32 {
        self.bits
    }
    #[inline(always)]
    fn scale<S: Simd>(self, simd: S, block: &[f32], _: f32) -> Line {
        let (low, high) = encode::range(simd, block);
        let step = ((high - low) / self.top).max(1e-7);
        let (edge, scale) = if low.abs() > high.abs() { (low, step) } else { (high, -step) };
        let zero = (edge / scale).round_ties_even();
        // Both scale and bias are chosen again so that zero has a code.
        if zero == 0.0 { Line { scale, bias: 0.0 } } else { Line { scale: edge / zero, bias: edge } }
    }
    #[inline(always)]
    fn unit(self, line: Line) -> Unit {
        // Elsewhere a reciprocal is less exact, or infinite.
        let is_common = (1e-30..1e30).contains(&line.scale.abs());
        Unit { line, reciprocal: 1.0 / line.scale, certain: if is_common { 0.4999 } else { -1.0 } }
    }
    #[inline(always)]
    fn ready<S: Simd>(self, _: S) -> f32 {
        self.top
    }
    #[inline(always)]
    fn codes<S: Simd>(top: f32, simd: S, unit: Unit, x: S::F) -> S::I {
        let Unit { line: Line { scale, bias }, reciprocal, certain } = unit;
        let distance = simd.sub(x, simd.splat(bias));
        let units = limited(simd, simd.mul(distance, simd.splat(reciprocal)), top);
        let codes = encode::nearest_integers(simd, units);
        let off = simd.sub(units, simd.sub(simd.floats(codes), simd.splat(encode::TO_INTEGERS)));
        let off = simd.floats(simd.and(simd.words(off), simd.splat_words(i32::MAX as u32)));
        if simd.all_less(off, simd.splat(certain)) {
            return codes;
        }
        encode::nearest_integers(simd, limited(simd, simd.div(distance, simd.splat(scale)), top))
    }
}

/// From 0 to `top`; a NaN, which a range that overflows gives, is 0.
#[inline(always)]
fn limited<S: Simd>(simd: S, units: S::F, top: f32) -> S::F {
    simd.min(simd.max(units, simd.splat(0.0)), simd.splat(top))
}
