//! Products with an implicit matrix on either side, reduced to one with it on the right.

use mlx_rs::Array;
use tacit_core::op::AddMM;
use tacit_core::{Error, Result};

/// An implicit matrix that can be multiplied from the left without being built.
pub(crate) trait RightOperand: Sized {
    /// `x M` for `x: [m, rows]`.
    fn product(&self, x: &Array) -> Result<Array>;

    /// The matrix with its axes swapped, without a copy; an error declines.
    fn turned(&self) -> Result<Self>;

    /// Rows and columns; an error declines.
    fn extents(&self) -> Result<(i32, i32)>;
}

/// `x M` for `x: [.., rows]`.
pub(crate) fn right(x: &Array, matrix: &impl RightOperand) -> Result<Array> {
    let (rows, columns) = matrix.extents()?;
    let mut shape = x.shape().to_vec();
    // MLX infers no extent of an empty array.
    let flat = x.reshape(&[shape.iter().rev().skip(1).product(), rows])?;
    if let Some(last) = shape.last_mut() {
        *last = columns;
    }
    Ok(matrix.product(&flat)?.reshape(&shape)?)
}

/// `M x` for `x: [.., columns, k]`, as the transpose of `x^T M^T`.
pub(crate) fn left(matrix: &impl RightOperand, x: &Array) -> Result<Array> {
    if x.ndim() < 2 {
        return Err(Error::decline("the right side is a vector"));
    }
    let turned = matrix.turned()?;
    Ok(right(&x.swap_axes(-1, -2)?, &turned)?.swap_axes(-1, -2)?)
}

/// `alpha * product + beta * c`, as AddMM has it.
pub(crate) fn scaled_sum(op: &AddMM, c: &Array, product: &Array) -> Result<Array> {
    let scaled = |array: &Array, factor: f32| -> Result<Array> {
        #[allow(clippy::float_cmp, reason = "exactly 1 is what an op without the parameter stores")]
        if factor == 1.0 {
            return Ok(array.clone());
        }
        Ok(array.multiply(Array::from_f32(factor).as_dtype(array.dtype())?)?)
    };
    Ok(scaled(product, op.alpha as f32)?.add(scaled(c, op.beta as f32)?)?)
}
