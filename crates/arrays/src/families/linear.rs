//! Matrices that are multiplied by what they are made of.

use mlx_rs::Array;
use tacit_core::primitives::{AddMM, Gather, Matmul};
use tacit_core::{Aval, Error, ImplicitArray, Result, Value, broadcast_source, handler, implicit};

/// The family of implicit matrices whose products are made of what the matrix is made of.
///
/// A member says what `x W` and `W x` are; what follows from these, such as `addmm`, is here once for all of them, and the
/// views, such as [`Transposed`](crate::Transposed), come with it.
pub trait Linear: ImplicitArray {
    /// `x W` for `x: [.., rows]`.
    ///
    /// # Errors
    ///
    /// It declines what is not worth it, and what it cannot take, such as an implicit `x`.
    fn right(&self, x: &Value) -> Result<Value>;

    /// `W x` for `x: [.., columns, k]`.
    ///
    /// # Errors
    ///
    /// As for [`right`](Self::right).
    fn left(&self, x: &Value) -> Result<Value>;

    /// How much a product with it saves, nothing unless it says so: of two such matrices the one that saves more takes the
    /// product.
    fn gain(&self) -> Gain {
        Gain::None
    }
}

/// How much a product saves, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gain {
    /// It reads less.
    None,
    /// It is a sum of products, of which some are thin.
    Sum,
    /// It is two thin products.
    Thin,
    /// It scales rows or columns.
    Scale,
    /// It sums rows or columns.
    Reduce,
    /// There is nothing to compute.
    Nothing,
}

/// `x W`, by what `W` is made of.
// Of two such sides the right one is asked first.
#[handler(precedence = 1)]
pub(crate) fn linear_matmul(_op: &Matmul, x: &Value, w: &dyn Linear) -> Result<Value> {
    w.right(x)
}

/// `W x`, by what `W` is made of.
#[handler]
pub(crate) fn linear_matmul_left(_op: &Matmul, w: &dyn Linear, x: &Value) -> Result<Value> {
    w.left(x)
}

/// `A B`, by what `A` is made of, where that saves more.
#[handler]
pub(crate) fn linear_matmul_both(_op: &Matmul, a: &dyn Linear, b: &dyn Linear) -> Result<Value> {
    more_on_the_left(a, b)
}

/// `alpha x W + beta c`, as the product and then the sum.
#[handler(precedence = 1)]
pub(crate) fn linear_addmm(op: &AddMM, x: &Value, w: &dyn Linear, c: &Value) -> Result<Value> {
    scaled_sum(op, c, w.right(x)?)
}

/// `alpha W x + beta c`, as the product and then the sum.
#[handler]
pub(crate) fn linear_addmm_left(op: &AddMM, w: &dyn Linear, x: &Value, c: &Value) -> Result<Value> {
    scaled_sum(op, c, w.left(x)?)
}

/// `alpha A B + beta c`, as the product and then the sum.
#[handler]
pub(crate) fn linear_addmm_both(op: &AddMM, a: &dyn Linear, b: &dyn Linear, c: &Value) -> Result<Value> {
    scaled_sum(op, c, more_on_the_left(a, b)?)
}

fn more_on_the_left(a: &dyn Linear, b: &dyn Linear) -> Result<Value> {
    if a.gain() <= b.gain() {
        return Err(Error::decline("the right side saves as much"));
    }
    a.left(&Value::Implicit(dyn_clone::clone_box(b)))
}

/// The other side of a product, which must be dense.
pub(crate) fn dense_side(x: &Value) -> Result<&Array> {
    x.as_dense().ok_or_else(|| Error::decline(format!("the other side is {x}, which is not dense")))
}

/// `alpha * product + beta * c`, as `AddMM` has it, for a handler of it that makes the product in a way of its own.
///
/// # Errors
///
/// A handler fails, or the policy forbids a materialization.
pub fn scaled_sum(op: &AddMM, c: &Value, product: Value) -> Result<Value> {
    implicit((product, c), |(product, c)| -> Result<Array> {
        let scaled = |array: &Array, factor: f32| -> Result<Array> {
            #[allow(clippy::float_cmp, reason = "exactly 1 is what an op without the parameter stores")]
            if factor == 1.0 {
                return Ok(array.clone());
            }
            Ok(array.multiply(Array::from_f32(factor).as_dtype(array.dtype())?)?)
        };
        let product = scaled(&product, op.alpha)?;
        #[allow(clippy::float_cmp, reason = "exactly 0 is where MLX does not read c")]
        if op.beta == 0.0 {
            return Ok(product);
        }
        Ok(product.add(scaled(&c, op.beta)?)?)
    })
}

/// The scalar that `array` is a broadcast of; every other array declines.
pub(crate) fn scalar(array: &Array) -> Result<Array> {
    let source = broadcast_source(array)?;
    if source.size() != 1 {
        return Err(Error::decline(format!("{} is not a scalar", Aval::from(&source))));
    }
    Ok(source.reshape(&[])?)
}

/// The shape of whole rows that a `Gather` takes of `aval`; every other `Gather` declines.
pub(crate) fn gathered_rows(op: &Gather, aval: &Aval, rows: &Array) -> Result<Vec<i32>> {
    let whole = aval.shape.len() > 1 && op.axes == [0] && op.slice_sizes[1..] == aval.shape[1..];
    if !whole || op.slice_sizes[0] != 1 {
        return Err(Error::decline("only whole rows are gathered from the parts"));
    }
    Ok([rows.shape(), op.slice_sizes.as_slice()].concat())
}
