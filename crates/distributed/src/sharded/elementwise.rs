//! Ops element by element, and reductions.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::primitives::{And, Elementwise, Graph, Max, Min, Or, Prod, Reduction, Sum, TypedPrimitive};
use tacit_core::{Error, Param, Primitive, Result, Value, handler, implicit};

use super::Sharded;
use super::part::own_beside;

/// Element by element of each part.
#[handler(precedence = 3)]
pub(crate) fn sharded_elementwise(op: &Elementwise, x: &Sharded, rest: &[&Value]) -> Result<Vec<Value>> {
    on_parts(op, x, &[], rest)
}

/// As [`sharded_elementwise`](fn@sharded_elementwise), with the split operand second.
#[handler(precedence = 2)]
pub(crate) fn sharded_elementwise_second(
    op: &Elementwise,
    a: &Value,
    x: &Sharded,
    rest: &[&Value],
) -> Result<Vec<Value>> {
    on_parts(op, x, &[a], rest)
}

/// As [`sharded_elementwise`](fn@sharded_elementwise), with the split operand third.
#[handler(precedence = 1)]
pub(crate) fn sharded_elementwise_third(op: &Elementwise, a: &Value, b: &Value, x: &Sharded) -> Result<Vec<Value>> {
    on_parts(op, x, &[a, b], &[])
}

/// What MLX compiled of ops element by element, such as `nn::gelu`, on each part.
#[handler(precedence = 2)]
pub(crate) fn sharded_compiled(op: &Graph, x: &Sharded, rest: &[&Value]) -> Result<Vec<Value>> {
    compiled(op)?;
    on_parts(op, x, &[], rest)
}

/// As [`sharded_compiled`](fn@sharded_compiled), with the split operand second.
#[handler(precedence = 1)]
pub(crate) fn sharded_compiled_second(op: &Graph, a: &Value, x: &Sharded, rest: &[&Value]) -> Result<Vec<Value>> {
    compiled(op)?;
    on_parts(op, x, &[a], rest)
}

fn compiled(op: &Primitive) -> Result<()> {
    if op.name().starts_with("Compiled") {
        return Ok(());
    }
    Err(Error::decline("parts have no rule for it"))
}

/// What an op makes of the parts of `x` and of the operands that stand before and behind it.
fn on_parts(op: &Primitive, x: &Sharded, before: &[&Value], behind: &[&Value]) -> Result<Vec<Value>> {
    let part = |operand: &Value| {
        // Only what MLX compiled has operands of other shapes.
        match operand.aval()?.shape.len() {
            0 if !x.aval.shape.is_empty() => Ok(x.entered(operand)?.into()),
            rank if rank != x.aval.shape.len() => Err(Error::decline(format!("{operand} is broadcast within"))),
            _ => match (operand, x.part.as_dense()) {
                (Value::Dense(array), Some(part)) if array.shape() == x.aval.shape => {
                    Ok(own_beside(array, part, x.axis, &x.group)?.into())
                }
                _ => x.operand(operand, x.axis),
            },
        }
    };
    let value = Value::from(x.clone());
    let parts = [before, &[&value], behind].concat().into_iter().map(part).collect::<Result<Vec<_>>>()?;
    x.with_all(op.apply(&parts.iter().collect::<Vec<_>>())?, x.axis)
}

/// The reduction of each part; along the axis that is split, that of the ranks' results.
#[handler]
pub(crate) fn sharded_reduction(op: &Reduction, x: &Sharded) -> Result<Value> {
    let axes = op.params()?.into_iter().find_map(|param| match param {
        Param::Ints(axes) => Some(axes),
        _ => None,
    });
    let axes = axes.ok_or_else(|| Error::decline("the reduction does not say its axes"))?;
    let axes: Vec<i32> = axes.into_iter().map(|axis| axis as i32).collect();
    let reduce = |part: &Array| match op.name() {
        Sum::NAME => part.sum_axes(&axes, true),
        Prod::NAME => part.prod_axes(&axes, true),
        Max::NAME => part.max_axes(&axes, true),
        Min::NAME => part.min_axes(&axes, true),
        And::NAME => part.all_axes(&axes, true),
        _ => part.any_axes(&axes, true),
    };
    if !axes.contains(&(x.axis as i32)) {
        return x.mapped(x.axis, |part| Ok(reduce(&part)?));
    }
    implicit(x.entered_part()?, |part| match op.name() {
        Sum::NAME => x.group.all_sum(&reduce(&part)?),
        Or::NAME => x.group.all_max(&reduce(&part)?),
        And::NAME => x.group.all_min(&reduce(&part)?),
        Max::NAME | Min::NAME => {
            let extreme = reduce(&mlx_rs::stop_gradient(&part)?)?;
            let extreme = if op.name() == Max::NAME { x.group.all_max(&extreme) } else { x.group.all_min(&extreme) }?;
            shared_by_ties(x, &part, &extreme, &axes)
        }
        _ => Err(Error::decline("ranks share no products of their elements")),
    })
}

/// The extreme, with the gradient that MLX has for it: all elements that have it, on all ranks, share it.
fn shared_by_ties(x: &Sharded, part: &Array, extreme: &Array, axes: &[i32]) -> Result<Array> {
    if !part.dtype().is_inexact() {
        return Ok(extreme.clone());
    }
    let at = part.eq(extreme)?;
    let ties = x.group.all_sum(&at.as_dtype(Dtype::Float32)?.sum_axes(axes, true)?)?;
    // Zero, but for its gradient. The difference of an infinity and itself would be no number; what has an infinity added is
    // the same infinity.
    let zero = Array::from_int(0).as_dtype(part.dtype())?;
    let difference = part.subtract(mlx_rs::stop_gradient(part)?)?;
    let difference = if part.dtype().is_complex() {
        // Its other part may be finite, and would be added to itself: there is no gradient there.
        ops::select(difference.eq(&difference)?, &difference, &zero)?
    } else {
        ops::select(part.is_finite()?, difference, part)?
    };
    let difference = ops::select(at, difference, &zero)?;
    let difference = difference.sum_axes(axes, true)?.divide(x.group.enter(&ties)?.as_dtype(part.dtype())?)?;
    // A negative zero that has a zero added is a positive one, and stays what it is where a zero is subtracted.
    let less = zero.subtract(x.group.all_sum(&difference)?)?;
    Ok(extreme.subtract(less)?)
}
