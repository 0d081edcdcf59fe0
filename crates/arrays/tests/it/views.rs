//! Transpose and `AsType`.

use std::slice::from_ref;

use mlx_rs::{Array, Dtype};
use tacit_core::{Policy, Value, implicit};

use crate::operands::{check_built, every, nf4, normal, oracle};

const F32: Dtype = Dtype::Float32;

#[test]
fn a_transpose_is_packed_and_equals_dense() {
    for w in every(F32, 1, &[40, 96]) {
        oracle(F32).check("W^T", from_ref(&w), |arrays| Ok(vec![arrays[0].t()]));
        oracle(F32).check("W^T^T", from_ref(&w), |arrays| Ok(vec![arrays[0].t().t()]));
        oracle(F32).check("W", from_ref(&w), |arrays| Ok(vec![arrays[0].transpose_axes(&[0, 1])?]));
        let transposed = implicit(&w, |w| Ok::<_, tacit_core::Error>(w.t())).expect("is handled");
        assert_eq!(transposed.nbytes(), w.nbytes());
        assert_eq!(transposed.aval().expect("given").to_string(), "f32[96,40]");
    }
}

#[test]
fn a_product_with_a_matrix_transposed_twice() {
    for w in every(F32, 1, &[40, 96]) {
        oracle(F32).check("x W^T^T", &[normal(2, &[3, 40]).into(), w], |arrays| {
            Ok(vec![arrays[0].matmul(arrays[1].t().t())?])
        });
    }
}

#[test]
fn a_ragged_matrix_transposed() {
    let w = nf4(&normal(1, &[7, 37]), 64);
    oracle(F32).check("W^T", &[w], |arrays| Ok(vec![arrays[0].t()]));
}

#[test]
fn a_permutation_of_three_axes_is_materialized() {
    for w in every(F32, 1, &[2, 3, 64]) {
        let turn = |arrays: Vec<Array>| Ok(vec![arrays[0].transpose_axes(&[2, 0, 1])?]);
        check_built("transpose", &[w], turn);
    }
}

#[test]
fn a_narrower_type_is_packed_and_equals_dense() {
    for dtype in [Dtype::Bfloat16, Dtype::Float16] {
        for w in every(F32, 1, &[40, 96]) {
            oracle(F32).check("astype", from_ref(&w), move |arrays| Ok(vec![arrays[0].as_dtype(dtype)?]));
            oracle(dtype).check("x astype(W)", &[normal(2, &[3, 40]).into(), w], move |arrays| {
                Ok(vec![arrays[0].as_dtype(dtype)?.matmul(arrays[1].as_dtype(dtype)?)?])
            });
        }
    }
}

#[test]
fn a_wider_type_after_a_narrower_one_shows_the_rounding() {
    for w in every(F32, 1, &[40, 96]) {
        let there_and_back =
            |arrays: Vec<Array>| Ok(vec![arrays[0].as_dtype(Dtype::Bfloat16)?.as_dtype(Dtype::Float32)?]);
        oracle(F32).check("astype", &[w], there_and_back);
    }
}

#[test]
fn an_integer_type_is_materialized() {
    for w in every(F32, 1, &[40, 96]) {
        let cast = |arrays: Vec<Array>| Ok(vec![arrays[0].as_dtype(Dtype::Int32)?]);
        check_built("astype", &[w], cast);
    }
}

#[test]
fn quantizing_is_lazy_and_works_under_compile() {
    let x = Value::from(normal(1, &[40, 96]));
    oracle(F32).values_only().check("quantize", &[x], |arrays| {
        let _allow = Policy::Allow.scope();
        Ok(vec![nf4(&arrays[0], 64).dense()?])
    });
}
