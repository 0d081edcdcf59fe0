//! Packed arrays in another shape.

use tacit_core::primitives::Reshaping;
use tacit_core::{Aval, Error, Result, Value, handler};

use crate::avals::axes::{extent, swapped};
use crate::avals::checks::decline_if;
use crate::families::packed::{Packed, Stored};
use crate::packed::units::Supers;

/// The same codes in another shape.
#[handler]
pub(crate) fn packed_reshape(_op: &Reshaping, array: &dyn Packed, results: &[Aval]) -> Result<Value> {
    let shape = &results[0].shape;
    let stored = array.stored();
    if stored.transposed {
        let matrices = |shape: &[i32]| shape.last_chunk::<2>().copied();
        let is_other = matrices(shape) != matrices(&stored.aval.shape);
        decline_if(is_other, "the codes of a transposed view lie in another order")?;
        return reshaped(array, stored, &swapped(shape));
    }
    let is_whole = shape.last().is_some_and(|&last| (last as usize).is_multiple_of(stored.unit()));
    decline_if(stored.scheme.is_grouped() && !is_whole, "a group would be cut")?;
    reshaped(array, stored, shape)
}

/// `array` with children that are brought into the form that they have at `shape`.
pub(crate) fn reshaped(array: &dyn Packed, stored: Stored, shape: &[i32]) -> Result<Value> {
    Ok(array.restored(in_shape(stored, shape)?).into())
}

pub(crate) fn in_shape(mut stored: Stored, shape: &[i32]) -> Result<Stored> {
    stored.aval.shape = shape.to_vec();
    if stored.transposed {
        stored.aval.shape = swapped(shape);
    }
    let (codes, scales) = stored.scheme.children(shape, stored.block);
    stored.codes = stored.codes.reshape(&codes)?;
    if let Some(Value::Dense(dense)) = &stored.scales {
        stored.scales = Some(dense.reshape(&scales)?.into());
    }
    stored.biases = stored.biases.as_ref().map(|biases| biases.reshape(&scales)).transpose()?;
    Ok(stored)
}

/// The super-blocks of such scales along one axis again.
pub(crate) fn flat(supers: &Supers<'_>, integers: &Value) -> Result<Value> {
    let array = packed(integers)?;
    let count = extent(&array.stored().aval.shape) as i32 / (supers.rows * supers.groups).max(1);
    reshaped(array, array.stored(), &[supers.rows, count, supers.groups])
}

/// Scales that are packed themselves.
pub(crate) fn packed(value: &Value) -> Result<&dyn Packed> {
    value.family::<dyn Packed>().ok_or_else(|| Error::decline("the scales are not packed"))
}
