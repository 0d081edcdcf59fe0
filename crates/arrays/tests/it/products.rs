//! `Matmul` and `AddMM` with the packed array on either side.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::{Counters, Policy, Result, Value, implicit};

use crate::operands::{FLOATS, affine, both, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

/// `[n, k]` of the matrix in these tests.
const N: i32 = 40;
const K: i32 = 96;

fn product(arrays: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![arrays[0].matmul(&arrays[1])?])
}

/// The first times the second turned round.
fn right_turned(arrays: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![arrays[0].matmul(arrays[1].t())?])
}

/// The first turned round times the second.
fn left_turned(arrays: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![arrays[0].t().matmul(&arrays[1])?])
}

#[test]
fn the_packed_side_on_the_right() {
    for dtype in FLOATS {
        for w in both(dtype, 1, &[N, K]) {
            let x = |columns| Value::from(normal_of(dtype, 2, &[3, columns]));
            oracle(dtype).check("x W", &[x(N), w.clone()], product);
            oracle(dtype).check("x W^T", &[x(K), w], right_turned);
        }
    }
}

#[test]
fn the_packed_side_on_the_left() {
    for dtype in FLOATS {
        for w in both(dtype, 1, &[N, K]) {
            let x = |rows| Value::from(normal_of(dtype, 2, &[rows, 3]));
            oracle(dtype).check("W x", &[w.clone(), x(K)], product);
            oracle(dtype).check("W^T x", &[w, x(N)], left_turned);
        }
    }
}

#[test]
fn batched_left_sides() {
    for w in both(F32, 1, &[N, K]) {
        for batch in [&[2, 3][..], &[2, 2, 3]] {
            let x = |columns| Value::from(normal(2, &[batch, &[columns]].concat()));
            oracle(F32).check("x W", &[x(N), w.clone()], product);
            oracle(F32).check("x W^T", &[x(K), w.clone()], right_turned);
        }
    }
}

#[test]
fn a_batched_right_side_equals_dense() {
    for w in both(F32, 1, &[N, K]) {
        oracle(F32).allowing().check("W x", &[w, normal(2, &[2, K, 3]).into()], product);
    }
}

#[test]
fn vectors() {
    for w in both(F32, 1, &[N, K]) {
        oracle(F32).check("v W", &[normal(2, &[N]).into(), w.clone()], product);
        oracle(F32).check("v W^T", &[normal(2, &[K]).into(), w.clone()], right_turned);
        oracle(F32).check("W v", &[w.clone(), normal(2, &[K]).into()], product);
        oracle(F32).check("W^T v", &[w, normal(2, &[N]).into()], left_turned);
    }
}

#[test]
fn one_row_and_many_rows() {
    for w in both(F32, 1, &[N, K]) {
        for rows in [1, 2, 17, 200] {
            oracle(F32).check("x W", &[normal(2, &[rows, N]).into(), w.clone()], product);
            oracle(F32).check("x W^T", &[normal(2, &[rows, K]).into(), w.clone()], right_turned);
        }
    }
}

#[test]
fn no_rows() {
    for w in both(F32, 1, &[N, K]) {
        for shape in [&[0, N][..], &[2, 0, N]] {
            oracle(F32).values_only().check("x W", &[normal(2, shape).into(), w.clone()], product);
        }
    }
}

#[test]
fn every_block_size_with_blocks_that_straddle_rows() {
    for block_size in [32, 64, 128, 256, 512, 1024, 2048, 4096] {
        // 48 x 100 elements: a row is no whole number of blocks, and the last block is ragged.
        let w = nf4(&normal(1, &[48, 100]), block_size);
        oracle(F32).check("x W", &[normal(2, &[3, 48]).into(), w.clone()], product);
        oracle(F32).check("x W^T", &[normal(2, &[3, 100]).into(), w.clone()], right_turned);
        oracle(F32).check("W x", &[w, normal(2, &[100, 3]).into()], product);
    }
}

