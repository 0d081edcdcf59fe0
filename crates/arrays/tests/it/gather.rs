//! Gather of whole rows, as an embedding takes them.

use mlx_rs::ops::indexing::IndexOp;
use mlx_rs::{Array, Dtype};
use tacit_core::{Counters, Policy, Result, Value, implicit};

use crate::operands::{FLOATS, affine, check_built, every, nf4, normal, oracle};

const F32: Dtype = Dtype::Float32;

fn rows(arrays: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![arrays[0].take_axis(&arrays[1], 0)?])
}

/// Indices of every shape and type that mlx-rs takes.
fn indices() -> Vec<Value> {
    vec![
        Array::from_slice(&[3u32, 0, 3, 39], &[4]).into(),
        Array::from_slice(&[3i32, -1, -40, 39], &[4]).into(),
        Array::from_slice(&[1i64, -2], &[2]).into(),
        Array::from_slice(&[200u8.rem_euclid(40), 7], &[2]).into(),
        Array::from_slice(&[1i32, 2, 3, 4, -5, 6], &[2, 3]).into(),
        Array::from_slice(&[5u32], &[]).into(),
        Array::from_slice(&[-1i32], &[]).into(),
    ]
}

#[test]
fn rows_of_every_index_shape_and_type() {
    for w in every(F32, 1, &[40, 96]) {
        for index in indices() {
            oracle(F32).check("rows", &[w.clone(), index], rows);
        }
    }
}

#[test]
fn rows_as_an_embedding_indexes_them() {
    for w in every(F32, 1, &[40, 96]) {
        for index in indices() {
            oracle(F32).check("rows", &[w.clone(), index], |arrays| Ok(vec![arrays[0].index(&arrays[1])]));
        }
    }
}

#[test]
fn rows_in_half_types() {
    for dtype in FLOATS {
        for w in every(dtype, 1, &[40, 96]) {
            oracle(dtype).check("rows", &[w, Array::from_slice(&[3u32, 39], &[2]).into()], rows);
        }
    }
}

#[test]
fn rows_that_straddle_blocks() {
    for block_size in [32, 64, 128, 4096] {
        for shape in [[40, 100], [40, 37], [40, 1]] {
            let w = nf4(&normal(1, &shape), block_size);
            oracle(F32).check("rows", &[w, Array::from_slice(&[0u32, 39, 17], &[3]).into()], rows);
        }
    }
}

#[test]
fn rows_of_all_bits_and_groups() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            let w = affine(&normal(1, &[8, 256]), group_size, bits);
            oracle(F32).check("rows", &[w, Array::from_slice(&[7i32, -8, 3], &[3]).into()], rows);
        }
    }
}

#[test]
fn no_rows() {
    for w in every(F32, 1, &[40, 96]) {
        let none = Array::from_slice::<u32>(&[], &[0]);
        oracle(F32).values_only().check("rows", &[w, none.into()], rows);
    }
}

#[test]
fn columns_are_materialized() {
    for w in every(F32, 1, &[40, 96]) {
        let operands = [w, Array::from_slice(&[3u32, 0], &[2]).into()];
        let columns = |arrays: Vec<Array>| Ok(vec![arrays[0].take_axis(&arrays[1], 1)?]);
        check_built("columns", &operands, columns);
    }
}

#[test]
fn rows_of_a_transposed_matrix_are_materialized() {
    for w in every(F32, 1, &[40, 96]) {
        let operands = [w, Array::from_slice(&[3u32, 95], &[2]).into()];
        check_built("rows of W^T", &operands, |arrays| Ok(vec![arrays[0].t().take_axis(&arrays[1], 0)?]));
    }
}

#[test]
fn only_the_rows_are_dequantized() {
    for w in every(F32, 1, &[40, 96]) {
        let (y, counters) = Counters::during(|| {
            let _deny = Policy::Deny.scope();
            implicit((w, Array::from_slice(&[3u32, 1], &[2])), |(w, i)| w.take_axis(&i, 0))
        });
        assert_eq!(y.expect("is handled").to_string(), "f32[2,96]");
        assert_eq!((counters.handled, counters.materialized), (1, 0));
    }
}
