//! 8-bit floats of 5 exponent bits in blocks.

use tacit_core::register_array;

use crate::format::declaration::{Format, TextForm};
use crate::kernel::Scheme;
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of any shape in a byte an element, OCP's E5M2, with a scale for each block.
///
/// It is made as an [`E4m3Array`](crate::E4m3Array) is. The codes are `u8[size]`, the scales `f32[ceil(size/block)]`. The
/// element type is defined by OCP's 8-bit Floating Point Specification 1.0: the upper half of an `f16`.
pub type E5m2Array = PackedArray<E5m2>;

/// OCP's E5M2 in blocks counted row-major, the largest magnitude of each at 57,344.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct E5m2 {
    /// Elements that share a scale.
    pub block: usize,
}

impl From<usize> for E5m2 {
    fn from(block: usize) -> Self {
        Self { block }
    }
}

static VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (exponent, mantissa) = (byte as u32 >> 2 & 31, byte as u32 & 3);
        let magnitude = match (exponent, mantissa) {
            (31, 0) => f32::INFINITY,
            (31, _) => f32::NAN,
            (0, _) => mantissa as f32 / 65536.0,
            _ => f32::from_bits((exponent + 112) << 23 | mantissa << 21),
        };
        values[byte] = if byte < 128 { magnitude } else { -magnitude };
        byte += 1;
    }
    values
};

impl Format for E5m2 {
    const SAVED_AS: &'static str = "tacit.E5m2";

    fn scheme(&self) -> Scheme {
        Scheme::codebook(Self::NAME, &VALUES)
    }

    fn block(&self) -> usize {
        self.block
    }

    fn with_block(&self, block: usize) -> Option<Self> {
        Some(Self { block })
    }
}

impl TextForm for E5m2 {
    const NAME: &'static str = "e5m2";
    const FORMS: &'static str = "e5m2:BLOCK";

    fn options(&self) -> String {
        format!(":{}", self.block)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let [block] = options else { return None };
        Some(Self { block: block.parse().ok()? })
    }
}

register_format!(E5m2);
register_array!(E5m2Array);
