//! Concatenation of packed arrays: codes and scales are joined, never quantized again.

use mlx_rs::{Array, ops};
use tacit_core::primitives::Concatenate;
use tacit_core::{Error, Result, Value, handler};

use crate::avals::axes::{extent, swapped};
use crate::avals::checks::decline_if;
use crate::families::packed::{Packed, Stored};
use crate::packed::shape::{flat, packed, reshaped};
use crate::packed::units::Supers;

/// Arrays of one type and the same static fields, joined where each but the last ends with a block. Others are parts of a `Concat`.
#[handler]
pub(crate) fn packed_concatenate(op: &Concatenate, first: &dyn Packed, rest: &[&Value]) -> Result<Value> {
    let Stored { transposed, aval, .. } = first.stored();
    let mut axes: Vec<i32> = (0..aval.shape.len() as i32).collect();
    if transposed {
        axes = swapped(&axes);
    }
    let axis = axes[op.axis as usize] as usize;
    let rest = rest.iter().map(|value| value.family::<dyn Packed>());
    let rest = rest.collect::<Option<Vec<_>>>().ok_or_else(|| Error::decline("the parts are of several types"))?;
    joined(first, &rest, axis)
}

/// Why the static fields of two parts differ.
fn unlike(first: &dyn Packed, part: &dyn Packed) -> Error {
    match (first.format_text(), part.format_text()) {
        (Some(own), Some(other)) if own != other => {
            Error::decline(format!("the parts have different formats: {own} and {other}"))
        }
        _ => {
            Error::decline("the parts differ in their formats, or in whether they are transposed or round activations")
        }
    }
}

/// Arrays joined along an axis of the stored ones.
fn joined(first: &dyn Packed, rest: &[&dyn Packed], axis: usize) -> Result<Value> {
    let mut stored = first.stored();
    let mut parts = vec![stored.clone()];
    for &part in rest {
        if !first.restored(part.stored()).aux_eq(part) || part.stored().transposed != stored.transposed {
            return Err(unlike(first, part));
        }
        parts.push(part.stored());
    }
    decline_if(parts.iter().any(|part| part.global_scale.is_some()), "each part has a global scale of its own")?;
    let mut shape = stored.shape();
    let (outer, unit) = (extent(&shape[..axis]), stored.unit());
    let extents: Vec<usize> = parts.iter().map(|part| extent(&part.shape()[axis..])).collect();
    let elements = outer.saturating_mul(extents.iter().sum());
    decline_if(elements > i32::MAX as usize, "there would be more elements than MLX counts along one axis")?;
    let (_, heads) = extents.split_last().unwrap_or((&0, &[]));
    let aligned = extents.iter().all(|extent| extent % unit == 0);
    let flat = outer == 1 && !stored.scheme.is_grouped() && heads.iter().all(|extent| extent % unit == 0);
    decline_if(!aligned && !flat, "a part does not end with a block")?;
    let join = |child: &dyn Fn(&Stored) -> Option<Array>| -> Result<Array> {
        let children = parts.iter().map(|part| {
            let child = child(part).ok_or_else(|| Error::decline("the scales are packed themselves"))?;
            Ok(child.reshape(&[outer as i32, (child.size() / outer) as i32])?)
        });
        Ok(ops::concatenate(&children.collect::<Result<Vec<_>>>()?, 1)?)
    };
    let supers: Option<Vec<Supers>> = parts.iter().map(Supers::new).collect();
    let scales = match supers {
        _ if stored.scales.is_none() => None,
        Some(supers) => Some(joined_supers(&supers, outer)?),
        None => Some(join(&|part| part.scales.as_ref()?.as_dense().cloned())?.into()),
    };
    stored.codes = join(&|part| Some(part.codes.clone()))?;
    stored.biases = stored.biases.is_some().then(|| join(&|part| part.biases.clone())).transpose()?;
    stored.scales = scales;
    shape[axis] = parts.iter().map(|part| part.shape()[axis]).sum();
    reshaped(first, stored, &shape)
}

/// The scales of the parts one after the other, for each of `outer` rows.
fn joined_supers(parts: &[Supers<'_>], outer: usize) -> Result<Value> {
    let along = |part: &Supers<'_>| {
        let supers = part.integers.stored().aval.shape[1] / outer as i32;
        reshaped(part.integers, part.integers.stored(), &[part.rows, outer as i32, supers, part.groups])
    };
    let parts_along = parts.iter().map(along).collect::<Result<Vec<_>>>()?;
    let arrays = parts_along.iter().map(packed).collect::<Result<Vec<_>>>()?;
    let (first, rest) = arrays.split_first().ok_or_else(|| Error::decline("there are no parts"))?;
    flat(&parts[0], &joined(*first, rest, 2)?)
}
