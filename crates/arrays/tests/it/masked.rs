//! Masked arrays.

use expect_test::expect;
use mlx_rs::ops::indexing::IndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::Masked;
use tacit_core::transform::grad;
use tacit_core::{Policy, Result, Value, implicit};

use crate::messages::said_of;
use crate::operands::{check_built, nf4, normal, oracle};
use crate::structured::{masked, masked_of};

const F32: Dtype = Dtype::Float32;

type Plain = fn(&Array) -> Result<Array>;

#[test]
fn views_and_rows_stay_masked() {
    let _deny = Policy::Deny.scope();
    let plain: [(&str, Plain); 8] = [
        ("t", |a| Ok(a.t())),
        ("reshape", |a| Ok(a.reshape(&[2, 3, 4])?)),
        ("expand", |a| Ok(a.expand_dims(1)?)),
        ("expand and squeeze", |a| Ok(a.expand_dims(1)?.squeeze_axes(&[1])?)),
        ("flatten and unflatten", |a| Ok(ops::unflatten(a.flatten(None, None)?, 0, &[12, 2])?)),
        ("slice", |a| Ok(a.index((1..3, 2..)))),
        ("rows", |a| Ok(a.take_axis(Array::from_slice(&[-1i32, 0], &[2]), 0)?)),
        ("one row", |a| Ok(a.take_axis(Array::from_slice(&[2i32], &[]), 0)?)),
    ];
    for (name, f) in plain {
        let y = implicit(masked(), move |a| f(&a)).expect(name);
        assert!(y.downcast::<Masked>().is_some(), "{name} of a masked array is {y}");
        oracle(F32).check(name, &[masked()], move |a| Ok(vec![f(&a[0])?]));
    }
}

#[test]
fn strides() {
    use mlx_rs::ops::indexing::IntoStrideBy;
    oracle(F32).check("every second", &[masked()], |a| Ok(vec![a[0].index((.., (1..6).stride_by(2)))]));
    let backwards = |a: Vec<Array>| Ok(vec![a[0].index((.., (..).stride_by(-1)))]);
    check_built("backwards", &[masked()], backwards);
}

#[test]
fn types_and_scalars() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        oracle(F32).check("astype", &[masked()], move |a| Ok(vec![a[0].as_dtype(dtype)?]));
    }
    // A masked array is one of floats.
    let integers = |a: Vec<Array>| Ok(vec![a[0].as_dtype(Dtype::Int32)?]);
    check_built("integers", &[masked()], integers);
    oracle(F32).check("s W", &[masked(), normal(1, &[]).into()], |a| Ok(vec![a[1].multiply(&a[0])?]));
    let times = |a: Vec<Array>| Ok(vec![a[0].multiply(&a[1])?]);
    check_built("W x", &[masked(), normal(1, &[4, 6]).into()], times);
}

#[test]
fn a_packed_array_under_a_mask_is_gathered_packed() {
    let w = masked_of(nf4(&normal(2, &[8, 64]), 64));
    oracle(F32).check("rows", &[w.clone(), Array::from_slice(&[3u32, 0], &[2]).into()], |a| {
        Ok(vec![a[0].take_axis(&a[1], 0)?])
    });
    oracle(F32).allowing().check("x W^T", &[normal(1, &[3, 64]).into(), w], |a| Ok(vec![a[0].matmul(a[1].t())?]));
}

#[test]
fn what_is_under_the_mask_never_shows() {
    let _allow = Policy::Allow.scope();
    for hidden in [f32::NAN, f32::INFINITY] {
        let inner = Array::from_slice(&[1.0, hidden, 3.0, 4.0], &[2, 2]);
        let mask = Array::from_slice(&[true, false, true, true], &[2, 2]);
        let w = Value::from(Masked::new(&inner, mask).expect("of one shape"));
        assert_eq!(w.dense().expect("dense").as_slice::<f32>(), [1.0, 0.0, 3.0, 4.0]);
        let gradient = grad(|a: Array| a.multiply(Array::from_f32(2.0))?.square()?.sum(None)).call(w).expect("runs");
        // 2 (2 w) 2 where an element is kept.
        let expected = [8.0, 0.0, 24.0, 32.0];
        let tacit_core::tree::Gradient::Node { children, .. } = gradient else { panic!("of an implicit array") };
        assert_eq!(children[0].1.array().expect("dense").as_slice::<f32>(), expected);
    }
}

#[test]
fn bad_arguments() {
    let mask = |shape: &[i32]| ops::ones::<bool>(shape).expect("ones");
    let said = [
        said_of(Masked::new(normal(1, &[4, 6]), mask(&[6]))),
        said_of(Masked::new(normal(1, &[4, 6]), normal(1, &[4, 6]))),
        said_of(Masked::new(Array::from_slice(&[1i32], &[1]), mask(&[1]))),
        said_of(Masked::new(ops::zeros::<f32>(&[0, 2]).expect("zeros"), mask(&[0, 2]))),
    ];
    expect![[r#"
        the mask is bool[6], and that of f32[4,6] is bool[4,6]
        help: compare the array with a threshold, or broadcast the mask
        the mask is f32[4,6], and that of f32[4,6] is bool[4,6]
        help: compare the array with a threshold, or broadcast the mask
        the masked array is i32[1], which is not float
        help: give an f32, f16 or bf16 array
        the masked array is f32[0,2], which has no elements
        help: keep an empty array dense
    "#]]
    .assert_eq(&said.concat());
}
