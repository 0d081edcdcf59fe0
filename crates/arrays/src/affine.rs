//! MLX's affine format: 2 to 8 bits with a scale and a bias for each group.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};

use crate::checks::{check_children, check_elements, check_groups, stored_shape};
use crate::format::Affine;
use crate::kernel::{self, Encoding, Format};
use crate::linear::Linear;
use crate::packed::{self, Packed, Stored, dense_scales};

/// An array of 2, 3, 4, 5, 6 or 8 bits an element, in the layout of MLX's `quantize`.
///
/// Groups of 32, 64 or 128 elements of the last axis share a scale and a bias: an element is `code * scale + bias`,
/// computed in `f32`. The codes of an `f32` array are those of MLX's CPU, bit for bit.
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
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "tacit.Affine", family(Packed, Linear))]
pub struct AffineArray {
    /// The codes, least significant bits first: `u32[.., k * bits / 32]`.
    packed: Array,
    /// `[.., k / group_size]`, of the dtype that was quantized.
    scales: Array,
    /// As the scales.
    biases: Array,
    #[implicit(aux)]
    format: Affine,
    /// Whether the stored matrix has its axes the other way round.
    #[implicit(aux)]
    transposed: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl AffineArray {
    /// Quantizes `x` in groups of 32, 64 or 128 elements of its last axis to 2, 3, 4, 5, 6 or 8 bits.
    ///
    /// The scales and biases have the dtype of `x`, as MLX's have. It is lazy, and works inside `grad` and `compile`.
    ///
    /// # Errors
    ///
    /// `x` is not `f32`, `f16` or `bf16`, has no elements, or its last axis is not a whole number of groups; MLX has no
    /// such group size or number of bits. A NaN or an infinity in `x` is an error of the eval.
    pub fn quantize(x: &Array, format: Affine) -> Result<Self> {
        let aval = check(Aval::from(x), format)?;
        let wide = x.as_dtype(Dtype::Float32)?;
        let [packed, scales, biases] = kernel::quantize(Encoding::Affine(format.bits), format.group, &[wide])?;
        let [scales, biases] = [scales.as_dtype(aval.dtype)?, biases.as_dtype(aval.dtype)?];
        Ok(Self { packed, scales, biases, format, transposed: false, aval })
    }

    /// The array of codes, scales and biases that were made elsewhere, such as an MLX checkpoint.
    ///
    /// # Errors
    ///
    /// The shapes and dtypes do not belong to one array.
    pub fn from_parts(packed: Array, scales: Array, biases: Array, format: Affine) -> Result<Self> {
        check_format(format)?;
        let mut shape = scales.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = last.saturating_mul(format.group as i32);
        }
        let aval = Aval::new(&shape, scales.dtype());
        let array = Self { packed, scales, biases, format, transposed: false, aval };
        array.check()?;
        Ok(array)
    }

    /// The codes.
    #[must_use]
    pub fn packed(&self) -> &Array {
        &self.packed
    }

    /// The scales, one a group.
    #[must_use]
    pub fn scales(&self) -> &Array {
        &self.scales
    }

    /// The biases, one a group.
    #[must_use]
    pub fn biases(&self) -> &Array {
        &self.biases
    }

    /// Bits of an element, and elements in a group.
    #[must_use]
    pub fn format(&self) -> Affine {
        self.format
    }
}

fn check(aval: Aval, format: Affine) -> Result<Aval> {
    check_elements("affine", &aval)?;
    check_format(format)?;
    check_groups("affine", &aval, format.group)?;
    Ok(aval)
}

/// The dtype of the scales if it is one that they may have, and otherwise that of the array.
fn float(scales: &Array, own: Dtype) -> Dtype {
    if scales.dtype().is_float() && scales.dtype() != Dtype::Float64 { scales.dtype() } else { own }
}

fn check_format(Affine { bits, group }: Affine) -> Result<()> {
    if ![32, 64, 128].contains(&group) || ![2, 3, 4, 5, 6, 8].contains(&bits) {
        return Err(Error::invalid(
            format!("MLX has no affine format of {bits} bits in groups of {group}"),
            "use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128",
        ));
    }
    Ok(())
}

impl Materialize for AffineArray {
    fn materialize(&self) -> Result<Value> {
        packed::dense(self)
    }

    fn check(&self) -> Result<()> {
        let shape = stored_shape(&self.aval, self.transposed)?;
        let aval = check(Aval::new(&shape, self.aval.dtype), self.format)?;
        let (codes, groups) = Format::affine(self.format.bits).children(&shape, self.format.group);
        // Scales that were multiplied are wider than the array.
        let groups = Aval::new(&groups, float(&self.scales, aval.dtype));
        let children = [
            ("packed", Aval::new(&codes, Dtype::Uint32), Aval::from(&self.packed)),
            ("scales", groups.clone(), Aval::from(&self.scales)),
            ("biases", groups, Aval::from(&self.biases)),
        ];
        check_children(&format!("affine at {} bits", self.format.bits), &aval, &children)
    }
}

impl Packed for AffineArray {
    fn stored(&self) -> Stored {
        Stored {
            format: Format::affine(self.format.bits),
            codes: self.packed.clone(),
            scales: (&self.scales).into(),
            modifier: Some(self.biases.clone()),
            block: self.format.group,
            transposed: self.transposed,
            aval: self.aval.clone(),
        }
    }

    fn restored(&self, stored: Stored) -> Box<dyn ImplicitArray> {
        let Stored { codes: packed, scales, modifier, transposed, aval, .. } = stored;
        let (scales, biases) = (dense_scales(&scales, &self.scales), modifier.unwrap_or_else(|| self.biases.clone()));
        Box::new(Self { packed, scales, biases, transposed, aval, ..*self })
    }
}
