//! What every kernel asks of its operands and gives back.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::kernel::{Input, Output};
use tacit_core::{Param, Result};
use tacit_kernels::{Floats, FloatsMut};

pub(super) type Fallible<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub(super) fn single(results: Vec<Array>) -> Result<Array> {
    let [result] = several(results);
    Ok(result)
}

/// The results of a kernel that declares so many.
pub(super) fn several<const N: usize>(results: Vec<Array>) -> [Array; N] {
    results.try_into().unwrap_or_else(|_| unreachable!("a kernel has the results that it declares"))
}

pub(super) fn int(value: usize) -> Param {
    Param::Int(value as i64)
}

/// The rows of an array of this shape: all its extents but the last one, multiplied.
pub(super) fn rows_of(shape: &[i32]) -> usize {
    shape.iter().rev().skip(1).map(|&extent| extent as usize).product()
}

pub(super) fn floats<'a>(input: &'a Input<'_>) -> Fallible<Floats<'a>> {
    Ok(match input.aval().dtype {
        Dtype::Float16 => Floats::F16(input.elements()?),
        Dtype::Bfloat16 => Floats::Bf16(input.elements()?),
        _ => Floats::F32(input.elements()?),
    })
}

pub(super) fn floats_mut<'a>(output: &'a mut Output<'_>) -> Fallible<FloatsMut<'a>> {
    Ok(match output.aval().dtype {
        Dtype::Float16 => FloatsMut::F16(output.elements()?),
        Dtype::Bfloat16 => FloatsMut::Bf16(output.elements()?),
        _ => FloatsMut::F32(output.elements()?),
    })
}

/// Indices without those beyond `count`, which MLX does not look for.
pub(super) fn within(indices: &Array, count: i32) -> Result<Array> {
    Ok(ops::minimum(indices, number(count.max(1) - 1))?)
}

pub(super) fn number(count: i32) -> Array {
    Array::from_slice(&[count as u32], &[])
}
