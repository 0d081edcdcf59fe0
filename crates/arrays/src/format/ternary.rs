//! Ternary codes: -1, 0 and 1, times a scale for each block.

use tacit_core::register_array;
use tacit_kernels::{Order, ternary};

use crate::format::options::{FormatByGranularity, Granularity};
use crate::kernel::{Coding, Encoding, Scheme};
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of any shape in 2 bits an element: -1, 0 or 1, times the scale of its block.
///
/// The elements are flattened row-major and cut into blocks, often a whole row; the scale is the mean magnitude.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::TernaryArray;
/// use tacit_arrays::format::Granularity;
/// use tacit_core::implicit;
///
/// let w = TernaryArray::quantize(&ops::ones::<f32>(&[8, 32])?, Granularity::Row)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The codes are `u8[ceil(size/4)]`, four to a byte, the first in the lowest bits, each the value plus one; the scales
/// `f32[ceil(size/block)]`. The rule is that of `BitNet` b1.58 (Ma et al., 2024).
pub type TernaryArray = PackedArray<Ternary>;

/// -1, 0 and 1 times a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ternary {
    /// Which elements share a scale.
    pub granularity: Granularity,
}

impl From<Granularity> for Ternary {
    fn from(granularity: Granularity) -> Self {
        Self { granularity }
    }
}

impl From<usize> for Ternary {
    fn from(block: usize) -> Self {
        Granularity::Block(block).into()
    }
}

impl FormatByGranularity for Ternary {
    const SAVED_AS: &'static str = "tacit.Ternary";
    const NAME: &'static str = "ternary";
    const FORMS: &'static str = "ternary for rows, ternary:columns, or ternary:BLOCK";
    const SCHEME: Scheme = {
        let coding = Coding::Table { bits: 2, order: Order::LowFirst, values: ternary::VALUES };
        Scheme::flat(<Self as FormatByGranularity>::NAME, Encoding::Ternary, coding)
    };

    fn granularity(&self) -> Granularity {
        self.granularity
    }
}

register_format!(Ternary);
register_array!(TernaryArray);
