//! MLX's affine format: 2 to 8 bits with a scale and a bias for each group.

use tacit_core::{Result, register_array};

use crate::format::declaration::{Format, TextForm};
use crate::format::options::{check_integers, groups, read_groups};
use crate::kernel::{Coding, Encoding, Scaling, Scheme};
use crate::packed::array::{Int8Activations, PackedArray};
use crate::register_format;

/// An array of 2, 3, 4, 5, 6 or 8 bits an element, in the layout of MLX's `quantize`.
///
/// Groups of 32, 64 or 128 elements of the last axis share a scale and a bias: an element is `code * scale + bias`,
/// computed in `f32`. The codes, `u32[.., k * bits / 32]`, have the least significant bits first, and of an `f32` array are
/// those of MLX's CPU, bit for bit; scales and biases are `[.., k / group]`, of the dtype that was quantized.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{AffineArray, format::Affine};
/// use tacit_core::implicit;
///
/// let w = AffineArray::quantize(&ops::ones::<f32>(&[8, 64])?, Affine { bits: 4, group: 64 })?;
/// let x = ops::ones::<f32>(&[2, 64])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [64.0; 16]);
/// # Ok(())
/// # }
/// ```
pub type AffineArray = PackedArray<Affine>;

/// MLX's affine format: integers with a scale and a bias for each group of the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affine {
    /// Bits of an element: 2, 3, 4, 5, 6 or 8.
    pub bits: u32,
    /// Elements in a group: 32, 64 or 128.
    pub group: usize,
}

impl Format for Affine {
    const SAVED_AS: &'static str = "tacit.Affine";

    fn scheme(&self) -> Scheme {
        let coding = Coding::Unsigned { bits: self.bits };
        Scheme { biased: true, ..Scheme::grouped(Self::NAME, Encoding::Affine, coding, Scaling::Float) }
    }

    fn block(&self) -> usize {
        self.group
    }

    fn with_block(&self, block: usize) -> Option<Self> {
        Some(Self { group: block, ..*self })
    }

    fn check(&self) -> Result<()> {
        check_integers("MLX has no affine format", self.bits, self.group)
    }
}

impl Int8Activations for Affine {}

impl TextForm for Affine {
    const NAME: &'static str = "affine";
    const FORMS: &'static str = "affine:BITS:GROUP of 2 to 6 or 8 bits, in groups of 32, 64 or 128";

    fn options(&self) -> String {
        groups(self.bits, self.group)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let (bits, group) = read_groups(options)?;
        Some(Self { bits, group })
    }
}

register_format!(Affine);
register_array!(AffineArray);
