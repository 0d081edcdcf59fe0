//! Packed arrays times a number: the scales are multiplied, the codes stay.

use mlx_rs::{Array, Dtype};
use tacit_core::{Error, Result, Value};

use crate::families::packed::Packed;
use crate::kernel::Scaling;
use crate::packed::units::integers;

/// The scales in `f32`, so that they are rounded no further, after a linear map.
pub(crate) fn scaled(array: &dyn Packed, map: &dyn Fn(&Array) -> Result<Array>) -> Result<Value> {
    let mut stored = array.stored();
    let wide = |number: &Array| map(&number.as_dtype(Dtype::Float32)?);
    match (stored.scheme.scaling, &stored.scales) {
        (Scaling::Float, Some(Value::Dense(scales))) => {
            stored.scales = Some(wide(scales)?.into());
            stored.biases = stored.biases.as_ref().map(wide).transpose()?;
        }
        (Scaling::Float, Some(scales)) => {
            if let Some((integers, _)) = integers(scales) {
                stored.scales = Some(scaled(integers, map)?);
                return Ok(array.restored(stored).into());
            }
            let nested = stored.double_quantized();
            let nested = nested.ok_or_else(|| Error::decline("the scales are of a type that is not known here"))?;
            stored.scales = Some(nested.scaled(map)?.into());
        }
        (Scaling::E4m3, _) if stored.global_scale.is_some() => {
            stored.global_scale = stored.global_scale.as_ref().map(wide).transpose()?;
        }
        (Scaling::One, _) => return Err(Error::decline("the codes are the values, and have no scales")),
        _ => return Err(Error::decline("the scales are no floats that another number could scale")),
    }
    Ok(array.restored(stored).into())
}