#[test]
fn odd_extents() {
    for shape in [[7, 37], [1, 33], [33, 1], [1, 1]] {
        let w = nf4(&normal(1, &shape), 32);
        oracle(F32).check("x W", &[normal(2, &[3, shape[0]]).into(), w.clone()], product);
        oracle(F32).check("x W^T", &[normal(2, &[3, shape[1]]).into(), w], right_turned);
    }
}

#[test]
fn all_bits_and_groups() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            let w = affine(&normal(1, &[8, 256]), group_size, bits);
            oracle(F32).check("x W", &[normal(2, &[3, 8]).into(), w.clone()], product);
            oracle(F32).check("x W^T", &[normal(2, &[3, 256]).into(), w], right_turned);
        }
    }
}

#[test]
fn scaled_sums_on_both_sides() {
    for w in both(F32, 1, &[N, K]) {
        for (alpha, beta) in [(1.0, 1.0), (0.5, -2.0), (0.0, 1.0), (1.0, 0.0)] {
            let sum = move |arrays: Vec<Array>| Ok(vec![ops::addmm(&arrays[2], &arrays[0], &arrays[1], alpha, beta)?]);
            let turned =
                move |arrays: Vec<Array>| Ok(vec![ops::addmm(&arrays[2], &arrays[0], arrays[1].t(), alpha, beta)?]);
            for c in [&[3, K][..], &[K], &[3, 1]] {
                oracle(F32).check("x W + c", &[normal(2, &[3, N]).into(), w.clone(), normal(3, c).into()], sum);
            }
            oracle(F32).check("x W^T + c", &[normal(2, &[3, K]).into(), w.clone(), normal(3, &[N]).into()], turned);
            oracle(F32).check("W x + c", &[w.clone(), normal(2, &[K, 3]).into(), normal(3, &[N, 3]).into()], sum);
        }
    }
}

#[test]
fn scaled_sums_in_half_types() {
    for dtype in [Dtype::Bfloat16, Dtype::Float16] {
        for w in both(dtype, 1, &[N, K]) {
            let operands = [normal_of(dtype, 2, &[3, N]).into(), w, normal_of(dtype, 3, &[K]).into()];
            oracle(dtype).check("x W + c", &operands, |arrays| {
                Ok(vec![ops::addmm(&arrays[2], &arrays[0], &arrays[1], 0.5, 2.0)?])
            });
        }
    }
}

#[test]
fn a_batched_scaled_sum() {
    for w in both(F32, 1, &[N, K]) {
        let operands = [normal(2, &[2, 3, K]).into(), w, normal(3, &[N]).into()];
        oracle(F32).check("x W^T + c", &operands, |arrays| {
            Ok(vec![ops::addmm(&arrays[2], &arrays[0], arrays[1].t(), None, None)?])
        });
    }
}

#[test]
fn a_bfloat16_activation_on_a_float32_weight() {
    for w in both(F32, 1, &[N, K]) {
        oracle(F32).check("x W", &[normal_of(Dtype::Bfloat16, 2, &[3, N]).into(), w], product);
    }
}

#[test]
fn a_float32_activation_on_a_bfloat16_weight_needs_the_weight_materialized() {
    for w in both(Dtype::Bfloat16, 1, &[N, K]) {
        let operands = [normal(2, &[3, N]).into(), w];
        oracle(F32).allowing().check("x W", &operands, product);
        assert!(oracle(F32).compare("x W", &operands, product).is_err(), "widening must not be silent");
    }
}

#[test]
fn nothing_is_materialized() {
    for w in both(F32, 1, &[N, K]) {
        let (y, counters) = Counters::of(|| {
            let _deny = Policy::Deny.scope();
            implicit(|[x, w]: [Array; 2]| x.matmul(w.t()))([normal(2, &[3, K]).into(), w])
        });
        y.expect("is handled");
        assert_eq!((counters.seen, counters.handled, counters.materialized), (2, 2, 0));
    }
}
