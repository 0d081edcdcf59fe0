//! Quantizing at random, by a key.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, Result, Value};

use super::declaration::Quantizer;
use super::rotation::{behind, rotated};
use crate::families::packed::Packed;
use crate::kernel;
use crate::views::rotated::Rotated;

/// The array that stands for `x` in a format, with each element rounded at random.
///
/// An element takes one of the two values around it, so that its mean over all keys is the element itself, as far as the codes of
/// its block reach; what has a code keeps it. Scales are those that the format chooses, which may say `+stochastic` or not: see
/// [`Stochastic`](super::Stochastic). Equal keys, `u32[2]`, give equal bits, whatever the number of threads; the random numbers
/// are those of MLX's `uniform` by the key.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, random};
/// use tacit_arrays::format::{Int8, quantize_by_key};
///
/// let x = Array::from_slice(&[127.0f32, 0.25, 0.25, 0.25], &[1, 4]);
/// let mean = (0..400).try_fold(0.0, |sum, seed| {
///     let made = quantize_by_key(&Int8::default(), &x, &random::key(seed)?)?.dense()?;
///     Ok::<_, tacit_core::Error>(sum + made.as_slice::<f32>()[1] / 400.0)
/// })?;
/// assert!((mean - 0.25).abs() < 0.1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`Quantizer::quantize`]; the key is not `u32[2]`, or the format makes no codes.
pub fn quantize_by_key(format: &dyn Quantizer, x: &Array, key: &Array) -> Result<Value> {
    let aval = Aval::from(key);
    if aval != Aval::new(&[2], Dtype::Uint32) {
        return Err(Error::invalid(
            format!("the key to round by is {aval}, and a key is u32[2]"),
            "make one with `mlx_rs::random::key`",
        ));
    }
    let format = format.stochastic().unwrap_or(format);
    let made = format.quantize(x)?;
    drawn(&made, x, key)?.ok_or_else(|| {
        Error::invalid(
            format!("the format {format} makes {made} of {}, which has no codes to draw", Aval::from(x)),
            "name a format of codes, such as int8 or dynamic:8:256",
        )
    })
}

/// The same scales as those of `made`, which its format made of `x`, with codes that are drawn; none where there are no codes.
fn drawn(made: &Value, x: &Array, key: &Array) -> Result<Option<Value>> {
    if let Some(inner) = behind(made) {
        let drawn = drawn(inner, &rotated(x)?, key)?;
        return drawn.map(|inner| Rotated::of(inner, x.ndim() - 1)).transpose();
    }
    let Some(array) = made.family::<dyn Packed>() else { return Ok(None) };
    let mut stored = array.stored();
    if stored.scheme.half() == Some(x.dtype()) {
        return Ok(Some(made.clone()));
    }
    let x = if stored.transposed { x.swap_axes(-1, -2)? } else { x.clone() };
    let (layout, children) = stored.kernel(x.shape().first().copied().unwrap_or(1))?;
    stored.codes = kernel::draw(&layout, &x.as_dtype(Dtype::Float32)?, key, &children[1..])?;
    Ok(Some(array.restored(stored).into()))
}
