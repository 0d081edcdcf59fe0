//! MLX's affine format: 2 to 8 bits with a scale and a bias for each group.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value};

use crate::checks::{check_children, check_elements, check_groups, stored_shape};
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
/// use mlx_rs::{Array, ops};
/// use tacit_arrays::AffineArray;
/// use tacit_core::implicit;
///
/// let w = AffineArray::quantize(&ops::ones::<f32>(&[8, 64])?, 64, 4)?;
/// let x = ops::ones::<f32>(&[2, 64])?;
/// let y = implicit(|[x, w]: [Array; 2]| x.matmul(w.t()))([x.into(), w.into()])?;
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
    group_size: i32,
    #[implicit(aux)]
    bits: i32,
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
    pub fn quantize(x: &Array, group_size: i32, bits: i32) -> Result<Self> {
        let aval = check(Aval::from(x), group_size, bits)?;
        let wide = x.as_dtype(Dtype::Float32)?;
        let encoding = Encoding::Affine(bits as u32);
        let [packed, scales, biases] = kernel::quantize(encoding, group_size as usize, &[wide])?;
        let [scales, biases] = [scales.as_dtype(aval.dtype)?, biases.as_dtype(aval.dtype)?];
        Ok(Self { packed, scales, biases, group_size, bits, transposed: false, aval })
    }

    /// The array of codes, scales and biases that were made elsewhere, such as an MLX checkpoint.
    ///
    /// # Errors
    ///
    /// The shapes and dtypes do not belong to one array.
    pub fn from_parts(packed: Array, scales: Array, biases: Array, group_size: i32, bits: i32) -> Result<Self> {
        check_format(group_size, bits)?;
        let mut shape = scales.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = last.saturating_mul(group_size);
        }
        let aval = Aval::new(&shape, scales.dtype());
        let array = Self { packed, scales, biases, group_size, bits, transposed: false, aval };
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

    /// Elements in a group.
    #[must_use]
    pub fn group_size(&self) -> i32 {
        self.group_size
    }

    /// Bits of an element.
    #[must_use]
    pub fn bits(&self) -> i32 {
        self.bits
    }
}

fn check(aval: Aval, group_size: i32, bits: i32) -> Result<Aval> {
    check_elements("affine", &aval)?;
    check_format(group_size, bits)?;
    check_groups("affine", &aval, group_size as usize)?;
    Ok(aval)
}

/// The dtype of the scales if it is one that they may have, and otherwise that of the array.
fn float(scales: &Array, own: Dtype) -> Dtype {
    if scales.dtype().is_float() && scales.dtype() != Dtype::Float64 { scales.dtype() } else { own }
}

fn check_format(group_size: i32, bits: i32) -> Result<()> {
    if ![32, 64, 128].contains(&group_size) || ![2, 3, 4, 5, 6, 8].contains(&bits) {
        return Err(Error::invalid(
            format!("MLX has no affine format of {bits} bits in groups of {group_size}"),
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
        let aval = check(Aval::new(&shape, self.aval.dtype), self.group_size, self.bits)?;
        let (codes, groups) = Format::affine(self.bits as u32).children(&shape, self.group_size as usize);
        // Scales that were multiplied are wider than the array.
        let groups = Aval::new(&groups, float(&self.scales, aval.dtype));
        let children = [
            ("packed", Aval::new(&codes, Dtype::Uint32), Aval::from(&self.packed)),
            ("scales", groups.clone(), Aval::from(&self.scales)),
            ("biases", groups, Aval::from(&self.biases)),
        ];
        check_children(&format!("affine at {} bits", self.bits), &aval, &children)
    }
}

impl Packed for AffineArray {
    fn stored(&self) -> Stored {
        Stored {
            format: Format::affine(self.bits as u32),
            codes: self.packed.clone(),
            scales: (&self.scales).into(),
            modifier: Some(self.biases.clone()),
            block: self.group_size as usize,
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
