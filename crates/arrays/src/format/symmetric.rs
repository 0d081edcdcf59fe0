//! Symmetric integers: 2 to 6 or 8 bits with a scale for each group.

use mlx_rs::{Array, Dtype};
use tacit_core::{Error, Result, register_array};

use crate::families::packed::Packed;
use crate::format::affine::{Affine, AffineArray};
use crate::format::declaration::{Format, TextForm};
use crate::format::options::{check_integers, groups, read_groups};
use crate::kernel::{Coding, Encoding, Scaling, Scheme};
use crate::packed::array::{Int8Activations, PackedArray, Parts};
use crate::register_format;

/// An array of 2 to 6 or 8 bits an element, with a scale and no bias for each group of the last axis.
///
/// Groups of 32, 64 or 128 elements share a scale: an element is `(code - 2^(bits - 1)) * scale`, computed in `f32`. The codes,
/// `u32[.., k * bits / 32]`, are those of an [`AffineArray`](crate::AffineArray) whose biases are `-2^(bits - 1)` times its scales; the
/// scales, `[.., k / group]`, may be of any float type.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::{SymmetricArray, format::Symmetric};
/// use tacit_core::implicit;
///
/// let w = SymmetricArray::quantize(&ops::full::<f32>(&[8, 64], mlx_rs::Array::from_f32(-1.0))?, Symmetric { bits: 4, group: 64 })?;
/// let x = ops::ones::<f32>(&[2, 64])?;
/// let y = implicit((x, w), |(x, w)| x.matmul(w.t()))?;
/// assert_eq!(y.dense()?.as_slice::<f32>(), [-64.0; 16]);
/// # Ok(())
/// # }
/// ```
///
/// `Q4_0`, `Q5_0` and `Q8_0` of a GGUF file are such arrays, in groups of 32 with `f16` scales, bit for bit. Quantizing gives the
/// element of the largest magnitude in a group the code 0, as llama.cpp does for `Q4_0` and `Q5_0`: the scale is that element over
/// `-2^(bits - 1)`, in `f32`.
pub type SymmetricArray = PackedArray<Symmetric>;

/// Symmetric integers with a scale for each group of the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symmetric {
    /// Bits of an element: 2 to 6, or 8.
    pub bits: u32,
    /// Elements in a group: 32, 64 or 128.
    pub group: usize,
}

impl PackedArray<Symmetric> {
    /// The same codes with biases: for what has no symmetric format, such as mlx-lm's files.
    ///
    /// Scales and biases are in the type of the scales, or in `f32` where that does not hold the biases, which are evaluated for that.
    /// The numbers are the same where the scales have so few bits that their products with the codes are not rounded, as `f16` and
    /// `bf16` have; with scales in `f32` they differ by a rounding of the largest product. Whether activations are rounded stays.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_arrays::{SymmetricArray, format::Symmetric};
    /// use tacit_core::Materialize;
    ///
    /// let w = SymmetricArray::quantize(&ops::ones::<f32>(&[8, 64])?, Symmetric { bits: 8, group: 32 })?;
    /// let affine = w.to_affine()?;
    /// assert_eq!(affine.format().bits, 8);
    /// assert!(affine.materialize()?.dense()?.eq_exact(w.materialize()?.dense()?)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Scales that are implicit and cannot be built, or the array is the transpose of what is stored.
    pub fn to_affine(&self) -> Result<AffineArray> {
        let stored = self.stored();
        if stored.transposed {
            return Err(Error::invalid(
                format!("{} is the transpose of what is stored", stored.aval),
                "make the affine array before it is transposed",
            ));
        }
        let Symmetric { bits, group } = *self.format();
        let parts = match &stored.scales {
            None => Parts::unscaled(stored.codes),
            Some(scales) => biased(stored.codes, scales.dense()?, &stored.scheme.center())?,
        };
        let result = AffineArray::from_parts(parts, Affine { bits, group }, stored.aval)?;
        if self.int8_activations() { result.with_int8_activations() } else { Ok(result) }
    }
}

/// Codes with biases of `center` times the scales.
fn biased(codes: Array, scales: Array, center: &Array) -> Result<Parts> {
    let wide = scales.as_dtype(Dtype::Float32)?;
    let biases = wide.multiply(center)?;
    let narrow = biases.as_dtype(scales.dtype())?;
    let is_exact = narrow.as_dtype(Dtype::Float32)?.eq(&biases)?.all(None)?.item_exact::<bool>();
    let (scales, biases) = if is_exact { (scales, narrow) } else { (wide, biases) };
    Ok(Parts { biases: Some(biases), ..Parts::new(codes, scales) })
}

impl Format for Symmetric {
    const SAVED_AS: &'static str = "tacit.Symmetric";

    fn scheme(&self) -> Scheme {
        Scheme::grouped(Self::NAME, Encoding::Symmetric, Coding::Offset { bits: self.bits }, Scaling::Float)
    }

    fn block(&self) -> usize {
        self.group
    }

    fn with_block(&self, block: usize) -> Option<Self> {
        Some(Self { group: block, ..*self })
    }

    fn check(&self) -> Result<()> {
        check_integers("there is no symmetric format", self.bits, self.group)
    }
}

impl Int8Activations for Symmetric {}

impl TextForm for Symmetric {
    const NAME: &'static str = "symmetric";
    const FORMS: &'static str = "symmetric:BITS:GROUP of 2 to 6 or 8 bits, in groups of 32, 64 or 128";

    fn options(&self) -> String {
        groups(self.bits, self.group)
    }

    fn from_options(options: &[&str]) -> Option<Self> {
        let (bits, group) = read_groups(options)?;
        Some(Self { bits, group })
    }
}

register_format!(Symmetric);
register_array!(SymmetricArray);
