//! Float dtypes: which of them a view casts, and which one accumulates sums. MLX sums half floats in their own dtype,
//! in which bf16 counts no further than 256; sums here are taken in `f32`.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Result};

use crate::avals::checks::decline_if;

/// The type in which numbers of `dtype` are summed.
#[must_use]
pub fn accumulator_dtype(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::Float16 | Dtype::Bfloat16 => Dtype::Float32,
        other => other,
    }
}

/// What `f` makes of the array in its [`accumulator_dtype`], rounded once to the array's own.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Dtype, ops};
/// use tacit_arrays::in_accumulator_dtype;
///
/// let ones = ops::ones::<f32>(&[1024])?.as_dtype(Dtype::Bfloat16)?;
/// let sum = in_accumulator_dtype(&ones, |ones| Ok(ones.sum(None)?))?;
/// assert_eq!(sum.dtype(), Dtype::Bfloat16);
/// assert_eq!(sum.as_dtype(Dtype::Float32)?.item::<f32>(), 1024.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Those of `f`.
pub fn in_accumulator_dtype(array: &Array, f: impl FnOnce(&Array) -> Result<Array>) -> Result<Array> {
    let dtype = array.dtype();
    Ok(f(&array.as_dtype(accumulator_dtype(dtype))?)?.as_dtype(dtype)?)
}

/// The type in which a product is made that becomes small again: what `f16` holds may be beyond its range before.
pub(crate) fn roomy(dtype: Dtype) -> Dtype {
    if dtype == Dtype::Float16 { Dtype::Float32 } else { dtype }
}

pub(crate) fn in_room(array: &Array) -> Result<Array> {
    Ok(array.as_dtype(roomy(array.dtype()))?)
}

/// Whether a view casts from this type and to it.
pub(crate) fn castable(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16)
}

pub(crate) fn check_castable(dtype: Dtype) -> Result<()> {
    decline_if(!castable(dtype), "only f32, bf16 and f16 are read as views")
}

/// Whether every number of `narrow` is one of `wide`.
pub(crate) fn holds(narrow: Dtype, wide: Dtype) -> bool {
    narrow == wide || wide == Dtype::Float32
}

/// Declines a conversion after which the rounding of the type before it would have to show.
pub(crate) fn narrowing(aval: &Aval, dtype: Dtype) -> Result<()> {
    let narrows = aval.dtype == Dtype::Float32 && matches!(dtype, Dtype::Float16 | Dtype::Bfloat16);
    decline_if(!narrows && dtype != aval.dtype, "a wider type would show the rounding of the narrower one")
}
