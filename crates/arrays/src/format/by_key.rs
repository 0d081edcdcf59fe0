//! Stochastic quantization by an explicit random key.

use mlx_rs::{Array, Dtype};
use tacit_core::{Error, Result, Value};

use super::any::AnyFormat;
use super::declaration::Quantizer;
use super::fit::Fit;
use super::mx::ScaleRule;
use super::rotation::{behind, rotated};
use crate::avals::checks::check_key;
use crate::families::packed::{Packed, Stored, read_in};
use crate::kernel::{self, Scheme};
use crate::views::rotated::Rotated;

/// The array that stands for `x` in a format, with each element rounded at random.
///
/// An element takes one of the two values around it, so that its mean over all keys is the element itself, as far as the codes of
/// its block reach; what has a code keeps it. Scales are those that the format chooses, which may say `+stochastic` or not: see
/// [`Stochastic`](super::Stochastic). Floats among them are made greater where codes would not reach an element, unless they are fitted,
/// as by `+search`. In a block of affine codes whose scale is made greater, zero has no code of its own: its bias stays, and zeros take
/// one of the two values around, zero in the mean. Equal keys, `u32[2]`, give equal bits, whatever the number of threads; the random
/// numbers are those of MLX's `uniform` by the key.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, random};
/// use tacit_arrays::format::quantize_by_key;
///
/// let x = Array::from_slice(&[127.0f32, 0.25, 0.25, 0.25], &[1, 4]);
/// let mean = (0..400).try_fold(0.0, |sum, seed| {
///     let drawn = quantize_by_key("int8", &x, &random::key(seed)?)?.dense()?;
///     Ok::<_, tacit_core::Error>(sum + drawn.as_slice::<f32>()[1] / 400.0)
/// })?;
/// assert!((mean - 0.25).abs() < 0.1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As for [`Quantizer::quantize`]; the text is no format, the key is not `u32[2]`, or the format makes no codes.
pub fn quantize_by_key(format: impl TryInto<AnyFormat, Error: Into<Error>>, x: &Array, key: &Array) -> Result<Value> {
    check_key("key to round by", key)?;
    let format = format.try_into().map_err(Into::into)?;
    let format = format.stochastic().unwrap_or(&*format);
    // What a fit chose stays.
    drawn(&format.quantize(x)?, x, key, &|scheme| format.fits(Fit::search()) && !scheme.reaches())
}

/// The same scales as those of `nearest`, which its format made of `x`, with codes that are drawn. Where scales of a scheme
/// `grow`, they become such that all of `x` is reached.
fn drawn(nearest: &Value, x: &Array, key: &Array, grow: &dyn Fn(&Scheme) -> bool) -> Result<Value> {
    if let Some(inner) = behind(nearest) {
        return Rotated::view(drawn(inner, &rotated(x)?, key, grow)?, x.ndim() - 1);
    }
    let Some(array) = nearest.family::<dyn Packed>() else {
        let help = "name a format of codes, such as int8 or dynamic:8:256";
        return Err(Error::invalid(format!("{nearest} has no codes to round to at random"), help));
    };
    let mut stored = array.stored();
    if stored.scheme.half() == Some(x.dtype()) {
        return Ok(nearest.clone());
    }
    let x = if stored.transposed { x.swap_axes(-1, -2)? } else { x.clone() }.as_dtype(Dtype::Float32)?;
    if let Some(Value::Dense(scales)) = stored.scales.as_ref().filter(|_| grow(&stored.scheme)) {
        let scales = kernel::reaching(&stored.scheme, stored.block, &x, scales, stored.biases.as_ref())?;
        stored.scales = Some(scales.into());
    }
    let (layout, children) = stored.kernel(x.shape().first().copied().unwrap_or(1))?;
    stored.codes = kernel::draw(&layout, &x, key, &children[1..])?;
    Ok(array.restored(stored).into())
}

/// Codes of `x: f32` in the place of `codes`, which are in `format`: drawn, and read as `codes` are, in their type and with products
/// that round activations where theirs do. Their scales reach all of `x`: what is beyond the codes of its block would stay where it
/// is in each step outward, and each step inward would move it.
pub(crate) fn redrawn(codes: &Value, format: &dyn Quantizer, x: &Array, key: &Array) -> Result<Value> {
    // Of floats that were rounded to a half type the largest of a block, which is its scale, would not grow by small steps.
    drawn(&read_alike(codes, &format.quantize(x)?)?, x, key, &|scheme| !format.fits(Fit::search()) || !scheme.reaches())
}

/// The codes and scales of `other`, as those of `codes` are held and read, which are in the same format.
fn read_alike(codes: &Value, other: &Value) -> Result<Value> {
    if let (Some(codes), Some(inner)) = (behind(codes), behind(other)) {
        return Rotated::view(read_alike(codes, inner)?, other.aval()?.shape.len() - 1);
    }
    let (Some(codes), Some(array)) = (codes.family::<dyn Packed>(), other.family::<dyn Packed>()) else {
        return Ok(other.clone());
    };
    let (own, mut stored) = (codes.stored(), array.stored());
    if let (Some(Value::Dense(own)), Some(Value::Dense(scales))) = (&own.scales, &stored.scales) {
        let scales = scales.as_dtype(own.dtype())?;
        stored.biases = stored.biases.map(|biases| biases.as_dtype(own.dtype())).transpose()?;
        stored.scales = Some(scales.into());
    }
    Ok(codes.restored(Stored { aval: own.aval, ..stored }).into())
}

/// The floats that an array of codes stands for, without the rounding of its own type.
pub(crate) fn decoded(value: &Value) -> Result<Array> {
    let wide = |value: &Value| value.family::<dyn Packed>().map(|array| read_in(array, Dtype::Float32));
    let read = match behind(value) {
        Some(inner) => wide(inner).map(|inner| Rotated::view(inner, value.aval()?.shape.len() - 1)).transpose()?,
        None => wide(value),
    };
    Ok(read.as_ref().unwrap_or(value).dense()?.as_dtype(Dtype::Float32)?)
}

/// Whether scales that are made anew for each step reach the ends of their blocks: they are floats, or powers of two that are rounded up.
/// Scales that are rounded to the nearest of some codes fall short of a half of all blocks.
pub(crate) fn scales_reach(codes: &Value) -> bool {
    let Some(array) = behind(codes).unwrap_or(codes).family::<dyn Packed>() else { return true };
    let scheme = array.stored().scheme;
    let is_float = matches!(scheme.scaling, kernel::Scaling::One | kernel::Scaling::Float);
    let is_up =
        matches!(scheme.encoding, kernel::Encoding::Mxfp4(ScaleRule::Ceil) | kernel::Encoding::Mxfp8(ScaleRule::Ceil));
    scheme.nested.is_none() && (is_float || is_up)
}
