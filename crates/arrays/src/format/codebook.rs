//! Codes of any table of up to 16 values.

use tacit_core::{Error, Result, register_array};
use tacit_kernels::Order;

use crate::avals::checks::check_block;
use crate::format::declaration::{Format, TextForm};
use crate::kernel::{Coding, Encoding, Scheme};
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of any shape whose codes stand for the values of a table, with a scale for each block.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::CodebookArray;
/// use tacit_arrays::format::Codebook;
/// use tacit_core::implicit;
///
/// let quarters = Codebook::new(32, &[-1.0, -0.25, 0.25, 1.0])?;
/// let w = CodebookArray::quantize(&ops::ones::<f32>(&[8, 32])?, quarters)?;
/// let x = ops::ones::<f32>(&[2, 32])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [32.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// The codes are `u8[ceil(size * bits / 8)]`, the first in the lowest bits; the scales `f32[ceil(size/block)]`, counted
/// row-major. GGUF's `IQ4_NL`, `IQ4_XS`, `TQ1_0` and `TQ2_0` and torchao's NF4 are such arrays.
pub type CodebookArray = PackedArray<Codebook>;

/// A table of 2, 4, 8 or 16 values, in blocks counted row-major.
///
/// Its text lists the values: `codebook:32:-1,-0.25,0.25,1`. A table that belongs to a program is better a format of its
/// own, by [`Scheme::codebook`]; this one is for tables that are found in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Codebook {
    block: usize,
    bits: u32,
    /// The bits of the values, of which the first `2^bits` count.
    values: [u32; 16],
}

impl Codebook {
    /// The table of these values, whose codes are their places, for blocks of `block` elements.
    ///
    /// # Errors
    ///
    /// There are not 2, 4, 8 or 16 values, one of them is not finite, or all are zero.
    pub fn new(block: usize, values: &[f32]) -> Result<Self> {
        let usable = values.iter().all(|value| value.is_finite()) && values.iter().any(|&value| value != 0.0);
        if !matches!(values.len(), 2 | 4 | 8 | 16) || !usable {
            return Err(Error::invalid(
                format!("a codebook of the {} values {values:?} codes nothing", values.len()),
                "give 2, 4, 8 or 16 finite values, not all of them zero",
            ));
        }
        let mut table = [0; 16];
        for (place, value) in table.iter_mut().zip(values) {
            *place = value.to_bits();
        }
        Ok(Self { block, bits: values.len().ilog2(), values: table })
    }

    /// The values by their codes.
    #[must_use]
    pub fn values(&self) -> Vec<f32> {
        self.values[..1 << self.bits].iter().map(|&bits| f32::from_bits(bits)).collect()
    }
}

impl Format for Codebook {
    const SAVED_AS: &'static str = "tacit.Codebook";

    fn scheme(&self) -> Scheme {
        let values = self.values.map(f32::from_bits);
        let coding = Coding::Table { bits: self.bits, order: Order::LowFirst, values };
        Scheme::flat(Self::NAME, Encoding::Nearest, coding)
    }

    fn block(&self) -> usize {
        self.block
    }

    fn with_block(&self, block: usize) -> Option<Self> {
        Some(Self { block, ..*self })
    }

    fn check(&self) -> Result<()> {
        check_block(Self::NAME, self.block)
    }
}

impl TextForm for Codebook {
    const NAME: &'static str = "codebook";
    const FORMS: &'static str = "codebook:BLOCK:VALUE,VALUE,.. of 2, 4, 8 or 16 values";

    fn options(&self) -> String {
        let values: Vec<String> = self.values().iter().map(f32::to_string).collect();
        format!(":{}:{}", self.block, values.join(","))
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let [block, values] = options else { return None };
        let values: Vec<f32> = values.split(',').map(|value| value.trim().parse().ok()).collect::<Option<_>>()?;
        Self::new(block.parse().ok()?, &values).ok()
    }
}

register_format!(Codebook);
register_array!(CodebookArray);
