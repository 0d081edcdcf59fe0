//! NVFP4: OCP's E2M1 elements, two to a byte, with an E4M3 scale for each 16 of them and a factor for all.
//!
//! The value of a code is `E2M1[code] * (e4m3(scale) * factor)`; [`factor`] follows from the global scale, the largest
//! magnitude of the whole tensor.

use crate::{
    Encoder, KernelError,
    encode::Format,
    encoder::Rule,
    minifloat::{TO_E2M1, e4m3, to_e4m3},
    search,
    simd::Simd,
};

/// The encoder of groups of 16 elements, of which the first is in the low nibble, with a byte for each group.
///
/// With the largest magnitude of the tensor as `global_scale` the scales use all of E4M3's range; without one they are
/// not rescaled. Elements round to nearest, ties to even, and saturate at 6. A scale that rounds to zero makes its group
/// zero. MLX's files hold the same bytes as words.
///
/// ```
/// use tacit_kernels::{BlockScales, nvfp4};
///
/// let (mut codes, mut scales) = ([0; 1], [0]);
/// nvfp4::encoder(None).quantize(&[6.0, -1.5], &mut codes, BlockScales::Bytes(&mut scales))?;
/// assert_eq!((codes, scales), ([0xb7], [0x38]));
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
#[must_use]
pub fn encoder(global_scale: Option<f32>) -> Encoder {
    Encoder::new(GROUP, Rule::Nvfp4 { global_scale })
}

/// What a decoded scale byte is multiplied by: `global_scale / (448 * 6)`, or 1 without one.
#[must_use]
pub fn factor(global_scale: Option<f32>) -> f32 {
    global_scale.map_or(1.0, |absmax| absmax / (448.0 * 6.0))
}

/// The least global scale that arrays are made with: the largest magnitude of a tensor of smaller numbers counts as this, so that
/// zeros have one. What a decoded scale is multiplied by is then a normal number.
pub const LEAST_GLOBAL: f32 = f32::from_bits((127 - 114) << 23);

/// Elements that share a scale.
const GROUP: usize = 16;

#[derive(Clone, Copy)]
pub(crate) struct Nvfp4 {
    /// What a scale is multiplied by before it is rounded.
    encode: f32,
}

impl Nvfp4 {
    /// To quantize the elements `x`; a global scale that is the NaN or the infinity among them is an error that names the element.
    pub(crate) fn new(x: &[f32], global_scale: Option<f32>) -> Result<Self, KernelError> {
        match global_scale {
            Some(absmax) if absmax <= 0.0 => Err(KernelError::GlobalScale { value: absmax }),
            _ => Self::by_given(x, global_scale),
        }
    }

    /// The same to code `x` by scales that are given, which another number may have multiplied: one below zero turns the signs of
    /// the codes, and beside zero all codes are 0.
    pub(crate) fn by_given(x: &[f32], global_scale: Option<f32>) -> Result<Self, KernelError> {
        let encode = match global_scale {
            None => 1.0,
            Some(0.0) => 0.0,
            Some(absmax) => 448.0 * 6.0 / absmax,
        };
        // Below 2688 / f32::MAX the factor of the scales is infinite.
        match global_scale {
            Some(absmax) if !(absmax.is_finite() && encode.is_finite()) => {
                let first = x.iter().position(|value| !value.is_finite());
                Err(first.map_or(KernelError::GlobalScale { value: absmax }, |index| KernelError::NonFinite {
                    index,
                    value: x[index],
                }))
            }
            _ => Ok(Self { encode }),
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
