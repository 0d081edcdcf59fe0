//! A transpose as a view of its own.

use std::slice::from_ref;

use expect_test::expect;
use mlx_rs::{Dtype, ops};
use tacit_arrays::{Nf4Array, Transposed};
use tacit_conformance::opaque::Opaque;
use tacit_core::{Policy, Value, implicit};

use crate::messages::said_of;
use crate::operands::{both, check_built, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

fn transposed(w: impl Into<Value>) -> Value {
    Transposed::new(w, &[1, 0]).expect("a matrix").into()
}

#[test]
fn products_are_those_of_the_array_behind_it() {
    for w in both(F32, 1, &[40, 96]).map(transposed) {
        let x = |rows, columns| Value::from(normal(2, &[rows, columns]));
        let c = |columns| Value::from(normal(3, &[3, columns]));
        oracle(F32).check("x W", &[x(3, 96), w.clone()], |a| Ok(vec![a[0].matmul(&a[1])?]));
        oracle(F32).check("W x", &[x(40, 3), w.clone()], |a| Ok(vec![a[1].matmul(&a[0])?]));
        oracle(F32).check("x W^T", &[x(3, 40), w.clone()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
        oracle(F32)
            .check("addmm", &[x(3, 96), w.clone(), c(40)], |a| Ok(vec![ops::addmm(&a[2], &a[0], &a[1], 0.5, -2.0)?]));
        oracle(F32).check("addmm, left", &[x(3, 96), w, c(1)], |a| {
            Ok(vec![ops::addmm(a[2].t(), a[1].t(), a[0].t(), 0.5, -2.0)?])
        });
    }
}

#[test]
fn a_batch_on_the_left() {
    for w in both(F32, 1, &[40, 96]).map(transposed) {
        let x = Value::from(normal(2, &[2, 3, 96]));
        oracle(F32).check("x W", &[x, w], |a| Ok(vec![a[0].matmul(&a[1])?]));
    }
}

#[test]
fn two_transposes_are_one_or_none() {
    let w = Value::from(Opaque::new(normal(1, &[2, 3, 4])));
    let view = Value::from(Transposed::new(w, &[2, 0, 1]).expect("a permutation"));
    let again = |axes: [i32; 3]| {
        let _deny = Policy::Deny.scope();
        implicit(&view, move |w| w.transpose_axes(&axes)).expect("is handled")
    };
    assert_eq!(again([1, 2, 0]).to_string(), "Opaque(f32[2,3,4])");
    let transposed = again([0, 2, 1]);
    assert_eq!(transposed.downcast::<Transposed>().expect("a view").axes(), [2, 1, 0]);
    oracle(F32).check("transpose", from_ref(&view), |a| Ok(vec![a[0].transpose_axes(&[0, 2, 1])?]));
}

#[test]
fn a_cast_is_that_of_the_array_behind_it() {
    for w in both(F32, 1, &[40, 96]).map(transposed) {
        oracle(F32).check("astype", &[w], |a| Ok(vec![a[0].as_dtype(Dtype::Bfloat16)?]));
    }
    for w in both(Dtype::Bfloat16, 1, &[40, 96]).map(transposed) {
        let x = Value::from(normal_of(Dtype::Bfloat16, 2, &[3, 96]));
        oracle(Dtype::Bfloat16).check("x W", &[x, w], |a| Ok(vec![a[0].matmul(&a[1])?]));
    }
}

#[test]
fn other_permutations_are_built_for_a_product() {
    let w = Transposed::new(nf4(&normal(1, &[3, 2, 32]), 64), &[1, 2, 0]).expect("a permutation");
    let operands = [normal(2, &[2, 5, 32]).into(), w.into()];
    check_built("x W", &operands, |a| Ok(vec![a[0].matmul(&a[1])?]));
}

#[test]
fn negative_axes_count_from_the_end() {
    let view = Transposed::new(nf4(&normal(1, &[2, 3, 32]), 64), &[-1, 0, -2]).expect("a permutation");
    assert_eq!((view.axes(), view.inner().to_string().as_str()), (&[2, 0, 1][..], "Nf4(f32[2,3,32])"));
    assert_eq!(Value::from(view).to_string(), "Transposed(f32[32,2,3])");
}

#[test]
fn what_is_no_permutation() {
    let w = || Nf4Array::quantize(&normal(1, &[4, 32]), 32).expect("quantizes");
    let said = [
        said_of(Transposed::new(w(), &[0, 0])),
        said_of(Transposed::new(w(), &[1, 0, 2])),
        said_of(Transposed::new(w(), &[-3, 0])),
    ];
    expect![[r#"
        the axes [0, 0] are no permutation of those of f32[4,32]
        help: name each of the 2 axes once
        the axes [1, 0, 2] are no permutation of those of f32[4,32]
        help: name each of the 2 axes once
        the axes [-3, 0] are no permutation of those of f32[4,32]
        help: name each of the 2 axes once
    "#]]
    .assert_eq(&said.concat());
}
