//! Every mlx-rs op on a subject.

use mlx_rs::{Array, Dtype, error::Exception, ops, transforms};
use tacit_core::Value;

use super::call::Call;
use super::report::Report;
use super::shape::Shapes;
use super::subject::Subject;
use crate::surface::{Op, surface as every_op};

/// Compares each op of the [surface](crate::surface) with each float operand in turn, and with all together, replaced
/// by the subject, to the op on what the subject materializes to.
///
/// Operands are repeated along their last two axes where the subject asks for whole groups and the op takes it so. An
/// operand for which the subject cannot stand is left dense. Where nothing but materialization happened the results
/// must be the same bits; where a handler took part gradients are compared too, if MLX has them for every float operand.
#[must_use]
pub fn surface(subject: &Subject) -> Report {
    let mut report = Report::new(format!("surface of {}", subject.name()));
    let unit = match Shapes::of(subject) {
        Ok(shapes) => shapes.unit(),
        Err(found) => {
            report.found("shapes", found);
            return report;
        }
    };
    for op in every_op() {
        match operands(op, unit) {
            Ok(operands) => {
                for call in calls(subject, op, &operands) {
                    report.compare(&call.name, || call.check(subject, false));
                }
            }
            Err(error) => report.found(op.name, error),
        }
    }
    report
}

/// The operands of an op, in whole groups if it takes them so.
fn operands(op: Op, unit: i32) -> Result<Vec<Array>, Exception> {
    let operands = (op.operands)()?;
    transforms::eval(&operands)?;
    if unit > 1 {
        let repeated = operands.iter().map(|array| repeated(array, unit)).collect::<Result<Vec<_>, _>>()?;
        let results = (op.run)(&repeated).and_then(|results| transforms::eval(&results));
        if results.is_ok() {
            return Ok(repeated);
        }
    }
    Ok(operands)
}

/// A float array repeated along its last two axes, a boolean one alike; indices and keys are left.
fn repeated(array: &Array, unit: i32) -> Result<Array, Exception> {
    let rank = array.ndim();
    if rank == 0 || !(array.dtype().is_float() || array.dtype() == Dtype::Bool) {
        return Ok(array.clone());
    }
    let times: Vec<i32> = (0..rank).map(|axis| if axis + 2 < rank { 1 } else { unit }).collect();
    let repeated = ops::tile(array, &times)?;
    repeated.eval().map(|()| repeated)
}

/// An op whose operands MLX differentiates one by one only: its vjp reads past the end of a list.
const NOT_TOGETHER: &str = "pad[value]";

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
    let mut calls: Vec<Call> = positions.iter().map(|&at| call(format!("operand {at}"), &|i| i == at)).collect();
    if positions.len() > 1 {
        calls.push(call("all operands".to_owned(), &|_| true));
    }
    calls
}
