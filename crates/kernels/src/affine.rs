//! MLX's affine format: unsigned integers with a scale and a bias for each group along the row.
//!
//! The value of a code is `code * scale + bias`. One edge of the group's range, the one of larger magnitude, is hit
//! exactly, and so is zero; the scale is negative where that edge is the upper one.

use crate::{
    Encoder, KernelError,
    encode::{self, Format},
    encoder::{BlockRule, Rule},
    simd::{Simd, nearest_integers, rounded_off},
};

/// The encoder of groups of `group` elements into codes of `bits` bits, one stream with the least significant first, with a
/// scale and a bias for each group; elements are whole groups.
///
/// The stream, read as little-endian words, and the numbers are those of `mlx.quantize` on the CPU, to the bit; MLX
/// has 2, 3, 4, 5, 6 and 8 bits, and groups of 32, 64 and 128. A group whose range overflows `f32` decodes to NaN, as
/// there.
///
/// ```
/// use tacit_kernels::{BlockScales, affine};
///
/// let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
/// let (mut codes, mut scales, mut biases) = ([0; 16], [0.0], [0.0]);
/// affine::encoder(32, 4).quantize(&x, &mut codes, BlockScales::Biased(&mut scales, &mut biases))?;
/// // The edge that is hit exactly is the upper one, from which codes count down.
/// assert_eq!((scales[0], biases[0], codes[15] >> 4), (31.0 / -15.0, 31.0, 0));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn encoder(group: usize, bits: u32) -> Encoder {
    Encoder { blocks: BlockRule::Whole, ..Encoder::new(group, Rule::Affine { bits }) }
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
    pub(crate) fn new(bits: u32) -> Result<Self, KernelError> {
        if !(1..=8).contains(&bits) {
            return Err(KernelError::Bits { bits });
        }
        Ok(Self { bits, top: ((1 << bits) - 1) as f32 })
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
        let codes = nearest_integers(simd, units);
        if simd.all_less(rounded_off(simd, units, codes), simd.splat(certain)) {
            return codes;
        }
        nearest_integers(simd, limited(simd, simd.div(distance, simd.splat(scale)), top))
    }
}

/// From 0 to `top`; a NaN, which a range that overflows gives, is 0.
#[inline(always)]
fn limited<S: Simd>(simd: S, units: S::F, top: f32) -> S::F {
    simd.min(simd.max(units, simd.splat(0.0)), simd.splat(top))
}
