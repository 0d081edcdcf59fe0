//! Every mlx-rs op on a subject.

use mlx_rs::{Array, Dtype, error::Exception, ops, transforms};
use tacit_core::Value;

use crate::call::{Call, Depth};
use crate::ops::{Op, all as every_op};
use crate::report::Report;
use crate::subject::Subject;

/// Compares each op of the [surface](crate::ops) with each float operand in turn, and with all together, replaced
/// by the subject, to the op on what the subject materializes to.
///
/// Operands are repeated along their last two axes where the subject asks for whole groups and the op takes it so. An
/// operand for which the subject cannot stand is left dense. Where nothing but materialization happened the results
/// must be the same bits; where a handler took part gradients are compared too, if MLX has them for every float operand.
#[must_use]
pub fn surface(subject: &Subject) -> Report {
    let mut report = Report::new(format!("surface of {}", subject.name()));
    let Some(multiples) = report.shapes(subject).map(|shapes| shapes.multiples()) else { return report };
    for op in every_op() {
        match operands(op, multiples) {
            Ok(operands) => {
                for call in calls(subject, op, &operands) {
                    report.compare(&call.name, || call.check(subject, Depth::EAGER));
                }
            }
            Err(error) => report.found(op.name, error),
        }
    }
    report
}

/// The operands of an op, in whole groups if it takes them so; no longer than that needs.
fn operands(op: Op, (rows, columns): (i32, i32)) -> Result<Vec<Array>, Exception> {
    let operands = (op.operands)()?;
    transforms::eval(&operands)?;
    let both = rows.max(columns);
    let mut attempts = vec![(rows, columns), (both, both)];
    attempts.dedup();
    for multiples in attempts.into_iter().filter(|&multiples| multiples != (1, 1)) {
        let repeated = operands.iter().map(|array| repeated(array, multiples)).collect::<Result<Vec<_>, _>>()?;
        let results = (op.run)(&repeated).and_then(|results| transforms::eval(&results));
        if results.is_ok() {
            return Ok(repeated);
        }
    }
    Ok(operands)
}

/// A float array repeated along its last two axes, a boolean one alike; indices and keys are left.
fn repeated(array: &Array, (rows, columns): (i32, i32)) -> Result<Array, Exception> {
    let rank = array.ndim();
    if rank == 0 || !(array.dtype().is_float() || array.dtype() == Dtype::Bool) {
        return Ok(array.clone());
    }
    let mut times = vec![1; rank];
    times[rank - 1] = columns;
    if rank > 1 {
        times[rank - 2] = rows;
    }
    let repeated = ops::tile(array, &times)?;
    repeated.eval().map(|()| repeated)
}

/// An op whose operands MLX differentiates one by one only: its vjp reads past the end of a list.
const NOT_TOGETHER: &str = "pad[value]";

/// An op that writes whole rows: a packed array rounds what is written into it to its format, and is compared with what
/// is packed alike.
const WRITTEN: &str = "try_index_update[replace]";

fn calls(subject: &Subject, op: Op, operands: &[Array]) -> Vec<Call> {
    let has_gradient = |(i, array): (usize, &Array)| !array.dtype().is_inexact() || op.differentiable.contains(&i);
    let differentiable =
        operands.iter().enumerate().all(has_gradient) && op.name != NOT_TOGETHER && !subject.shared_children;
    let replaced: Vec<Option<Value>> =
        operands.iter().map(|array| if array.dtype().is_float() { subject.stand_in(array) } else { None }).collect();
    let call = |which: String, chosen: &dyn Fn(usize) -> bool| {
        let values = operands.iter().zip(&replaced).enumerate().map(|(i, (array, replaced))| match replaced {
            Some(value) if chosen(i) => value.clone(),
            _ => array.into(),
        });
        let call = Call::several(format!("{} with {which}", op.name), values.collect(), op.run);
        Call { differentiable, ..call }
    };
    let positions: Vec<usize> = (0..operands.len()).filter(|&i| replaced[i].is_some()).collect();
    let alone = positions.iter().filter(|&&at| op.name != WRITTEN || at > 0);
    let mut calls: Vec<Call> = alone.map(|&at| call(format!("operand {at}"), &|i| i == at)).collect();
    if positions.len() > 1 {
        calls.push(call("all operands".to_owned(), &|_| true));
    }
    calls
}
