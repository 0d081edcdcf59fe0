//! A call of every handler that a packed type has.

use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp};
use mlx_rs::{Array, ops};
use tacit_core::extra_ops::{dynamic_slice, dynamic_slice_update};
use tacit_core::{Registry, Value};

use super::{COLUMNS, Case, Expected, Plain, ROWS, case, narrowed, rows, weight, x};
use crate::operands::{Format, Scales, normal};

/// The cases of one format; without those of the handlers that its scales do not allow.
pub(super) fn cases(format: &Format) -> Vec<Case> {
    let of = |array: &Array| (format.of)(array).expect("quantizes");
    let w = || of(&weight());
    let scalar = || Value::from(Array::from_f32(1.7));
    let calls: [(&str, Vec<Value>, Plain); 22] = [
        ("matmul", vec![x(&[2, COLUMNS]), w()], |a| Ok(a[0].matmul(a[1].t())?)),
        ("matmul_left", vec![x(&[COLUMNS, 2]), w()], |a| Ok(a[1].matmul(&a[0])?)),
        ("addmm", vec![x(&[2, COLUMNS]), w(), x(&[ROWS])], |a| Ok(ops::addmm(&a[2], &a[0], a[1].t(), 0.5, -2.0)?)),
        ("addmm_left", vec![x(&[COLUMNS, 2]), w(), x(&[ROWS, 2])], |a| Ok(ops::addmm(&a[2], &a[1], &a[0], 0.5, -2.0)?)),
        ("gather", vec![w(), rows(), x(&[1])], |a| Ok(a[0].take_axis(&a[1], 0)?.add(&a[2])?)),
        ("transpose", vec![w(), x(&[1])], |a| Ok(a[0].t().add(&a[1])?)),
        ("astype", vec![w(), x(&[ROWS, COLUMNS])], |a| Ok(narrowed(&a[0])?.multiply(&a[1])?)),
        ("reshape", vec![w(), x(&[1])], |a| Ok(a[0].reshape(&[2, 1, 2, COLUMNS])?.add(&a[1])?)),
        ("reshape", vec![w(), x(&[1])], |a| Ok(a[0].flatten(0, 1)?.add(&a[1])?)),
        ("reshape", vec![w(), x(&[1])], |a| Ok(ops::unflatten(&a[0], 0, &[2, 2])?.add(&a[1])?)),
        ("reshape", vec![w(), x(&[1])], |a| Ok(a[0].expand_dims(1)?.add(&a[1])?)),
        ("reshape", vec![w(), x(&[1])], |a| Ok(a[0].expand_dims(1)?.squeeze_axes(&[1])?.add(&a[1])?)),
        ("slice", vec![w(), x(&[1])], |a| Ok(a[0].try_index(1..3)?.add(&a[1])?)),
        ("concatenate", vec![w(), of(&normal(5, &[2, COLUMNS])), x(&[1])], |a| {
            Ok(ops::concatenate(&a[..2], 0)?.add(&a[2])?)
        }),
        ("dynamic_slice", vec![w(), x(&[1])], |a| Ok(dynamic_slice(&a[0], &place(), &[0], &[2, COLUMNS])?.add(&a[1])?)),
        ("dynamic_slice_update", vec![w(), x(&[1])], |a| {
            Ok(dynamic_slice_update(&a[0], &row(), &place(), &[0])?.add(&a[1])?)
        }),
        ("slice_update", vec![w(), x(&[1])], |a| {
            let mut written = a[0].clone();
            written.try_index_mut(1..2, row())?;
            Ok(written.add(&a[1])?)
        }),
        ("scatter_axis", vec![w(), x(&[1])], |a| {
            let places = ops::broadcast_to(place().reshape(&[1, 1])?, &[1, COLUMNS])?;
            Ok(a[0].put_along_axis(places, row(), 0)?.add(&a[1])?)
        }),
        ("multiply", vec![w(), scalar()], |a| Ok(a[0].multiply(&a[1])?)),
        ("divide", vec![w(), scalar()], |a| Ok(a[0].divide(&a[1])?)),
        ("negative", vec![w()], |a| Ok(a[0].negative()?)),
        ("add", vec![w(), x(&[ROWS, COLUMNS])], |a| Ok(a[0].add(&a[1])?)),
    ];
    let handled = |call: &str| match call {
        "slice" => format.scales != Scales::Nested,
        "dynamic_slice" | "dynamic_slice_update" | "slice_update" | "scatter_axis" => {
            ![Scales::Nested, Scales::Factor].contains(&format.scales)
        }
        "concatenate" => ![Scales::Nested, Scales::Factor].contains(&format.scales),
        "multiply" | "divide" | "negative" => format.scales != Scales::Fixed,
        _ => true,
    };
    let registry = Registry::current();
    let calls = calls.into_iter().filter(|(call, ..)| handled(call));
    calls
        .map(|(call, operands, f)| {
            let linear = [
                "matmul",
                "matmul_left",
                "addmm",
                "addmm_left",
                "gather",
                "transpose",
                "astype",
                "multiply",
                "divide",
                "negative",
            ];
            let name = format!("{}_{call}", if linear.contains(&call) { "linear" } else { "packed" });
            let handler = registry.handlers().iter().find(|handler| handler.site.name == name);
            let case = case(handler.unwrap_or_else(|| panic!("there is no {name}")).site.name, operands, f);
            let narrows = call == "astype";
            Case { expected: Expected::Differences(if narrows { 2e-3 } else { 1e-5 }), ..case }
        })
        .collect()
}

/// What is written: it has no gradient of its own here, as it is rounded to the format.
fn row() -> Array {
    normal(5, &[1, COLUMNS])
}

fn place() -> Array {
    Array::from_slice(&[1i32], &[1])
}
