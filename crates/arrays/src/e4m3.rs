//! 8-bit floats of 4 exponent bits in blocks.

use tacit_core::register_array;

use crate::format::declaration::{Format, TextForm};
use crate::kernel::{Coding, Encoding, Scheme};
use crate::packed_array::PackedArray;
use crate::register_format;

/// An array of any shape in a byte an element, OCP's E4M3, with a scale for each block: the weights of FP8 checkpoints.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::E4m3Array;
/// use tacit_core::implicit;
///
/// let w = E4m3Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert!(y.dense()?.as_slice::<f32>().iter().all(|y| (y - 32.0).abs() < 1e-4));
/// # Ok(())
/// # }
/// ```
///
/// The codes are `u8[size]`, the scales `f32[ceil(size/block)]`. The element type is defined by OCP's 8-bit Floating Point
/// Specification 1.0: torch's `float8_e4m3fn`, without infinities.
pub type E4m3Array = PackedArray<E4m3>;

/// OCP's E4M3 in blocks counted row-major, the largest magnitude of each at 448.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct E4m3 {
    /// Elements that share a scale.
    pub block: usize,
}

impl From<usize> for E4m3 {
    fn from(block: usize) -> Self {
        Self { block }
    }
}

impl Format for E4m3 {
    const SAVED_AS: &'static str = "tacit.E4m3";

    fn scheme(&self) -> Scheme {
        Scheme::flat(Self::NAME, Encoding::Nearest, Coding::E4m3)
    }

    fn block(&self) -> usize {
        self.block
    }

    fn with_block(&self, block: usize) -> Option<Self> {
        Some(Self { block })
    }
}

impl TextForm for E4m3 {
    const NAME: &'static str = "e4m3";
    const FORMS: &'static str = "e4m3:BLOCK";

    fn options(&self) -> String {
        format!(":{}", self.block)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let [block] = options else { return None };
        Some(Self { block: block.parse().ok()? })
    }
}

register_format!(E4m3);
register_array!(E4m3Array);
