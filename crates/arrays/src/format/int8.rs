//! Symmetric 8-bit integers.

use tacit_core::register_array;

use crate::format::options::{FormatByGranularity, Granularity};
use crate::kernel::{Coding, Encoding, Scheme};
use crate::packed::array::{Int8Activations, PackedArray};
use crate::register_format;

/// An array of any shape as signed bytes, with the largest magnitude of each row, column or block.
///
/// An element is `code * (absmax / 127)`, where the codes run from -127 to 127. A row is a block of as many
/// elements as the last axis has; a matrix with a scale for each column is the transpose of one with a scale for
/// each row, and is stored so.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::Int8Array;
/// use tacit_arrays::format::Granularity;
/// use tacit_core::implicit;
///
/// let w = Int8Array::quantize(&ops::ones::<f32>(&[8, 32])?, Granularity::Row)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert!(y.dense()?.as_slice::<f32>().iter().all(|y| (y - 32.0).abs() < 1e-4));
/// # Ok(())
/// # }
/// ```
///
/// The codes are `i8` of the stored shape, the scales the largest magnitudes, `f32[ceil(size/block)]`. With rows it is the
/// weight of bitsandbytes' `LLM.int8` (Dettmers et al., 2022), whose `SCB` they are.
pub type Int8Array = PackedArray<Int8>;

/// Symmetric 8-bit integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Int8 {
    /// Which elements share a scale.
    pub granularity: Granularity,
}

impl From<Granularity> for Int8 {
    fn from(granularity: Granularity) -> Self {
        Self { granularity }
    }
}

impl From<usize> for Int8 {
    fn from(block: usize) -> Self {
        Granularity::Block(block).into()
    }
}

impl FormatByGranularity for Int8 {
    const SAVED_AS: &'static str = "tacit.Int8";
    const NAME: &'static str = "int8";
    const FORMS: &'static str = "int8 for rows, int8:columns, or int8:BLOCK";
    const SCHEME: Scheme = Scheme::flat(<Self as FormatByGranularity>::NAME, Encoding::Int8, Coding::Signed);

    fn granularity(&self) -> Granularity {
        self.granularity
    }
}

impl Int8Activations for Int8 {}

register_format!(Int8);
register_array!(Int8Array);
