//! Checks of constructors' arguments and of handlers' operands.

use mlx_rs::{Array, Dtype};
use tacit_core::{Aval, Error, ImplicitArray, Materialize, Result, short_name};

use crate::avals::axes::swapped;

pub(crate) fn decline_if(holds: bool, reason: &str) -> Result<()> {
    if holds { Err(Error::decline(reason)) } else { Ok(()) }
}

/// An array whose parts go together.
pub(crate) fn checked<A: Materialize>(array: A) -> Result<A> {
    array.check()?;
    Ok(array)
}

/// Refuses a random key that is not `u32[2]`; the message names it by `label`.
pub(crate) fn check_key(label: &str, key: &Array) -> Result<()> {
    let aval = Aval::from(key);
    if aval == Aval::new(&[2], Dtype::Uint32) {
        return Ok(());
    }
    Err(Error::invalid(format!("the {label} is {aval}, and a key is u32[2]"), "make one with `mlx_rs::random::key`"))
}

/// Float elements, at least one, and not more than MLX counts along one axis.
pub(crate) fn check_elements(label: &str, aval: &Aval) -> Result<()> {
    if !aval.dtype.is_float() || aval.dtype == Dtype::Float64 {
        return Err(Error::invalid(format!("{aval} cannot be {label}"), "quantize an f32, f16 or bf16 array"));
    }
    if aval.shape.iter().any(|&extent| extent < 1) {
        return Err(Error::invalid(format!("{aval} has no elements to quantize"), "keep an empty array dense"));
    }
    let elements = aval.shape.iter().try_fold(1i32, |product, &extent| product.checked_mul(extent));
    if elements.is_none() {
        return Err(Error::invalid(
            format!("{aval} has more elements than MLX counts along one axis"),
            "split the array and quantize the parts",
        ));
    }
    Ok(())
}

/// One of bitsandbytes' block sizes.
pub(crate) fn check_block_size(label: &str, block_size: usize) -> Result<()> {
    if block_size.is_power_of_two() && (32..=4096).contains(&block_size) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("the {label} block size {block_size} is not a power of two from 32 to 4096"),
        "use 64, the usual choice",
    ))
}

pub(crate) fn check_block(label: &str, block_size: usize) -> Result<()> {
    if (1..=i32::MAX as usize).contains(&block_size) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("the {label} block size {block_size} is not a number of elements"),
        "give the number of elements that share a scale",
    ))
}

pub(crate) fn check_groups(label: &str, aval: &Aval, group_size: usize) -> Result<()> {
    if aval.shape.last().is_some_and(|&last| (last as usize).is_multiple_of(group_size)) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("the last axis of {aval} is not whole groups of {group_size}, as {label} has them"),
        "use a smaller group size, or an array type whose blocks may straddle rows",
    ))
}

/// Children with the avals that they should have: name, expected, found.
pub(crate) fn check_children(label: &str, aval: &Aval, children: &[(&str, Aval, Aval)]) -> Result<()> {
    match children.iter().find(|(_, expected, found)| expected != found) {
        None => Ok(()),
        Some((name, expected, found)) => Err(Error::invalid(
            format!("{name} is {found}, where {label} of {aval} has {expected}"),
            "take the parts of one array, with its shape and block size",
        )),
    }
}

/// Checks that `array` is what its constructor made of its children: `result`.
pub(crate) fn check_made(array: &dyn ImplicitArray, result: &dyn ImplicitArray) -> Result<()> {
    let children = |array: &dyn ImplicitArray| {
        array.children().into_iter().map(|(name, child)| Ok((name, child.aval()?))).collect::<Result<Vec<_>>>()
    };
    if array.aux_eq(result) && children(array)? == children(result)? {
        return Ok(());
    }
    Err(Error::invalid(
        format!("{} has {}, and its children make {}", short_name(array), fields(array), fields(result)),
        "build it by its constructor",
    ))
}

fn fields(array: &dyn ImplicitArray) -> String {
    let fields: Vec<String> = array.aux().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    fields.join(" ")
}

/// The shape in which the codes of an array lie, whose last two axes may be the other way round.
pub(crate) fn stored_shape(aval: &Aval, transposed: bool) -> Result<Vec<i32>> {
    if transposed && aval.shape.len() < 2 {
        return Err(no_matrix(aval));
    }
    Ok(if transposed { swapped(&aval.shape) } else { aval.shape.clone() })
}

/// A matrix, where the array is transposed.
pub(crate) fn check_transposed(aval: &Aval, transposed: bool) -> Result<()> {
    if transposed && aval.shape.len() != 2 { Err(no_matrix(aval)) } else { Ok(()) }
}

fn no_matrix(aval: &Aval) -> Error {
    Error::invalid(format!("{aval} is transposed, and is not a matrix"), "transpose matrices alone")
}

/// Checks that what `what` names is a float array that has elements.
pub(crate) fn check_float(what: &str, aval: &Aval) -> Result<()> {
    if !aval.dtype.is_float() {
        return Err(Error::invalid(format!("{what} is {aval}, which is not float"), "give an f32, f16 or bf16 array"));
    }
    if aval.shape.iter().any(|&extent| extent < 1) {
        return Err(Error::invalid(format!("{what} is {aval}, which has no elements"), "keep an empty array dense"));
    }
    Ok(())
}
