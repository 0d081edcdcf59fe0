//! What no handler takes: built, counted, and equal to dense.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Counters, Policy, Result, Value, implicit};

use crate::operands::{affine, every, nf4, normal, oracle};

type Op = fn(&Array) -> Result<Array>;

const F32: Dtype = Dtype::Float32;

/// What `f` counts when it runs on `operands` with materialization allowed.
fn counted(operands: Vec<Value>, f: impl FnMut(Vec<Array>) -> Result<Vec<Array>>) -> Counters {
    let _allow = Policy::Allow.scope();
    let (result, counters) = Counters::during(|| implicit(operands, f));
    result.expect("runs");
    counters
}

#[test]
fn a_vector_is_built_once_and_counted() {
    let operands = vec![nf4(&normal(1, &[100]), 32), normal(2, &[3, 100]).into()];
    let scale = |arrays: Vec<Array>| Ok(vec![arrays[0].multiply(&arrays[1])?.add(&arrays[0])?]);
    oracle(F32).allowing().check("w x + w", &operands, scale);
    let counters = counted(operands, scale);
    assert_eq!((counters.handled, counters.materialized, counters.materialized_bytes), (0, 1, 400));
}

#[test]
fn a_vector_times_a_matrix_on_the_packed_side() {
    let operands = [nf4(&normal(1, &[100]), 32), normal(2, &[100, 3]).into()];
    oracle(F32).allowing().check("w x", &operands, |arrays| Ok(vec![arrays[0].matmul(&arrays[1])?]));
}

#[test]
fn a_convolution_weight_is_built_once_and_counted() {
    for w in [nf4(&normal(1, &[8, 3, 3, 32]), 64), affine(&normal(1, &[8, 3, 3, 32]), 32, 4)] {
        let operands = vec![normal(2, &[2, 6, 6, 32]).into(), w];
        let convolution =
            |arrays: Vec<Array>| Ok(vec![ops::conv2d(&arrays[0], &arrays[1], (1, 1), (1, 1), (1, 1), 1)?]);
        oracle(F32).allowing().check("conv2d", &operands, convolution);
        let counters = counted(operands, convolution);
        assert_eq!((counters.materialized, counters.materialized_bytes), (1, 8 * 3 * 3 * 32 * 4));
    }
}

#[test]
fn elementwise_and_reducing_ops() {
    let cases: [(&str, Op); 5] = [
        ("abs", |w| Ok(w.abs()?)),
        ("sum", |w| Ok(w.sum_axis(0, None)?)),
        ("softmax", |w| Ok(ops::softmax_axis(w, -1, None)?)),
        ("reshape", |w| Ok(w.reshape(&[-1])?)),
        ("swapped subtraction", |w| Ok(Array::from_f32(1.0).subtract(w)?)),
    ];
    for w in every(F32, 1, &[5, 64]) {
        for (name, f) in cases {
            oracle(F32).allowing().check(name, std::slice::from_ref(&w), move |arrays| Ok(vec![f(&arrays[0])?]));
        }
    }
}

#[test]
fn a_stopped_gradient_is_packed() {
    for w in every(F32, 1, &[40, 64]) {
        oracle(F32).check("x stop_gradient(W)", &[normal(2, &[3, 40]).into(), w], |arrays| {
            Ok(vec![arrays[0].matmul(mlx_rs::stop_gradient(&arrays[1])?)?])
        });
    }
}
