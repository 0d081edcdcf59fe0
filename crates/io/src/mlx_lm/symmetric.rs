//! Symmetric arrays as MLX's affine arrays.

use mlx_rs::{Array, Dtype};
use tacit_arrays::format::{Affine, Parts};
use tacit_arrays::{AffineArray, Packed, SymmetricArray};
use tacit_core::{Result, Value};

/// The affine array with the codes and scales of a symmetric one, and biases that make them the same numbers.
///
/// Both are in the type of the scales, or in `f32` where that has no such biases.
pub(crate) fn affine_of_symmetric(value: &Value) -> Option<Result<Value>> {
    let array = value.downcast::<SymmetricArray>()?;
    (!array.stored().transposed).then(|| affine(array, value))
}

fn affine(array: &SymmetricArray, value: &Value) -> Result<Value> {
    let format = *array.format();
    let scales = array.scales().map(Value::dense).transpose()?;
    let parts = scales.map(|scales| biased(array, scales)).transpose()?;
    let parts = parts.unwrap_or_else(|| Parts::unscaled(array.codes().clone()));
    Ok(AffineArray::from_parts(parts, Affine { bits: format.bits, group: format.group }, value.aval()?)?.into())
}

fn biased(array: &SymmetricArray, scales: Array) -> Result<Parts> {
    let wide = scales.as_dtype(Dtype::Float32)?;
    let biases = wide.multiply(Array::from_f32(-((1_u32 << (array.format().bits - 1)) as f32)))?;
    let narrow = biases.as_dtype(scales.dtype())?;
    let is_exact = narrow.as_dtype(Dtype::Float32)?.eq(&biases)?.all(None)?.item_exact::<bool>();
    let (scales, biases) = if is_exact { (scales, narrow) } else { (wide, biases) };
    Ok(Parts { biases: Some(biases), ..Parts::new(array.codes().clone(), scales) })
}
