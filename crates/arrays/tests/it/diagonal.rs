//! Diagonal matrices.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::Diagonal;
use tacit_core::{Value, implicit};

use crate::messages::said_of;
use crate::operands::{check_built, normal, oracle};
use crate::structured::diagonal;

const F32: Dtype = Dtype::Float32;

fn x(shape: &[i32]) -> Value {
    normal(1, shape).into()
}

#[test]
fn products_scale_columns_and_rows() {
    for left in [&[3, 5][..], &[2, 3, 5], &[5]] {
        oracle(F32).check("x D", &[x(left), diagonal()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
    }
    for right in [&[5, 3][..], &[5]] {
        oracle(F32).check("D x", &[diagonal(), x(right)], |a| Ok(vec![a[0].matmul(&a[1])?]));
    }
    oracle(F32).check("x D + c", &[x(&[3, 5]), diagonal(), x(&[5])], |a| {
        Ok(vec![ops::addmm(&a[2], &a[0], &a[1], 0.5, -2.0)?])
    });
    oracle(F32).check("D x + c", &[diagonal(), x(&[5, 3]), x(&[5, 1])], |a| {
        Ok(vec![ops::addmm(&a[2], &a[0], &a[1], 0.5, -2.0)?])
    });
}

#[test]
fn two_of_them_make_one() {
    let other = Value::from(Diagonal::new(normal(2, &[5])).expect("a vector"));
    oracle(F32).check("D E", &[diagonal(), other.clone()], |a| {
        let (d, e) = (&a[0], &a[1]);
        Ok(vec![d.matmul(e)?, d.add(e)?, d.subtract(e)?, d.multiply(e)?.negative()?])
    });
    let y = implicit((diagonal(), other), |(d, e)| d.matmul(e.t())?.add(&d)?.negative());
    assert_eq!(y.expect("is handled").to_string(), "Diagonal(f32[5,5])");
}

#[test]
fn elementwise() {
    for operand in [x(&[]), x(&[5, 5]), x(&[5]), x(&[5, 1])] {
        oracle(F32).check("D x", &[diagonal(), operand], |a| Ok(vec![a[1].multiply(&a[0])?]));
    }
    oracle(F32).check("D / x", &[diagonal(), x(&[])], |a| Ok(vec![a[0].divide(&a[1])?]));
    let over = |a: Vec<Array>| Ok(vec![a[0].divide(&a[1])?]);
    check_built("D / x", &[diagonal(), x(&[5])], over);
}

#[test]
fn sums_and_types() {
    oracle(F32).check("sums", &[diagonal()], |a| {
        let d = &a[0];
        Ok(vec![d.sum_axes(&[0], false)?, d.sum_axes(&[1], true)?, d.sum(None)?, d.mean(None)?])
    });
    oracle(F32).check("astype", &[diagonal()], |a| Ok(vec![a[0].as_dtype(Dtype::Float16)?]));
    // MLX sums integers in a wider type.
    oracle(F32)
        .allowing()
        .check("sum of integers", &[diagonal()], |a| Ok(vec![a[0].as_dtype(Dtype::Bool)?.sum_axes(&[0], false)?]));
    oracle(F32).allowing().check("D + x", &[diagonal(), x(&[5, 5])], |a| Ok(vec![a[0].add(&a[1])?]));
}

#[test]
fn a_nan_stays_in_its_row_and_column() {
    let d = Diagonal::new(Array::from_slice(&[1.0, f32::NAN], &[2])).expect("a vector");
    oracle(F32).values_only().check("D", &[d.into()], |a| Ok(vec![a[0].t(), a[0].sum_axes(&[0], false)?]));
}

#[test]
fn bad_arguments() {
    let said = [
        said_of(Diagonal::new(normal(1, &[2, 2]))),
        said_of(Diagonal::new(Array::from_slice(&[1i32, 2], &[2]))),
        said_of(Diagonal::new(ops::zeros::<f32>(&[0]).expect("zeros"))),
    ];
    expect![[r#"
        the diagonal is f32[2,2], which is not a vector
        help: take the diagonal of a matrix with `Array::diagonal`
        the diagonal is i32[2], which is not float
        help: give an f32, f16 or bf16 array
        the diagonal is f32[0], which has no elements
        help: keep an empty array dense
    "#]]
    .assert_eq(&said.concat());
}
