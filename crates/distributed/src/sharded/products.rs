//! Products of matrices.

use mlx_rs::{Array, Dtype};
use tacit_arrays::{Repeated, scaled_sum};
use tacit_core::primitives::{AddMM, Matmul};
use tacit_core::{Error, Result, Value, handler, implicit};

use super::Sharded;

/// `a B`, by where either is split.
#[handler(precedence = 3)]
pub(crate) fn sharded_matmul(_op: &Matmul, a: &Sharded, b: &Value) -> Result<Value> {
    left_split(a, b)
}

/// As [`sharded_matmul`](fn@sharded_matmul), where only the second is split.
#[handler(precedence = 2)]
pub(crate) fn sharded_matmul_right(_op: &Matmul, a: &Value, b: &Sharded) -> Result<Value> {
    right_split(a, b)
}

/// `alpha a B + beta c`, as the product and then the sum.
#[handler(precedence = 3)]
pub(crate) fn sharded_addmm(op: &AddMM, a: &Sharded, b: &Value, c: &Value) -> Result<Value> {
    scaled_sum(op, c, factor_of_sum(op, &a.clone().into(), b, || left_split(a, b))?)
}

/// As [`sharded_addmm`](fn@sharded_addmm), where the second is split.
#[handler(precedence = 2)]
pub(crate) fn sharded_addmm_right(op: &AddMM, a: &Value, b: &Sharded, c: &Value) -> Result<Value> {
    scaled_sum(op, c, factor_of_sum(op, a, &b.clone().into(), || right_split(a, b))?)
}

/// As [`sharded_addmm`](fn@sharded_addmm), where only the sum is split: the product, and then the sum of parts.
#[handler(precedence = 1)]
pub(crate) fn sharded_addmm_sum(op: &AddMM, a: &Array, b: &Array, c: &Sharded) -> Result<Value> {
    let product = factor_of_sum(op, &a.into(), &b.into(), || Ok(a.matmul(b)?.into()))?;
    scaled_sum(op, &c.clone().into(), product)
}

/// The product that alpha multiplies; in `f32` where alpha may bring it back into the range of f16.
fn factor_of_sum(op: &AddMM, a: &Value, b: &Value, narrow: impl FnOnce() -> Result<Value>) -> Result<Value> {
    #[allow(clippy::float_cmp, reason = "exactly 1 is what an op without the parameter stores")]
    if op.alpha == 1.0 || a.aval()?.dtype != Dtype::Float16 {
        return narrow();
    }
    implicit((a, b), |(a, b)| a.as_dtype(Dtype::Float32)?.matmul(b))
}

fn product(a: impl Into<Value>, b: impl Into<Value>) -> Result<Value> {
    let (a, b) = (a.into(), b.into());
    implicit((unrepeated(&a, &b)?, unrepeated(&b, &a)?), |(a, b)| a.matmul(b))
}

/// The matrix of one for each entry of a batch, where the other side has these entries itself.
fn unrepeated(value: &Value, other: &Value) -> Result<Value> {
    let Some(repeated) = value.downcast::<Repeated>().filter(|_| other.downcast::<Repeated>().is_none()) else {
        return Ok(value.clone());
    };
    let (own, other) = (value.aval()?.shape, other.aval()?.shape);
    let of_one_batch = own.len() == other.len() && own[..own.len() - 2] == other[..own.len() - 2];
    Ok(if of_one_batch { repeated.inner() } else { value }.clone())
}

fn left_split(a: &Sharded, b: &Value) -> Result<Value> {
    match a.behind() {
        // Each rank has a part of what is summed over.
        1 => match a.gathered_beside(b)? {
            Some(whole) => product(whole, b.clone()),
            None => summed(a, a.entered_part()?, a.operand(b, b.aval()?.shape.len() - 2)?),
        },
        2 => a.with(product(a.entered_part()?, a.entered_or_split(b)?)?, a.axis),
        _ => a.with(product(a.entered_part()?, a.operand(b, a.axis)?)?, a.axis),
    }
}

fn right_split(a: &Value, b: &Sharded) -> Result<Value> {
    match b.behind() {
        1 => b.with(product(b.entered_or_split(a)?, b.entered_part()?)?, b.axis),
        2 => match b.gathered_beside(a)? {
            Some(whole) => product(a.clone(), whole),
            None => summed(b, b.operand(a, a.aval()?.shape.len() - 1)?, b.entered_part()?),
        },
        _ => b.with(product(b.operand(a, b.axis)?, b.entered_part()?)?, b.axis),
    }
}

/// The sum over the ranks of the products of parts.
fn summed(x: &Sharded, a: Value, b: Value) -> Result<Value> {
    implicit(product(a, b)?, |product| x.group.all_sum(&product))
}

impl Sharded {
    /// The whole of a matrix that is repeated for a batch, where the other side would be cut for its parts: a function without
    /// shapes has no extents to cut by.
    fn gathered_beside(&self, other: &Value) -> Result<Option<Array>> {
        if other.is_implicit() {
            return Ok(None);
        }
        self.matrix()?.map(|matrix| matrix.dense()).transpose()
    }

    /// The other side of a product that every rank needs as a whole: dense and replicated.
    fn entered_or_split(&self, value: &Value) -> Result<Array> {
        if value.is_implicit() {
            return Err(Error::decline(format!("{value} is not whole on every rank, or is stored")));
        }
        self.entered(value)
    }
}
