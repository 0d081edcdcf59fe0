//! NVFP4: OCP's E2M1 elements, two to a byte, with an E4M3 scale for each 16 of them and a factor for all.
//!
//! The value of a code is `E2M1[code] * (e4m3(scale) * factor)`; [`factor`] follows from the global scale, the largest
//! magnitude of the whole tensor.

use crate::{
    Isa, KernelError,
    encode::{self, Format},
    matrix::e4m3,
    minifloat::{TO_E2M1, to_e4m3},
    search,
    simd::Simd,
};

/// Quantizes `x: f32[e]` in flat groups of 16 into `codes: u8[ceil(e/2)]`, the first in the low nibble, and
/// `scales: u8[ceil(e/16)]`.
///
/// With the largest magnitude of the tensor as `global_scale` the scales use all of E4M3's range; without one they are
/// not rescaled. Elements round to nearest, ties to even, and saturate at 6. A scale that rounds to zero makes its group
/// zero. MLX's files hold the same bytes as words.
///
/// ```
/// use tacit_kernels::nvfp4;
///
/// let (mut codes, mut scales) = ([0; 1], [0]);
/// nvfp4::quantize(&[6.0, -1.5], None, &mut codes, &mut scales)?;
/// assert_eq!((codes, scales), ([0xb7], [0x38]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A wrong length, a global scale that is not finite and above zero, or a NaN or infinity in `x`. The outputs are then
/// unspecified.
pub fn quantize(x: &[f32], global_scale: Option<f32>, codes: &mut [u8], scales: &mut [u8]) -> Result<(), KernelError> {
    encode::quantize(Isa::detect(), Nvfp4::of(x, global_scale)?, x, GROUP, codes, scales)
}

/// Codes `x` as [`quantize`] does, by these scales.
///
/// # Errors
/// As for [`quantize`].
pub fn quantize_by(x: &[f32], global_scale: Option<f32>, scales: &[u8], codes: &mut [u8]) -> Result<(), KernelError> {
    encode::quantize_by(Isa::detect(), Nvfp4::of(x, global_scale)?, x, GROUP, scales, codes)
}

/// What a decoded scale byte is multiplied by: `global_scale / (448 * 6)`, or 1 without one.
#[must_use]
pub fn factor(global_scale: Option<f32>) -> f32 {
    global_scale.map_or(1.0, |most| most / (448.0 * 6.0))
}

/// The least global scale that arrays are made with: the largest magnitude of a tensor of smaller numbers counts as this, so that
/// zeros have one. What a decoded scale is multiplied by is then a normal number.
pub const LEAST_GLOBAL: f32 = f32::from_bits((127 - 114) << 23);

/// Elements that share a scale.
const GROUP: usize = 16;

#[derive(Clone, Copy)]
struct Nvfp4 {
    /// What a scale is multiplied by before it is rounded.
    encode: f32,
}

impl Nvfp4 {
    /// For the elements `x`; a global scale that is the NaN or the infinity among them is an error that names the element.
    fn of(x: &[f32], global_scale: Option<f32>) -> Result<Self, KernelError> {
        Self::new(global_scale).map_err(|error| {
            let first = x.iter().position(|value| !value.is_finite());
            first.map_or(error, |index| KernelError::NonFinite { index, value: x[index] })
        })
    }

    fn new(global_scale: Option<f32>) -> Result<Self, KernelError> {
        match global_scale {
            // Below 2688 / f32::MAX the factor of the scales is infinite.
            Some(most) if !(most.is_finite() && most > 0.0 && (448.0 * 6.0 / most).is_finite()) => {
                Err(KernelError::GlobalScale { value: most })
            }
            _ => Ok(Self { encode: global_scale.map_or(1.0, |most| 448.0 * 6.0 / most) }),
        }
    }
}

impl Format for Nvfp4 {
    type Stored = u8;
    /// The rounded scale, which elements are divided by.
    type Scale = f32;
    /// What a quotient is multiplied by, and the elements' codes.
    type Ready<S: Simd> = (f32, search::Ready<S>);

    #[inline(always)]
    fn bits(self) -> u32 {
        4
    }
    #[inline(always)]
    fn scale<S: Simd>(self, simd: S, _: &[f32], absmax: f32) -> u8 {
        let mut bytes = [0; 16];
        let scale = simd.splat(absmax / 6.0 * self.encode);
        // SAFETY: a vector has at most 16 words.
        unsafe { simd.store_bytes(bytes.as_mut_ptr(), to_e4m3(simd, scale)) };
        bytes[0]
    }
    #[inline(always)]
    fn unit(self, byte: u8) -> f32 {
        e4m3(byte)
    }
    #[inline(always)]
    fn ready<S: Simd>(self, simd: S) -> Self::Ready<S> {
        (self.encode, TO_E2M1.ready(simd))
    }
    #[inline(always)]
    fn codes<S: Simd>((encode, search): Self::Ready<S>, simd: S, rounded: f32, x: S::F) -> S::I {
        if rounded == 0.0 {
            return simd.splat_words(0);
        }
        search.code(simd, simd.mul(simd.div(x, simd.splat(rounded)), simd.splat(encode)))
    }
}
