//! A slice as a view of its own.

use std::slice::from_ref;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::{Nf4Array, Sliced};
use tacit_core::{Policy, Value, implicit};

use crate::messages::said_of;
use crate::operands::{both, check_built, normal, oracle};

const F32: Dtype = Dtype::Float32;

/// Rows 3 to 37 of 40.
fn rows(w: Value) -> Value {
    Sliced::new(w, &[3, 0], &[37, 96]).expect("fits").into()
}

/// Rows 3 to 37 of 40, columns 32 to 64 of 96.
fn inside(w: Value) -> Value {
    Sliced::new(w, &[3, 32], &[37, 64]).expect("fits").into()
}

#[test]
fn products_are_cut() {
    let x = |rows, columns| Value::from(normal(2, &[rows, columns]));
    for w in both(F32, 1, &[40, 96]).map(rows) {
        oracle(F32).check("x W^T", &[x(3, 96), w.clone()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
        oracle(F32).check("W x", &[x(96, 3), w.clone()], |a| Ok(vec![a[1].matmul(&a[0])?]));
        oracle(F32).check("batched", &[normal(2, &[2, 3, 96]).into(), w.clone()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
        oracle(F32).check("addmm", &[x(3, 96), w.clone(), normal(3, &[34]).into()], |a| {
            Ok(vec![ops::addmm(&a[2], &a[0], a[1].t(), 0.5, -2.0)?])
        });
        oracle(F32)
            .check("addmm, left", &[x(96, 3), w, x(34, 3)], |a| Ok(vec![ops::addmm(&a[2], &a[1], &a[0], 0.5, -2.0)?]));
    }
}

#[test]
fn what_is_cheaper_to_build_is_built() {
    let x = Value::from(normal(2, &[3, 34]));
    for w in both(F32, 1, &[40, 96]) {
        // The axis that is summed over is cut.
        let operands = [x.clone(), rows(w.clone())];
        check_built("x W", &operands, |a| Ok(vec![a[0].matmul(&a[1])?]));
        // Less than half is left.
        let narrow = Sliced::new(w, &[0, 0], &[19, 96]).expect("fits");
        let operands = [normal(2, &[3, 96]).into(), narrow.into()];
        check_built("x W^T", &operands, |a| Ok(vec![a[0].matmul(a[1].t())?]));
    }
}

#[test]
fn a_slice_of_a_slice_is_one() {
    for w in both(F32, 1, &[40, 96]) {
        let part = inside(w.clone());
        oracle(F32).check("slice", from_ref(&part), |a| Ok(vec![a[0].try_index((1..5, 2..))?]));
        oracle(F32).allowing().check("steps", from_ref(&part), |a| {
            use mlx_rs::ops::indexing::IntoStrideBy;
            Ok(vec![a[0].try_index((1..5).stride_by(2))?])
        });
        let _deny = Policy::Deny.scope();
        let cut = implicit(part, |w| w.try_index((1..5, 2..))).expect("is handled");
        assert_eq!(cut.downcast::<Sliced>().expect("a view").inner().to_string(), w.to_string());
    }
}

#[test]
fn transposes_casts_and_rows() {
    let wanted = || Value::from(Array::from_slice(&[3i32, 33, 0, -1, -34, 1], &[3, 2]));
    for part in both(F32, 1, &[40, 96]).map(inside) {
        oracle(F32).check("W^T", from_ref(&part), |a| Ok(vec![a[0].t()]));
        oracle(F32).check("astype", from_ref(&part), |a| Ok(vec![a[0].as_dtype(Dtype::Bfloat16)?]));
        oracle(F32).check("rows", &[part.clone(), wanted()], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
        oracle(F32).allowing().check("columns", &[part, wanted()], |a| {
            Ok(vec![a[0].take_axis(ops::minimum(a[1].abs()?, Array::from_int(31))?, 1)?])
        });
    }
}

#[test]
fn what_is_no_slice() {
    let w = || Nf4Array::quantize(&normal(1, &[4, 32]), 32).expect("quantizes");
    let said = [
        said_of(Sliced::new(w(), &[0], &[2])),
        said_of(Sliced::new(w(), &[0, 0], &[5, 32])),
        said_of(Sliced::new(w(), &[2, 0], &[2, 32])),
        said_of(Sliced::new(w(), &[-2, 0], &[4, 32])),
    ];
    expect![[r#"
        f32[4,32] has no slice from [0] to [2]
        help: give a range that is not empty, counted from zero, for each axis
        f32[4,32] has no slice from [0, 0] to [5, 32]
        help: give a range that is not empty, counted from zero, for each axis
        f32[4,32] has no slice from [2, 0] to [2, 32]
        help: give a range that is not empty, counted from zero, for each axis
        f32[4,32] has no slice from [-2, 0] to [4, 32]
        help: give a range that is not empty, counted from zero, for each axis
    "#]]
    .assert_eq(&said.concat());
}
