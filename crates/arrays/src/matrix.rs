//! Products with an implicit matrix on either side, reduced to one with it on the right.

use mlx_rs::{Array, Dtype};
use tacit_core::op::{AddMM, Transpose};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value};

/// An implicit matrix that is multiplied without being built.
pub(crate) trait PackedMatrix: ImplicitArray + Clone {
    /// `x M` for `x: [m, rows]`.
    fn product(&self, x: &Array) -> Result<Array>;

    /// The matrix with its axes swapped, as a view; `aval` is the new one.
    fn turned(&self, aval: Aval) -> Self;

    /// The same codes read as a narrower float type; `aval` is the new one.
    fn narrowed(&self, aval: Aval) -> Self;
}

/// Rows and columns; an error declines.
pub(crate) fn extents(array: &impl PackedMatrix) -> Result<(i32, i32)> {
    let aval = array.aval()?;
    match *aval.shape.as_slice() {
        [rows, columns] => Ok((rows, columns)),
        _ => Err(Error::decline(format!("{aval} is not a matrix"))),
    }
}

fn turned<M: PackedMatrix>(matrix: &M) -> Result<M> {
    let (rows, columns) = extents(matrix)?;
    Ok(matrix.turned(Aval::new(&[columns, rows], matrix.aval()?.dtype)))
}

/// `x M` for `x: [.., rows]`.
pub(crate) fn right(x: &Array, matrix: &impl PackedMatrix) -> Result<Array> {
    let (rows, columns) = extents(matrix)?;
    let mut shape = x.shape().to_vec();
    // MLX infers no extent of an empty array.
    let flat = x.reshape(&[shape.iter().rev().skip(1).product(), rows])?;
    if let Some(last) = shape.last_mut() {
        *last = columns;
    }
    Ok(matrix.product(&flat)?.reshape(&shape)?)
}

/// `M x` for `x: [.., columns, k]`, as the transpose of `x^T M^T`.
pub(crate) fn left(matrix: &impl PackedMatrix, x: &Array) -> Result<Array> {
    if x.ndim() < 2 {
        return Err(Error::decline("the right side is a vector"));
    }
    Ok(right(&x.swap_axes(-1, -2)?, &turned(matrix)?)?.swap_axes(-1, -2)?)
}

/// `alpha * product + beta * c`, as `AddMM` has it.
pub(crate) fn scaled_sum(op: &AddMM, c: &Array, product: &Array) -> Result<Array> {
    let scaled = |array: &Array, factor: f32| -> Result<Array> {
        #[allow(clippy::float_cmp, reason = "exactly 1 is what an op without the parameter stores")]
        if factor == 1.0 {
            return Ok(array.clone());
        }
        Ok(array.multiply(Array::from_f32(factor).as_dtype(array.dtype())?)?)
    };
    Ok(scaled(product, op.alpha)?.add(scaled(c, op.beta)?)?)
}

/// A matrix the other way round, as a view; any array whose axes stay as they are.
pub(crate) fn transpose<M: PackedMatrix>(op: &Transpose, array: &M) -> Result<Value> {
    match op.axes.as_slice() {
        [1, 0] => Ok(turned(array)?.into()),
        axes if axes.is_sorted() => Ok(array.clone().into()),
        _ => Err(Error::decline("only matrices are transposed as a view")),
    }
}

/// A narrower float type, for which scales stay as they are.
pub(crate) fn astype<M: PackedMatrix>(dtype: Dtype, array: &M) -> Result<Value> {
    let aval = array.aval()?;
    let narrows = aval.dtype == Dtype::Float32 && matches!(dtype, Dtype::Float16 | Dtype::Bfloat16);
    if !narrows && dtype != aval.dtype {
        return Err(Error::decline("a wider type would show the rounding of the narrower one"));
    }
    Ok(array.narrowed(Aval::new(&aval.shape, dtype)).into())
}

/// The handlers that every [`PackedMatrix`] has, under the names given for its type.
macro_rules! packed_matrix_handlers {
    ($ty:ident: $matmul:ident, $matmul_left:ident, $addmm:ident, $addmm_left:ident, $transpose:ident, $astype:ident) => {
        /// `x W`, on the packed codes.
        #[handler]
        pub fn $matmul(_op: &Matmul, x: &Array, w: &$ty) -> Result<Array> {
            $crate::matrix::right(x, w)
        }

        /// `W x`, on the packed codes.
        #[handler]
        pub fn $matmul_left(_op: &Matmul, w: &$ty, x: &Array) -> Result<Array> {
            $crate::matrix::left(w, x)
        }

        /// `alpha x W + beta c`, on the packed codes.
        #[handler]
        pub fn $addmm(op: &AddMM, x: &Array, w: &$ty, c: &Array) -> Result<Array> {
            $crate::matrix::scaled_sum(op, c, &$crate::matrix::right(x, w)?)
        }

        /// `alpha W x + beta c`, on the packed codes.
        #[handler]
        pub fn $addmm_left(op: &AddMM, w: &$ty, x: &Array, c: &Array) -> Result<Array> {
            $crate::matrix::scaled_sum(op, c, &$crate::matrix::left(w, x)?)
        }

        /// A matrix the other way round, as a view.
        #[handler]
        pub fn $transpose(op: &Transpose, w: &$ty) -> Result<Value> {
            $crate::matrix::transpose(op, w)
        }

        /// A narrower float type: the codes and scales stay as they are.
        #[handler]
        pub fn $astype(op: &AsType, w: &$ty) -> Result<Value> {
            $crate::matrix::astype(op.dtype, w)
        }
    };
}
pub(crate) use packed_matrix_handlers;
