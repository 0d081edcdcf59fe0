//! GGUF's K-quants: 2 to 6 bits an element, with 8-bit integers for scales.

use tacit_core::{Error, Result, register_array};

use crate::format::declaration::{Format, TextForm};
use crate::kernel::{Coding, Encoding, Nested, Scheme};
use crate::packed::array::{Int8Activations, PackedArray};
use crate::register_format;

/// An array of any shape in 2 to 6 bits an element, as GGUF's `Q2_K` to `Q6_K` have them.
///
/// Groups of 16 elements (2, 3 and 6 bits) or 32 (4 and 5 bits), counted row-major, share a scale, which is an integer
/// times a float of their super-block of 256. With 3 and 6 bits an element is `(code - 2^(bits-1)) * scale`; with 2, 4 and
/// 5 bits `code * scale + bias`, where the bias is made like the scale.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{KQuantArray, format::KQuant};
/// use tacit_core::implicit;
///
/// let w = KQuantArray::quantize(&ops::ones::<f32>(&[8, 256])?, KQuant { bits: 6 })?;
/// let x = ops::ones::<f32>(&[2, 256])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [256.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The codes are `u8[ceil(size * bits / 8)]`, one stream of bits, the lowest first. The scales are an [`Int8Array`](crate::Int8Array) that
/// stands for `f32[1, s, g]`, `s` super-blocks of `g` groups, or for `f32[2, s, g]`, scales and then biases. So `Q4_K`
/// takes 4.75 bits an element, and `Q6_K` 6.625. The formats are defined by `ggml-quants.c`; quantizing takes the range of
/// each group, where llama.cpp searches for a better one.
pub type KQuantArray = PackedArray<KQuant>;

/// GGUF's K-quants, by the bits of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KQuant {
    /// Bits of an element, 2 to 6.
    pub bits: u32,
}

impl KQuant {
    /// Elements that share a scale.
    #[must_use]
    pub fn group(self) -> usize {
        if matches!(self.bits, 4 | 5) { 32 } else { 16 }
    }

    /// Whether the middle code stands for zero, and there are no biases.
    #[must_use]
    pub fn is_centered(self) -> bool {
        matches!(self.bits, 3 | 6)
    }
}

const SUPER: usize = 256;

impl Format for KQuant {
    const SAVED_AS: &'static str = "tacit.KQuant";

    fn scheme(&self) -> Scheme {
        let (nested, bits) = (Nested::Integers { block: SUPER / self.group() }, self.bits);
        let (encoding, coding) = if self.is_centered() {
            (Encoding::Symmetric, Coding::Offset { bits })
        } else {
            (Encoding::Affine, Coding::Unsigned { bits })
        };
        Scheme { nested: Some(nested), ..Scheme::flat(Self::NAME, encoding, coding) }
    }

    fn block(&self) -> usize {
        self.group()
    }

    fn check(&self) -> Result<()> {
        if (2..=6).contains(&self.bits) {
            return Ok(());
        }
        Err(Error::invalid(format!("there is no K-quant of {} bits", self.bits), "use 2, 3, 4, 5 or 6 bits"))
    }
}

impl Int8Activations for KQuant {}

impl TextForm for KQuant {
    const NAME: &'static str = "k";
    const FORMS: &'static str = "k:BITS of 2 to 6 bits";

    fn options(&self) -> String {
        format!(":{}", self.bits)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let [bits] = options else { return None };
        Some(Self { bits: bits.parse().ok()? })
    }
}

register_format!(KQuant);
register_array!(KQuantArray);
