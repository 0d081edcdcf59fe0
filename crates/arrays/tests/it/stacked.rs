//! Experts along a leading axis.

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::{Scaled, Stacked};
use tacit_core::{Policy, Value, implicit};

use crate::messages::said_of;
use crate::operands::{affine, check_built, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

/// Three experts of 8 rows of 32, of two types.
fn experts(dtype: Dtype) -> Value {
    let expert = |seed| normal_of(dtype, seed, &[8, 32]);
    Stacked::new(vec![nf4(&expert(1), 64), affine(&expert(2), 32, 4), nf4(&expert(3), 32)]).expect("fits").into()
}

fn chosen(indices: &[u32], shape: &[i32]) -> Array {
    Array::from_slice(indices, shape)
}

#[test]
fn batched_products_are_those_of_the_experts() {
    let x = |rows, columns| Value::from(normal(4, &[3, rows, columns]));
    oracle(F32).check("x W", &[x(5, 8), experts(F32)], |a| Ok(vec![a[0].matmul(&a[1])?]));
    oracle(F32).check("x W^T", &[x(5, 32), experts(F32)], |a| Ok(vec![a[0].matmul(a[1].swap_axes(1, 2)?)?]));
    oracle(F32).check("W x", &[x(32, 5), experts(F32)], |a| Ok(vec![a[1].matmul(&a[0])?]));
    oracle(F32).check("shared x", &[normal(4, &[5, 32]).into(), experts(F32)], |a| {
        Ok(vec![a[0].matmul(a[1].swap_axes(1, 2)?)?])
    });
    oracle(F32).check("addmm", &[x(5, 32), experts(F32), x(5, 8)], |a| {
        Ok(vec![ops::addmm(&a[2], &a[0], a[1].swap_axes(1, 2)?, 0.5, -2.0)?])
    });
    oracle(F32).check("addmm, left", &[x(32, 5), experts(F32), x(8, 5)], |a| {
        Ok(vec![ops::addmm(&a[2], &a[1], &a[0], 0.5, -2.0)?])
    });
}

#[test]
fn experts_of_several_types_are_mapped_and_have_tangents() {
    let oracle = oracle(F32).allowing().transformed();
    let x = |rows, columns| Value::from(normal(4, &[3, rows, columns]));
    oracle.check("x W^T", &[x(5, 32), experts(F32)], |a| Ok(vec![a[0].matmul(a[1].swap_axes(1, 2)?)?]));
    oracle.check("W x", &[x(32, 5), experts(F32)], |a| Ok(vec![a[1].matmul(&a[0])?]));
}

#[test]
fn each_row_by_an_expert_of_its_own() {
    let x = Value::from(normal(4, &[4, 1, 32]));
    // Plain MLX has it in f32 alone on a CPU.
    oracle(F32).check("gather_mm", &[x.clone(), experts(F32)], |a| {
        Ok(vec![ops::gather_mm(&a[0], a[1].swap_axes(1, 2)?, None, &chosen(&[2, 0, 1, 2], &[4]), None)?])
    });
    // Two experts for each token, as a mixture chooses them.
    oracle(F32).check("top 2", &[normal(4, &[4, 1, 1, 32]).into(), experts(F32)], |a| {
        let top = chosen(&[2, 0, 1, 2, 0, 0, 1, 2], &[4, 2]);
        Ok(vec![ops::gather_mm(&a[0], a[1].swap_axes(1, 2)?, None, &top, None)?])
    });
    oracle(F32).check("both sides", &[normal(4, &[4, 5, 8]).into(), experts(F32)], |a| {
        let (left, right) = (chosen(&[3, 1], &[2]), chosen(&[1, 1], &[2]));
        Ok(vec![ops::gather_mm(&a[0], &a[1], &left, &right, None)?])
    });
    oracle(F32).check("traced indices", &[x, experts(F32), chosen(&[2, 0, 1, 2], &[4]).into()], |a| {
        Ok(vec![ops::gather_mm(&a[0], a[1].swap_axes(1, 2)?, None, &a[2], None)?])
    });
}

#[test]
fn a_scaled_stack() {
    let w = Scaled::new(experts(F32), &Array::from_f32(0.5)).expect("fits");
    oracle(F32)
        .check("x W^T", &[normal(4, &[3, 5, 32]).into(), w.into()], |a| Ok(vec![a[0].matmul(a[1].swap_axes(1, 2)?)?]));
}

#[test]
fn many_experts_are_built() {
    let w = Stacked::new(vec![nf4(&normal(1, &[8, 32]), 64); 65]).expect("fits");
    let operands = [normal(4, &[2, 1, 8]).into(), w.into()];
    let product = |a: Vec<Array>| Ok(vec![ops::gather_mm(&a[0], &a[1], None, &chosen(&[64, 0], &[2]), None)?]);
    check_built("gather_mm", &operands, product);
}

#[test]
fn experts_are_cut_out() {
    let x = || Value::from(normal(4, &[5, 32]));
    oracle(F32).check("some", &[x(), experts(F32)], |a| Ok(vec![a[0].matmul(a[1].try_index(1..)?.swap_axes(1, 2)?)?]));
    oracle(F32)
        .check("one", &[x(), experts(F32)], |a| Ok(vec![a[0].matmul(a[1].try_index(1..2)?.squeeze_axes(&[0])?.t())?]));
    let _deny = Policy::Deny.scope();
    let one = implicit(experts(F32), |w| w.try_index(2..3)?.squeeze_axes(&[0])).expect("is handled");
    assert_eq!(one.to_string(), "Nf4(f32[8,32])");
}

#[test]
fn what_cuts_or_mixes_experts_is_a_view_and_what_takes_of_them_is_built() {
    let cut = |a: Vec<Array>| Ok(vec![a[0].try_index((.., 1..3))?]);
    let mixed = |a: Vec<Array>| Ok(vec![a[0].transpose_axes(&[1, 0, 2])?]);
    let taken = |a: Vec<Array>| Ok(vec![a[0].take_axis(chosen(&[1, 1], &[2]), 0)?]);
    oracle(F32).check("cut", &[experts(F32)], cut);
    oracle(F32).check("mixed", &[experts(F32)], mixed);
    check_built("taken", &[experts(F32)], taken);
}

#[test]
fn casts() {
    oracle(F32).check("narrower", &[experts(F32)], |a| Ok(vec![a[0].as_dtype(Dtype::Bfloat16)?]));
    oracle(F32).check("wider", &[experts(Dtype::Bfloat16)], |a| Ok(vec![a[0].as_dtype(F32)?]));
}

#[test]
fn stacked_vectors_are_built_for_a_product() {
    let w = Stacked::new(vec![nf4(&normal(1, &[32]), 32); 4]).expect("fits");
    let operands = [normal(4, &[5, 32]).into(), w.into()];
    check_built("x W^T", &operands, |a| Ok(vec![a[0].matmul(a[1].t())?]));
}

#[test]
fn what_is_not_stacked() {
    let said = [
        said_of(Stacked::new(Vec::new())),
        said_of(Stacked::new(vec![nf4(&normal(1, &[4, 32]), 32), nf4(&normal(1, &[8, 32]), 32)])),
        said_of(Stacked::new(vec![nf4(&normal(1, &[4, 32]), 32), nf4(&normal_of(Dtype::Float16, 1, &[4, 32]), 32)])),
    ];
    expect![[r#"
        there are no arrays to stack
        help: give at least one array
        f32[4,32] and f32[8,32] are not stacked
        help: give arrays of one shape and dtype
        f32[4,32] and f16[4,32] are not stacked
        help: give arrays of one shape and dtype
    "#]]
    .assert_eq(&said.concat());
}
