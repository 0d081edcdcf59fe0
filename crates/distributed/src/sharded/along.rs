//! Ops along one axis: scans, sorts and softmax.

use mlx_rs::{Array, ops};
use tacit_arrays::in_accumulator_dtype;
use tacit_bridge::mlx::Feature;
use tacit_core::primitives::{ArgReduce, LogSumExp, Rowwise, Scan, Softmax};
use tacit_core::{Aval, Error, Param, Primitive, Result, Value, handler, implicit};

use super::Sharded;

/// The scan along another axis.
#[handler]
pub(crate) fn sharded_scan(op: &Scan, x: &Sharded) -> Result<Vec<Value>> {
    along_another(op, x)
}

/// The sorted or partitioned part, along another axis.
#[handler]
pub(crate) fn sharded_rowwise(op: &Rowwise, x: &Sharded) -> Result<Vec<Value>> {
    along_another(op, x)
}

fn along_another(op: &Primitive, x: &Sharded) -> Result<Vec<Value>> {
    // The axis stands behind the place that a partition is at.
    let mut axes = op.params()?.into_iter().rev().filter_map(|param| match param {
        Param::Int(axis) => Some(axis),
        _ => None,
    });
    let axis = axes.next().ok_or_else(|| Error::decline("it does not say its axis"))?;
    if axis == x.axis as i64 {
        return Err(Error::decline("it runs along the axis that is split"));
    }
    x.with_all(op.apply(&[&x.entered_part()?])?, x.axis)
}

/// The softmax of each row; of rows that are split, by their maxima and sums over the ranks.
#[handler]
pub(crate) fn sharded_softmax(op: &Softmax, x: &Sharded) -> Result<Value> {
    if x.behind() > 1 {
        return x.mapped(x.axis, |part| Ok(ops::softmax_axis(part, -1, op.precise)?));
    }
    // The distance of an infinity from itself is no number, and so is the row's softmax, as that of one rank is.
    x.mapped(x.axis, |part| {
        in_accumulator_dtype(&part, |part| {
            let (powers, sum) = exponentials(x, part, &largest(x, part)?)?;
            Ok(powers.divide(x.group.enter(&sum)?)?)
        })
    })
}

/// The logarithm of each row's sum of exponentials; of rows that are split, by their maxima and sums over the ranks.
#[handler]
pub(crate) fn sharded_log_sum_exp(_op: &LogSumExp, x: &Sharded, results: &[Aval]) -> Result<Value> {
    if x.behind() > 1 {
        let keep = results[0].shape.len() == x.aval.shape.len();
        return x.mapped(x.axis, |part| Ok(part.logsumexp_axis(-1, keep)?));
    }
    let shape = &results[0].shape;
    implicit(x.entered_part()?, |part| {
        in_accumulator_dtype(&part, |part| {
            let most = largest(x, part)?;
            // A row of nothing but -inf, or with an infinity, is measured from 0: the sum is then 0, or infinite.
            let from = ops::select(most.is_inf()?, Array::from_int(0).as_dtype(most.dtype())?, &most)?;
            let (_, sum) = exponentials(x, part, &from)?;
            Ok(sum.log()?.add(from)?.reshape(shape)?)
        })
    })
}

/// The largest of each row, of which no gradient is taken. That of a row with NaN may be any: its exponentials have NaN.
fn largest(x: &Sharded, part: &Array) -> Result<Array> {
    x.group.all_max_of_numbers(&mlx_rs::stop_gradient(part)?.max_axis(-1, true)?)
}

/// The exponentials of the own elements above `from`, and their sum over the ranks.
fn exponentials(x: &Sharded, part: &Array, from: &Array) -> Result<(Array, Array)> {
    let powers = part.subtract(from)?.exp()?;
    let sum = x.group.all_sum(&powers.sum_axis(-1, true)?)?;
    Ok((powers, sum))
}

/// Where the extreme is; along the axis that is split, the extreme of the ranks' extremes.
#[handler]
pub(crate) fn sharded_arg_reduce(op: &ArgReduce, x: &Sharded, results: &[Aval]) -> Result<Value> {
    let axis = op.axis;
    let least = op.reduce_type == "argmin";
    let arg_reduce = |array: &Array| -> Result<Array> {
        Ok(if least {
            ops::indexing::argmin_axis(array, axis, true)?
        } else {
            ops::indexing::argmax_axis(array, axis, true)?
        })
    };
    if axis as usize != x.axis {
        let mut shape = results[0].shape.clone();
        let at = if shape.len() == x.aval.shape.len() || x.axis < axis as usize { x.axis } else { x.axis - 1 };
        shape[at] /= x.group.size() as i32;
        return x.mapped(at, |part| Ok(arg_reduce(&part)?.reshape(&shape)?));
    }
    let shape = &results[0].shape;
    implicit(x.entered_part()?, |part| {
        // A place has no gradient, and an index that had one could not be taken.
        let mut part = mlx_rs::stop_gradient(&part)?;
        if x.group.rank() > 0 && part.dtype().is_float() && !Feature::PlaceOfNan.is_there() {
            // This MLX passes over NaN but where a row begins with it, and rows do not begin here.
            let worst = if least { f32::INFINITY } else { f32::NEG_INFINITY };
            part = ops::select(part.is_nan()?, Array::from_f32(worst).as_dtype(part.dtype())?, &part)?;
        }
        let indices = arg_reduce(&part)?;
        let extremes = x.group.all_gather(&part.take_along_axis(&indices, axis)?, axis)?;
        let offset = Array::from_int(x.group.rank() as i32 * part.dim(axis)).as_dtype(indices.dtype())?;
        let places = x.group.all_gather(&indices.add(offset)?, axis)?;
        Ok::<_, Error>(places.take_along_axis(arg_reduce(&extremes)?, axis)?.reshape(shape)?)
    })
}
