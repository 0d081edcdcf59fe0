//! Numbers of many magnitudes, such as the moments of an optimizer, by tables that are dense near zero.

use tacit_core::{Error, Result, register_array};
use tacit_kernels::dynamic8;

use crate::avals::checks::check_block;
use crate::format::declaration::{Format, TextForm};
use crate::kernel::Scheme;
use crate::packed::array::PackedArray;
use crate::register_format;

/// An array of any shape in 8 or 4 bits an element, by a table that is dense near zero, with a scale for each block.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_arrays::DynamicArray;
/// use tacit_arrays::format::Dynamic;
/// use tacit_core::Value;
///
/// let x = Array::from_slice(&[1.0f32, 0.001, 0.0, -0.00003], &[4]);
/// let array = DynamicArray::quantize(&x, Dynamic { bits: 8, block: 256, unsigned: false })?;
/// let error = Value::from(array).dense()?.subtract(&x)?.abs()?.max(None)?;
/// assert!(error.item::<f32>() < 1e-4);
/// # Ok(())
/// # }
/// ```
///
/// The codes are `u8[ceil(size * bits / 8)]`, the first in the lowest bits; the scales `f32[ceil(size/block)]`, counted
/// row-major. The signed tables are those of bitsandbytes' `create_dynamic_map` with 7 and with 3 bits of exponent at most. Below
/// zero they end at -0.993 and -0.8875, which [`Fit::Reach`](crate::format::Fit::Reach) makes up for. The unsigned table of 8 bits is
/// that of the same function, but for its lowest value, which is 1e-7 and not zero; that of 4 bits has the cubes of the sixteenths
/// from 1/16 to 1. "Memory Efficient Optimizers with 4-bit States" (Li et al., 2023) says why a mean of squares has no zero.
pub type DynamicArray = PackedArray<Dynamic>;

/// Codes of a table that is dense near zero, in blocks counted row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dynamic {
    /// Bits of a code: 8 or 4.
    pub bits: u8,
    /// Elements that share a scale, their largest magnitude.
    pub block: usize,
    /// Whether there are positive values alone, as the mean of squares has them. None of them is zero.
    pub unsigned: bool,
}

/// The means of 1, 2 and 4 parts of three decades, with both signs, zero and one.
static SIGNED_4: [f32; 16] = [
    -0.8875, -0.6625, -0.4375, -0.2125, -0.0775, -0.0325, -0.0055, 0.0, 0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625,
    0.8875, 1.0,
];

/// The cubes of the sixteenths: of the tables that were tried the one with which the transformer of `examples/little_memory.rs`
/// learned best, over fifteen seeds. The sixteenths themselves, their squares, and three decades of the unsigned map were worse.
static UNSIGNED_4: [f32; 16] = {
    let mut values = [0.0; 16];
    let mut code = 0;
    while code < 16 {
        let sixteenth = (code + 1) as f32 / 16.0;
        values[code] = sixteenth * sixteenth * sixteenth;
        code += 1;
    }
    values
};

impl Format for Dynamic {
    const SAVED_AS: &'static str = "tacit.Dynamic";

    fn scheme(&self) -> Scheme {
        match (self.bits, self.unsigned) {
            (4, false) => Scheme::codebook(Self::NAME, &SIGNED_4),
            (4, true) => Scheme::codebook(Self::NAME, &UNSIGNED_4),
            (_, false) => Scheme::codebook(Self::NAME, dynamic8::map()),
            (_, true) => Scheme::codebook(Self::NAME, dynamic8::unsigned_map()),
        }
    }

    fn block(&self) -> usize {
        self.block
    }

    fn with_block(&self, block: usize) -> Option<Self> {
        Some(Self { block, ..*self })
    }

    fn check(&self) -> Result<()> {
        if !matches!(self.bits, 4 | 8) {
            return Err(Error::invalid(
                format!("there is no dynamic format of {} bits", self.bits),
                "use 8 bits, or 4 where memory is scarce",
            ));
        }
        check_block(Self::NAME, self.block)
    }
}

impl TextForm for Dynamic {
    const NAME: &'static str = "dynamic";
    const FORMS: &'static str =
        "dynamic:BITS:BLOCK of 4 or 8 bits, or dynamic:BITS:BLOCK:unsigned for what is not negative";

    fn options(&self) -> String {
        let unsigned = if self.unsigned { ":unsigned" } else { "" };
        format!(":{}:{}{unsigned}", self.bits, self.block)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let (bits, block, unsigned) = match options {
            [bits, block] => (bits, block, false),
            [bits, block, "unsigned"] => (bits, block, true),
            _ => return None,
        };
        Some(Self { bits: bits.parse().ok()?, block: block.parse().ok()?, unsigned })
    }
}

register_format!(Dynamic);
register_array!(DynamicArray);
