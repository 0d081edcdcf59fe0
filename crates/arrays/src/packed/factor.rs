//! Packed arrays times a number: the scales are multiplied, the codes stay.

use mlx_rs::{Array, Dtype};
use tacit_core::primitives::{Divide, Multiply, Negative};
use tacit_core::{Aval, Error, Result, Value, broadcast_source, handler};

use crate::families::packed::Packed;
use crate::kernel::Scaling;
use crate::packed::dynamic8::Dynamic8Array;
use crate::packed::units::integers;

/// A scalar as the other factor.
#[handler]
pub(crate) fn packed_multiply(_op: &Multiply, array: &dyn Packed, factor: &Array) -> Result<Value> {
    let factor = scalar(array, factor)?;
    scaled(array, |number| Ok(number.multiply(&factor)?))
}

/// A scalar as the divisor.
#[handler]
pub(crate) fn packed_divide(_op: &Divide, array: &dyn Packed, divisor: &Array) -> Result<Value> {
    let divisor = scalar(array, divisor)?;
    scaled(array, |number| Ok(number.divide(&divisor)?))
}

/// The other sign, which goes to the scales.
#[handler]
pub(crate) fn packed_negative(_op: &Negative, array: &dyn Packed) -> Result<Value> {
    scaled(array, |number| Ok(number.negative()?))
}

/// The scalar in `f32` that `other`, of the array's shape, is a broadcast of.
fn scalar(array: &dyn Packed, other: &Array) -> Result<Array> {
    let source = broadcast_source(other)?;
    if source.size() != 1 || other.shape() != array.stored().aval.shape {
        return Err(Error::decline(format!("{} is not a scalar", Aval::from(&source))));
    }
    Ok(source.reshape(&[])?.as_dtype(Dtype::Float32)?)
}

/// The scales in `f32`, so that they are rounded no further, after a linear map.
fn scaled(array: &dyn Packed, map: impl Fn(&Array) -> Result<Array>) -> Result<Value> {
    let mut stored = array.stored();
    let wide = |number: &Array| map(&number.as_dtype(Dtype::Float32)?);
    match (stored.scheme.scaling, &stored.scales) {
        (Scaling::Float, Some(Value::Dense(scales))) => {
            stored.scales = Some(wide(scales)?.into());
            stored.modifier = stored.modifier.as_ref().map(wide).transpose()?;
        }
        (Scaling::Float, Some(scales)) => {
            if let Some((integers, _)) = integers(scales) {
                stored.scales = Some(scaled(integers, map)?);
                return Ok(array.restored(stored).into());
            }
            let nested = scales.downcast::<Dynamic8Array>();
            let nested = nested.ok_or_else(|| Error::decline("the scales are of a type that is not known here"))?;
            stored.scales = Some(nested.scaled(map)?.into());
        }
        (Scaling::E4m3, _) if stored.modifier.is_some() => {
            stored.modifier = stored.modifier.as_ref().map(wide).transpose()?;
        }
        (Scaling::One, _) => return Err(Error::decline("the codes are the values, and have no scales")),
        _ => return Err(Error::decline("the scales are no floats that another number could scale")),
    }
    Ok(array.restored(stored).into())
}
