//! bitsandbytes' 4-bit `NormalFloat`.

use tacit_core::{Result, register_array};
use tacit_kernels::{Order, nf4};

use crate::avals::checks::check_block_size;
use crate::format::declaration::{Format, TextForm};
use crate::format::options::{blocks, read_blocks};
use crate::kernel::{Coding, Encoding, Nested, Scheme};
use crate::packed::array::{Int8Activations, PackedArray};
use crate::register_format;

/// An array of any shape in 4 bits an element, bit for bit as bitsandbytes stores it.
///
/// The elements are flattened row-major and cut into blocks of 32, 64 (the usual choice), 128, up to 4096; each
/// block has its largest magnitude as its scale, and each element the 4-bit code of a quantile of the normal
/// distribution. Transposing a matrix is a view. The codes are `u8[ceil(size/2)]`, two to a byte, the first in the high
/// nibble; the scales `f32[ceil(size/block)]`.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::Nf4Array;
/// use tacit_core::implicit;
///
/// let w = Nf4Array::quantize(&ops::ones::<f32>(&[8, 32])?, 64)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The format is defined by the paper `QLoRA` (Dettmers et al., 2023) and by bitsandbytes' kernels.
pub type Nf4Array = PackedArray<Nf4>;

/// bitsandbytes' NF4: 4-bit quantiles of the normal distribution, in blocks counted row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nf4 {
    /// Elements that share a scale: a power of two from 32 to 4096.
    pub block: usize,
    /// Whether the scales are quantized to 8 bits, too.
    pub double: bool,
}

impl From<usize> for Nf4 {
    fn from(block: usize) -> Self {
        Self { block, double: false }
    }
}

impl Format for Nf4 {
    const SAVED_AS: &'static str = "tacit.Nf4";

    fn scheme(&self) -> Scheme {
        let coding = Coding::Table { bits: 4, order: Order::HighFirst, values: nf4::CODEBOOK };
        let nested = self.double.then_some(Nested::Dynamic8 { block: 256 });
        Scheme { nested, ..Scheme::flat(Self::NAME, Encoding::Nf4, coding) }
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

impl Int8Activations for Nf4 {}

impl TextForm for Nf4 {
    const NAME: &'static str = "nf4";
    const FORMS: &'static str = "nf4 for blocks of 64, nf4:BLOCK, or nf4:BLOCK:double for quantized scales";

    fn options(&self) -> String {
        blocks(self.block, self.double)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        read_blocks(options).map(|(block, double)| Self { block, double })
    }
}

register_format!(Nf4);
register_array!(Nf4Array);
