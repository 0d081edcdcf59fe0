//! K-quants and symmetric arrays as MLX's affine arrays.

use mlx_rs::{Array, Dtype};
use tacit_arrays::format::{Affine, Parts};
use tacit_arrays::{AffineArray, KQuantArray, Packed, SymmetricArray};
use tacit_core::{Aval, Result, Value};

use crate::codes::{along, words};

/// The affine array with the same codes and numbers, where there is one, and other values as they are.
pub(crate) fn as_affine(value: Value) -> Result<Value> {
    let symmetric = value.downcast::<SymmetricArray>().filter(|array| !array.stored().transposed);
    match symmetric {
        Some(array) => Ok(array.to_affine()?.into()),
        None => of_k_quant(&value).unwrap_or(Ok(value)),
    }
}

/// The affine array of a K-quant, if MLX has its groups: those of 4 and 5 bits are of 32 elements.
///
/// Scales and biases are `f32`, in which an integer times a half is exact.
fn of_k_quant(value: &Value) -> Option<Result<Value>> {
    let array = value.downcast::<KQuantArray>()?;
    let (aval, scales, format) = (value.aval().ok()?, array.scales()?, *array.format());
    let whole = aval.size().is_multiple_of(256) && aval.shape.last().is_some_and(|last| last % 32 == 0);
    let fits = format.group() == 32 && whole && !array.stored().transposed;
    fits.then(|| affine(array.codes(), scales, Affine { bits: format.bits, group: 32 }, aval))
}

fn affine(codes: &Array, scales: &Value, format: Affine, aval: Aval) -> Result<Value> {
    let words = codes.view_dtype(Dtype::Uint32)?.reshape(&words(format.bits, &aval).shape)?;
    // A number for each group: scales, and then biases.
    let numbers = scales.dense()?;
    let groups = along(&aval, |columns| columns / format.group as i32, Dtype::Float32).shape;
    let numbers = numbers.split_equal(2, 0)?.iter().map(|half| half.reshape(&groups)).collect::<Result<Vec<_>, _>>()?;
    let biases = numbers.get(1).cloned();
    let parts = Parts { biases, ..Parts::new(words, numbers[0].clone()) };
    Ok(AffineArray::from_parts(parts, format, aval)?.into())
}
