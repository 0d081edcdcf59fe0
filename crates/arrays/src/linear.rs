//! Matrices that are multiplied by their parts, with any value on the other side.

use mlx_rs::{Array, Dtype};
use tacit_core::op::AddMM;
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, broadcast_source, implicit};

use crate::matrix;

/// An implicit matrix whose products are made of products with its parts.
pub(crate) trait Linear: ImplicitArray {
    /// `x W` for `x: [.., rows]`.
    fn right(&self, x: &Value) -> Result<Value>;

    /// `W x` for `x: [.., columns, k]`.
    fn left(&self, x: &Value) -> Result<Value>;
}

/// `alpha * product + beta * c`, as `AddMM` has it.
pub(crate) fn scaled_sum(op: &AddMM, c: &Value, product: Value) -> Result<Value> {
    implicit(|[product, c]: [Array; 2]| matrix::scaled_sum(op, &c, &product))([product, c.clone()])
}

/// The scalar that `array` is a broadcast of; every other array declines.
pub(crate) fn scalar(array: &Array) -> Result<Array> {
    let source = broadcast_source(array)?;
    if source.size() != 1 {
        return Err(Error::decline(format!("{} is not a scalar", Aval::from(&source))));
    }
    Ok(source.reshape(&[])?)
}

/// Declines a conversion after which the rounding of the type before it would have to show.
pub(crate) fn narrowing(aval: &Aval, dtype: Dtype) -> Result<()> {
    let narrows = aval.dtype == Dtype::Float32 && matches!(dtype, Dtype::Float16 | Dtype::Bfloat16);
    if !narrows && dtype != aval.dtype {
        return Err(Error::decline("a wider type would show the rounding of the narrower one"));
    }
    Ok(())
}

/// The shape of whole rows that a `Gather` takes of `aval`; every other `Gather` declines.
pub(crate) fn gathered_rows(op: &tacit_core::op::Gather, aval: &Aval, rows: &Array) -> Result<Vec<i32>> {
    let whole = aval.shape.len() > 1 && op.axes == [0] && op.slice_sizes[1..] == aval.shape[1..];
    if !whole || op.slice_sizes[0] != 1 {
        return Err(Error::decline("only whole rows are gathered from the parts"));
    }
    Ok([rows.shape(), op.slice_sizes.as_slice()].concat())
}

/// A float array that has elements.
///
/// # Errors
///
/// It is of another type or empty; `what` names it.
pub(crate) fn check_float(what: &str, aval: &Aval) -> Result<()> {
    if !aval.dtype.is_float() {
        return Err(Error::invalid(format!("{what} is {aval}, which is not float"), "give an f32, f16 or bf16 array"));
    }
    if aval.shape.iter().any(|&extent| extent < 1) {
        return Err(Error::invalid(format!("{what} is {aval}, which has no elements"), "keep an empty array dense"));
    }
    Ok(())
}

/// The products that every [`Linear`] has, under the names given for its type.
///
/// Two such types in one product are a tie, which the precedences decide: the cheaper form takes it.
macro_rules! linear_handlers {
    ($ty:ident, precedence $right:tt $left:tt: $matmul:ident, $matmul_left:ident, $addmm:ident, $addmm_left:ident) => {
        /// `x W`, by the parts of `W`.
        #[handler(precedence = $right)]
        pub fn $matmul(_op: &Matmul, x: &Value, w: &$ty) -> Result<Value> {
            $crate::linear::Linear::right(w, x)
        }

        /// `W x`, by the parts of `W`.
        #[handler(precedence = $left)]
        pub fn $matmul_left(_op: &Matmul, w: &$ty, x: &Value) -> Result<Value> {
            $crate::linear::Linear::left(w, x)
        }

        /// `alpha x W + beta c`, by the parts of `W`.
        #[handler(precedence = $right)]
        pub fn $addmm(op: &AddMM, x: &Value, w: &$ty, c: &Value) -> Result<Value> {
            $crate::linear::scaled_sum(op, c, $crate::linear::Linear::right(w, x)?)
        }

        /// `alpha W x + beta c`, by the parts of `W`.
        #[handler(precedence = $left)]
        pub fn $addmm_left(op: &AddMM, w: &$ty, x: &Value, c: &Value) -> Result<Value> {
            $crate::linear::scaled_sum(op, c, $crate::linear::Linear::left(w, x)?)
        }
    };
}
pub(crate) use linear_handlers;
