//! Codes to floats: a whole matrix, or some of its rows.

use crate::{FloatsMut, KernelError, Matrix, matrix::product};
use half::{bf16, f16};

/// Writes every element of `matrix` into `out: [n, k]`.
///
/// # Errors
/// A matrix whose lengths do not match its sizes, or a wrong length of `out`.
pub fn dequantize<'a>(matrix: &Matrix, out: impl Into<FloatsMut<'a>>) -> Result<(), KernelError> {
    let elements = matrix.check()?;
    let out = out.into();
    out.check(elements, "one for each element of the matrix")?;
    write(out, |at| matrix.element(at));
    Ok(())
}

/// Writes the rows of `matrix` that `rows: u32[r]` names into `out: [r, k]`.
///
/// # Errors
/// A matrix whose lengths do not match its sizes, a row outside it, or a wrong length of `out`.
pub fn gather_rows<'a>(matrix: &Matrix, rows: &[u32], out: impl Into<FloatsMut<'a>>) -> Result<(), KernelError> {
    matrix.check()?;
    let k = matrix.k;
    let out = out.into();
    out.check(product(rows.len(), k)?, "one row of the matrix for each entry of `rows`")?;
    if let Some((index, &row)) = rows.iter().enumerate().find(|(_, row)| **row as usize >= matrix.n) {
        return Err(KernelError::RowRange { index, row, rows: matrix.n });
    }
    write(out, |at| matrix.element(rows[at / k] as usize * k + at % k));
    Ok(())
}

fn write(out: FloatsMut, value: impl Fn(usize) -> f32) {
    match out {
        FloatsMut::F32(out) => out.iter_mut().enumerate().for_each(|(at, out)| *out = value(at)),
        FloatsMut::F16(out) => out.iter_mut().enumerate().for_each(|(at, out)| *out = f16::from_f32(value(at))),
        FloatsMut::Bf16(out) => out.iter_mut().enumerate().for_each(|(at, out)| *out = bf16::from_f32(value(at))),
    }
}
