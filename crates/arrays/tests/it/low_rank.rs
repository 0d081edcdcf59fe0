//! Products of two thin matrices.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::LowRank;
use tacit_core::{Counters, Policy, Result, Value, implicit};

use crate::messages::said_of;
use crate::operands::{FLOATS, check_built, nf4, normal, normal_of, oracle};
use crate::structured::low_rank;

const F32: Dtype = Dtype::Float32;

fn x(shape: &[i32]) -> Value {
    normal(1, shape).into()
}

fn product(a: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![a[0].matmul(&a[1])?])
}

#[test]
fn products_with_each_factor() {
    for left in [&[3, 8][..], &[2, 3, 8], &[8]] {
        oracle(F32).check("x W", &[x(left), low_rank()], product);
    }
    for right in [&[9, 3][..], &[9]] {
        oracle(F32).check("W x", &[low_rank(), x(right)], product);
    }
    oracle(F32).check("x W^T", &[x(&[3, 9]), low_rank()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
    oracle(F32).check("x W + c", &[x(&[3, 8]), low_rank(), x(&[9])], |a| {
        Ok(vec![ops::addmm(&a[2], &a[0], &a[1], 0.5, -2.0)?])
    });
    oracle(F32).check("W x + c", &[low_rank(), x(&[9, 3]), x(&[8, 3])], |a| {
        Ok(vec![ops::addmm(&a[2], &a[0], &a[1], 0.5, -2.0)?])
    });
}

#[test]
fn no_rows() {
    oracle(F32).values_only().check("x W", &[x(&[0, 8]), low_rank()], product);
}

#[test]
fn a_rank_that_saves_nothing_is_built() {
    let w = || Value::from(LowRank::new(normal(2, &[8, 8]), normal(3, &[8, 9])).expect("a product"));
    check_built("x W", &[x(&[40, 8]), w()], product);
    // One row is cheaper by the factors, whatever the rank.
    oracle(F32).check("x W", &[x(&[1, 8]), w()], product);
}

#[test]
fn what_goes_to_one_factor() {
    for operand in [x(&[]), x(&[9]), x(&[1, 9]), x(&[8, 1]), x(&[1, 1])] {
        oracle(F32).check("W x", &[low_rank(), operand], |a| Ok(vec![a[1].multiply(&a[0])?]));
    }
    let times = |a: Vec<Array>| Ok(vec![a[0].multiply(&a[1])?]);
    check_built("W x", &[low_rank(), x(&[8, 9])], times);
}

#[test]
fn rows_and_sums() {
    for rows in [
        Array::from_slice(&[3u32, 0, 7], &[3]),
        Array::from_slice(&[-1i32, 2], &[1, 2]),
        Array::from_slice(&[5i32], &[]),
    ] {
        oracle(F32).check("rows", &[low_rank(), rows.into()], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
    }
    oracle(F32).check("sums", &[low_rank()], |a| {
        let w = &a[0];
        Ok(vec![w.sum_axes(&[0], false)?, w.sum_axes(&[1], true)?, w.sum(None)?, w.mean(None)?])
    });
    let columns = |a: Vec<Array>| Ok(vec![a[0].take_axis(&a[1], 1)?]);
    let operands = [low_rank(), Array::from_slice(&[3u32], &[1]).into()];
    check_built("columns", &operands, columns);
}

#[test]
fn sums_of_two() {
    let plus = |a: Vec<Array>| Ok(vec![a[0].add(&a[1])?]);
    oracle(F32).check("V + W", &[low_rank(), low_rank()], plus);
    let wide = || Value::from(LowRank::new(normal(2, &[8, 3]), normal(3, &[3, 9])).expect("a product"));
    check_built("V + W", &[wide(), wide()], plus);
}

#[test]
fn narrower_types() {
    for dtype in FLOATS {
        oracle(dtype).check("astype", &[low_rank()], move |a| Ok(vec![a[0].as_dtype(dtype)?]));
        let w = LowRank::new(normal_of(dtype, 2, &[8, 1]), normal_of(dtype, 3, &[1, 9])).expect("a product");
        let widen = |a: Vec<Array>| Ok(vec![a[0].as_dtype(F32)?]);
        oracle(F32).check("astype", &[w.into()], widen);
    }
}

#[test]
fn packed_factors_keep_their_handlers() {
    let w = LowRank::new(nf4(&normal(2, &[96, 8]), 64), nf4(&normal(3, &[8, 64]), 64)).expect("a product");
    oracle(F32).check("x W", &[x(&[3, 96]), w.clone().into()], product);
    let (y, counters) = Counters::during(|| {
        let _deny = Policy::Deny.scope();
        implicit((x(&[3, 64]), w), |(x, w)| x.matmul(w.t()))
    });
    assert_eq!(y.expect("is handled").to_string(), "f32[3,96]");
    assert_eq!(counters.materialized, 0);
}

#[test]
fn bad_arguments() {
    let of = |left: &[i32], right: &[i32]| LowRank::new(normal(1, left), normal(2, right));
    let said = [
        said_of(of(&[4, 2], &[3, 5])),
        said_of(of(&[2, 4, 2], &[2, 5])),
        said_of(LowRank::new(normal(1, &[4, 2]), normal_of(Dtype::Float16, 2, &[2, 5]))),
        said_of(of(&[4, 0], &[0, 5])),
        said_of(LowRank::new(normal(1, &[4, 2]), Array::from_slice(&[1i32, 2], &[2, 1]))),
    ];
    expect![[r#"
        the factors f32[4,2] and f32[3,5] have no product
        help: give matrices [n, r] and [r, k] of one dtype
        the factors f32[2,4,2] and f32[2,5] have no product
        help: give matrices [n, r] and [r, k] of one dtype
        the factors f32[4,2] and f16[2,5] have no product
        help: give matrices [n, r] and [r, k] of one dtype
        the left factor is f32[4,0], which has no elements
        help: keep an empty array dense
        the right factor is i32[2,1], which is not float
        help: give an f32, f16 or bf16 array
    "#]]
    .assert_eq(&said.concat());
}
