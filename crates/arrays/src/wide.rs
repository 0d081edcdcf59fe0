//! Half types in `f32`: MLX sums them in their own type, which counts to 256 in bf16.

use mlx_rs::{Array, Dtype};
use tacit_core::Result;

/// The type in which numbers of `dtype` are summed.
#[must_use]
pub fn wide(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::Float16 | Dtype::Bfloat16 => Dtype::Float32,
        other => other,
    }
}

/// What `f` makes of the array in its [`wide`](wide()) type, rounded once to the array's own.
///
/// # Errors
///
/// Those of `f`.
pub fn widely(array: &Array, f: impl FnOnce(&Array) -> Result<Array>) -> Result<Array> {
    let dtype = array.dtype();
    Ok(f(&array.as_dtype(wide(dtype))?)?.as_dtype(dtype)?)
}
