//! MLX's affine format: 2 to 8 bits with a scale and a bias for each group.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::op::{AddMM, AsType, Gather, Matmul, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, Value, handler};

use crate::matrix::{PackedMatrix, extents, packed_matrix_handlers};

/// An array of 2, 3, 4, 5, 6 or 8 bits an element, as MLX's `quantize` makes it.
///
/// Groups of 32, 64 or 128 elements of the last axis share a scale and a bias: an element is `code * scale + bias`.
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
#[implicit(name = "tacit.Affine")]
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
    /// # Errors
    ///
    /// `x` is not float or has fewer than two axes, its last axis is not a whole number of groups, or MLX has no such
    /// group size or number of bits.
    pub fn quantize(x: &Array, group_size: i32, bits: i32) -> Result<Self> {
        let aval = Aval::from(x);
        check(&aval, group_size, bits)?;
        let (packed, scales, biases) = ops::quantize(x, group_size, bits)?;
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
            *last *= group_size;
        }
        let aval = Aval::new(&shape, scales.dtype());
        check(&aval, group_size, bits)?;
        if let Some(last) = shape.last_mut() {
            *last = *last * bits / 32;
        }
        let codes = Aval::new(&shape, Dtype::Uint32);
        for (name, expected, found) in
            [("packed", &codes, Aval::from(&packed)), ("biases", &Aval::from(&scales), Aval::from(&biases))]
        {
            if *expected != found {
                return Err(Error::invalid(
                    format!("{name} is {found}, and an affine array of {aval} at {bits} bits has {expected}"),
                    "take packed, scales and biases of one array, with its group size and bits",
                ));
            }
        }
        Ok(Self { packed, scales, biases, group_size, bits, transposed: false, aval })
    }
}

fn check(aval: &Aval, group_size: i32, bits: i32) -> Result<()> {
    if !aval.dtype.is_float() || aval.dtype == Dtype::Float64 {
        return Err(Error::invalid(format!("{aval} cannot be affine"), "quantize an f32, f16 or bf16 array"));
    }
    check_format(group_size, bits)?;
    let last = aval.shape.last().copied().unwrap_or_default();
    if aval.shape.len() < 2 || last % group_size != 0 || aval.size() == 0 {
        return Err(Error::invalid(
            format!("{aval} is not a matrix of whole groups of {group_size}"),
            "use a smaller group size, or an array type without groups along the last axis",
        ));
    }
    Ok(())
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
        let dense = ops::dequantize(&self.packed, &self.scales, &self.biases, self.group_size, self.bits)?;
        let dense = dense.as_dtype(self.aval.dtype)?;
        Ok(if self.transposed { dense.t() } else { dense }.into())
    }
}

impl PackedMatrix for AffineArray {
    fn product(&self, x: &Array) -> Result<Array> {
        let (packed, scales, biases) = (&self.packed, &self.scales, &self.biases);
        let y = ops::quantized_matmul(x, packed, scales, biases, self.transposed, self.group_size, self.bits)?;
        Ok(y.as_dtype(x.dtype())?)
    }

    fn turned(&self, aval: Aval) -> Self {
        Self { transposed: !self.transposed, aval, ..self.clone() }
    }

    fn narrowed(&self, aval: Aval) -> Self {
        Self { aval, ..self.clone() }
    }
}

packed_matrix_handlers! {
    AffineArray: affine_matmul, affine_matmul_left, affine_addmm, affine_addmm_left, affine_transpose, affine_astype
}

/// Rows of a matrix, as an embedding takes them: gathered packed, then dequantized.
#[handler]
pub fn affine_gather(op: &Gather, w: &AffineArray, rows: &Array) -> Result<Array> {
    let (_, columns) = extents(w)?;
    if w.transposed || op.axes != [0] || op.slice_sizes != [1, columns] {
        return Err(Error::decline("only whole rows are gathered from packed codes"));
    }
    let shape = [rows.shape(), &[1, columns]].concat();
    if rows.size() == 0 {
        // MLX dequantizes no empty array.
        return Ok(ops::zeros_dtype(&shape, w.aval.dtype)?);
    }
    let wanted = rows.flatten(None, None)?;
    let take = |array: &Array| array.take_axis(&wanted, 0);
    let (packed, scales, biases) = (take(&w.packed)?, take(&w.scales)?, take(&w.biases)?);
    let made = ops::dequantize(&packed, &scales, &biases, w.group_size, w.bits)?;
    Ok(made.reshape(&shape)?.as_dtype(w.aval.dtype)?)
}
