//! Binary codes: -1 and 1, times a scale for each block.

use tacit_core::register_array;
use tacit_kernels::{Order, binary};

use crate::format::options::{FormatByGranularity, Granularity};
use crate::kernel::{Coding, Encoding, Scheme};
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of any shape in 1 bit an element: the sign, times the scale of its block.
///
/// The elements are flattened row-major and cut into blocks, often a whole row; the scale is the mean magnitude. It
/// is made as a [`TernaryArray`](crate::TernaryArray) is.
///
/// The codes are `u8[ceil(size/8)]`, eight to a byte, the first in the lowest bit, 1 for values from zero up; the scales
/// `f32[ceil(size/block)]`. The rule is that of `XNOR-Net` (Rastegari et al., 2016).
pub type BinaryArray = PackedArray<Binary>;

/// -1 and 1 times a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Binary {
    /// Which elements share a scale.
    pub granularity: Granularity,
}

impl From<Granularity> for Binary {
    fn from(granularity: Granularity) -> Self {
        Self { granularity }
    }
}

impl From<usize> for Binary {
    fn from(block: usize) -> Self {
        Granularity::Block(block).into()
    }
}

impl FormatByGranularity for Binary {
    const SAVED_AS: &'static str = "tacit.Binary";
    const NAME: &'static str = "binary";
    const FORMS: &'static str = "binary for rows, binary:columns, or binary:BLOCK";
    const SCHEME: Scheme = {
        let coding = Coding::Table { bits: 1, order: Order::LowFirst, values: binary::VALUES };
        Scheme::flat(<Self as FormatByGranularity>::NAME, Encoding::Binary, coding)
    };

    fn granularity(&self) -> Granularity {
        self.granularity
    }
}

register_format!(Binary);
register_array!(BinaryArray);
