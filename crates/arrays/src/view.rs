//! What the views share: an array behind them, and products that are plain code on it.

use mlx_rs::Array;
use tacit_core::op::AddMM;
use tacit_core::{ImplicitArray, Result, Value, implicit};

use crate::matrix::scaled_sum;

/// An implicit array whose products are those of what is behind it.
pub(crate) trait View: ImplicitArray {
    /// `x W` for this `W`.
    fn right(&self, x: &Array) -> Result<Value>;

    /// `W x` for this `W`.
    fn left(&self, x: &Array) -> Result<Value>;
}

/// `alpha * product + beta * c`, as `AddMM` has it.
pub(crate) fn sum(op: &AddMM, c: &Array, product: Value) -> Result<Value> {
    implicit(|[c, product]: [Array; 2]| scaled_sum(op, &c, &product))([c.into(), product])
}

/// An axis counted from zero; `None` where there is no such axis.
pub(crate) fn from_zero(axis: i32, rank: usize) -> Option<usize> {
    let counted = if axis < 0 { axis + rank as i32 } else { axis };
    usize::try_from(counted).ok().filter(|&axis| axis < rank)
}

/// The handlers that every [`View`] has, under the names given for its type.
macro_rules! view_handlers {
    ($ty:ident: $matmul:ident, $matmul_left:ident, $addmm:ident, $addmm_left:ident) => {
        /// `x W`, by the product of what is behind the view.
        #[handler]
        pub fn $matmul(_op: &Matmul, x: &Array, w: &$ty) -> Result<Value> {
            w.right(x)
        }

        /// `W x`, by the product of what is behind the view.
        #[handler]
        pub fn $matmul_left(_op: &Matmul, w: &$ty, x: &Array) -> Result<Value> {
            w.left(x)
        }

        /// `alpha x W + beta c`, by the product of what is behind the view.
        #[handler]
        pub fn $addmm(op: &AddMM, x: &Array, w: &$ty, c: &Array) -> Result<Value> {
            $crate::view::sum(op, c, w.right(x)?)
        }

        /// `alpha W x + beta c`, by the product of what is behind the view.
        #[handler]
        pub fn $addmm_left(op: &AddMM, w: &$ty, x: &Array, c: &Array) -> Result<Value> {
            $crate::view::sum(op, c, w.left(x)?)
        }
    };
}
pub(crate) use view_handlers;
