//! Constants in the dtype of the array that they are combined with, so that they do not widen it.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

/// A number that does not widen what it meets.
pub(crate) fn scalar(number: f32, dtype: Dtype) -> Result<Array, Exception> {
    Array::from_f32(number).as_dtype(dtype)
}

/// The least finite number of a float type, as MLX has it for what a mask hides.
pub(crate) fn least(dtype: Dtype) -> Result<Array, Exception> {
    let least = match dtype {
        Dtype::Float16 => -65504.0,
        // That of `f32` is rounded to an infinity.
        Dtype::Bfloat16 => f32::from_bits(0xff7f_0000),
        _ => f32::MIN,
    };
    scalar(least, dtype)
}

/// `cap * tanh(x / cap)`.
pub(crate) fn capped(x: &Array, cap: f32) -> Result<Array, Exception> {
    let cap = scalar(cap, x.dtype())?;
    ops::tanh(x.divide(&cap)?)?.multiply(cap)
}

/// The sum that runs through a model with norms behind its layers, in floats that hold it: that of Gemma 3 is beyond what `f16` has.
pub(crate) fn widened(x: &Array) -> Result<Array, Exception> {
    if x.dtype() == Dtype::Float16 { x.as_dtype(Dtype::Float32) } else { Ok(x.clone()) }
}

/// What meets weights of this dtype: in half precision where they are.
pub(crate) fn narrowed(x: &Array, dtype: Dtype) -> Result<Array, Exception> {
    if dtype == Dtype::Float16 { x.as_dtype(dtype) } else { Ok(x.clone()) }
}
