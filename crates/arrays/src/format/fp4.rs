//! bitsandbytes' 4-bit float.

use tacit_core::{Result, register_array};
use tacit_kernels::{Order, fp4};

use crate::avals::checks::check_block_size;
use crate::format::declaration::{Format, TextForm};
use crate::format::options::{blocks, read_blocks};
use crate::kernel::{Coding, Encoding, Nested, Scheme};
use crate::packed::array::{Int8Activations, PackedArray};
use crate::register_format;

/// An array of any shape in 4 bits an element, as bitsandbytes' FP4 stores it: sign, exponent, and one bit more.
///
/// The elements are flattened row-major and cut into blocks of 32, 64 (the usual choice), 128, up to 4096; each
/// block has its largest magnitude as its scale. It is not OCP's E2M1, which is that of
/// [`Mxfp4Array`](crate::Mxfp4Array).
///
/// It is made as an [`Nf4Array`](crate::Nf4Array) is, and its codes and scales lie in the same way. The format is that of
/// bitsandbytes' kernels.
pub type Fp4Array = PackedArray<Fp4>;

/// bitsandbytes' FP4: 4-bit floats, in blocks counted row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp4 {
    /// Elements that share a scale: a power of two from 32 to 4096.
    pub block: usize,
    /// Whether the scales are quantized to 8 bits, too.
    pub double: bool,
}

impl From<usize> for Fp4 {
    fn from(block: usize) -> Self {
        Self { block, double: false }
    }
}

impl Format for Fp4 {
    const SAVED_AS: &'static str = "tacit.Fp4";

    fn scheme(&self) -> Scheme {
        let coding = Coding::Table { bits: 4, order: Order::HighFirst, values: fp4::CODEBOOK };
        let nested = self.double.then_some(Nested::Dynamic8 { block: 256 });
        Scheme { nested, ..Scheme::flat(Self::NAME, Encoding::Fp4, coding) }
    }

    fn block(&self) -> usize {
        self.block
    }

    fn with_block(&self, block: usize) -> Option<Self> {
        Some(Self { block, ..*self })
    }

    fn check(&self) -> Result<()> {
        check_block_size(Self::NAME, self.block)
    }
}

impl Int8Activations for Fp4 {}

impl TextForm for Fp4 {
    const NAME: &'static str = "fp4";
    const FORMS: &'static str = "fp4 for blocks of 64, fp4:BLOCK, or fp4:BLOCK:double for quantized scales";

    fn options(&self) -> String {
        blocks(self.block, self.double)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        read_blocks(options).map(|(block, double)| Self { block, double })
    }
}

register_format!(Fp4);
register_array!(Fp4Array);
