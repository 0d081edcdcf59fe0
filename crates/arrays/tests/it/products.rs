//! `Matmul` and `AddMM` with the packed array on either side.

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, AnyFormat, Granularity, KQuant, Nf4};
use tacit_arrays::{AffineArray, Fp4Array, Int8Array, KQuantArray, Nf4Array, Packed};
use tacit_conformance::assert_close;
use tacit_conformance::oracle::{Oracle, relative_error};
use tacit_core::transform::grad_wrt;
use tacit_core::{Counters, ImplicitArray, Policy, Result, Value, implicit};

use crate::messages::said_of;
use crate::operands::{FLOATS, affine, both, every, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

/// `[n, k]` of the matrix in these tests.
const N: i32 = 40;
const K: i32 = 96;

fn product(arrays: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![arrays[0].matmul(&arrays[1])?])
}

/// The first times the second transposed.
fn right_transposed(arrays: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![arrays[0].matmul(arrays[1].t())?])
}

/// The first transposed times the second.
fn left_transposed(arrays: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![arrays[0].t().matmul(&arrays[1])?])
}

#[test]
fn the_packed_side_on_the_right() {
    for dtype in FLOATS {
        for w in every(dtype, 1, &[N, K]) {
            let x = |columns| Value::from(normal_of(dtype, 2, &[3, columns]));
            oracle(dtype).check("x W", &[x(N), w.clone()], product);
            oracle(dtype).check("x W^T", &[x(K), w], right_transposed);
        }
    }
}

#[test]
fn the_packed_side_on_the_left() {
    for dtype in FLOATS {
        for w in every(dtype, 1, &[N, K]) {
            let x = |rows| Value::from(normal_of(dtype, 2, &[rows, 3]));
            oracle(dtype).check("W x", &[w.clone(), x(K)], product);
            oracle(dtype).check("W^T x", &[w, x(N)], left_transposed);
        }
    }
}

#[test]
fn batched_left_sides() {
    for w in every(F32, 1, &[N, K]) {
        for batch in [&[2, 3][..], &[2, 2, 3]] {
            let x = |columns| Value::from(normal(2, &[batch, &[columns]].concat()));
            // The offset of nested scales is one number, whose gradient sums that of every block, and may nearly cancel.
            oracle(F32).least(1.0).check("x W", &[x(N), w.clone()], product);
            oracle(F32).least(1.0).check("x W^T", &[x(K), w.clone()], right_transposed);
        }
    }
}

#[test]
fn a_batched_right_side_equals_dense() {
    for w in every(F32, 1, &[N, K]) {
        oracle(F32).allowing().check("W x", &[w, normal(2, &[2, K, 3]).into()], product);
    }
}

#[test]
fn vectors() {
    for w in every(F32, 1, &[N, K]) {
        oracle(F32).check("v W", &[normal(2, &[N]).into(), w.clone()], product);
        oracle(F32).check("v W^T", &[normal(2, &[K]).into(), w.clone()], right_transposed);
        oracle(F32).check("W v", &[w.clone(), normal(2, &[K]).into()], product);
        oracle(F32).check("W^T v", &[w, normal(2, &[N]).into()], left_transposed);
    }
}

#[test]
fn one_row_and_many_rows() {
    for w in every(F32, 1, &[N, K]) {
        for rows in [1, 2, 17, 200] {
            oracle(F32).check("x W", &[normal(2, &[rows, N]).into(), w.clone()], product);
            oracle(F32).check("x W^T", &[normal(2, &[rows, K]).into(), w.clone()], right_transposed);
        }
    }
}

#[test]
fn no_rows() {
    for w in every(F32, 1, &[N, K]) {
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
        oracle(F32).check("x W^T", &[normal(2, &[3, 100]).into(), w.clone()], right_transposed);
        oracle(F32).check("W x", &[w, normal(2, &[100, 3]).into()], product);
    }
}

#[test]
fn odd_extents() {
    for shape in [[7, 37], [1, 33], [33, 1], [1, 1]] {
        let w = nf4(&normal(1, &shape), 32);
        oracle(F32).check("x W", &[normal(2, &[3, shape[0]]).into(), w.clone()], product);
        oracle(F32).check("x W^T", &[normal(2, &[3, shape[1]]).into(), w], right_transposed);
    }
}

#[test]
fn all_bits_and_groups() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            let w = affine(&normal(1, &[8, 256]), group_size, bits);
            oracle(F32).check("x W", &[normal(2, &[3, 8]).into(), w.clone()], product);
            oracle(F32).check("x W^T", &[normal(2, &[3, 256]).into(), w], right_transposed);
        }
    }
}

#[test]
fn scaled_sums_on_both_sides() {
    for w in every(F32, 1, &[N, K]) {
        for (alpha, beta) in [(1.0, 1.0), (0.5, -2.0), (0.0, 1.0), (1.0, 0.0)] {
            let sum = move |arrays: Vec<Array>| Ok(vec![ops::addmm(&arrays[2], &arrays[0], &arrays[1], alpha, beta)?]);
            let transposed =
                move |arrays: Vec<Array>| Ok(vec![ops::addmm(&arrays[2], &arrays[0], arrays[1].t(), alpha, beta)?]);
            for c in [&[3, K][..], &[K], &[3, 1]] {
                oracle(F32).check("x W + c", &[normal(2, &[3, N]).into(), w.clone(), normal(3, c).into()], sum);
            }
            oracle(F32).check("x W^T + c", &[normal(2, &[3, K]).into(), w.clone(), normal(3, &[N]).into()], transposed);
            oracle(F32).check("W x + c", &[w.clone(), normal(2, &[K, 3]).into(), normal(3, &[N, 3]).into()], sum);
        }
    }
}

#[test]
fn scaled_sums_in_half_types() {
    for dtype in [Dtype::Bfloat16, Dtype::Float16] {
        for w in every(dtype, 1, &[N, K]) {
            let operands = [normal_of(dtype, 2, &[3, N]).into(), w, normal_of(dtype, 3, &[K]).into()];
            oracle(dtype).check("x W + c", &operands, |arrays| {
                Ok(vec![ops::addmm(&arrays[2], &arrays[0], &arrays[1], 0.5, 2.0)?])
            });
        }
    }
}

#[test]
fn a_batched_scaled_sum() {
    for w in every(F32, 1, &[N, K]) {
        let operands = [normal(2, &[2, 3, K]).into(), w, normal(3, &[N]).into()];
        oracle(F32).check("x W^T + c", &operands, |arrays| {
            Ok(vec![ops::addmm(&arrays[2], &arrays[0], arrays[1].t(), None, None)?])
        });
    }
}

/// MLX repeats the matrix for a batch, and for a sum with more than one axis.
#[test]
fn a_matrix_that_is_repeated_multiplies_as_it_does_alone() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let (_, rounded) = pair(Nf4Array::quantize(&normal(1, &[N, K]), 64), Nf4Array::with_int8_activations);
    let (x, y, c) = (normal(2, &[2, K, 17]), normal(3, &[2, 5, K]), normal(4, &[2, 5, N]));
    for w in every(F32, 1, &[N, K]).into_iter().chain([rounded]) {
        let left = implicit((&x, &w), |(x, w)| w.matmul(x))?.dense()?;
        let sum = implicit((&y, &w), |(y, w)| ops::addmm(&c, y, w.t(), None, None))?.dense()?;
        let transposed = implicit((&c, &w), |(c, w)| w.t().matmul(c.swap_axes(-1, -2)?))?.dense()?;
        for at in 0..2 {
            let of = |array: &Array| array.take_axis(Array::from_int(at), 0).expect("an entry");
            assert_close!(of(&left), implicit((of(&x), &w), |(x, w)| w.matmul(x))?.dense()?, 1e-5);
            let alone = implicit((of(&y), &w), |(y, w)| y.matmul(w.t()))?.dense()?.add(of(&c))?;
            assert_close!(of(&sum), alone, 1e-5);
            assert_close!(of(&transposed), implicit((of(&c), &w), |(c, w)| w.t().matmul(c.t()))?.dense()?, 1e-5);
        }
    }
    Ok(())
}

#[test]
fn a_bfloat16_activation_on_a_float32_weight() {
    for w in every(F32, 1, &[N, K]) {
        let operands = [normal_of(Dtype::Bfloat16, 2, &[3, N]).into(), w];
        oracle(F32).values_only().check("x W", &operands, product);
        // The gradient of x is rounded to bf16, on both sides.
        Oracle::new(4e-3).check("x W", &operands, product);
    }
}

#[test]
fn a_float32_activation_on_a_bfloat16_weight_leaves_out_its_rounding() {
    for w in every(Dtype::Bfloat16, 1, &[N, K]) {
        let operands = [normal(2, &[3, N]).into(), w];
        oracle(Dtype::Bfloat16).values_only().check("x W", &operands, product);
    }
    // With the rounding it would be the dense product.
    for w in both(Dtype::Bfloat16, 1, &[N, K]) {
        let differs =
            oracle(F32).compare("x W", &[normal(2, &[3, N]).into(), w], product).expect_err("nothing is rounded");
        assert!(differs.to_string().contains("has the relative error"), "{differs}");
    }
}

#[test]
fn nothing_is_materialized() {
    for w in every(F32, 1, &[N, K]) {
        let (y, counters) = Counters::during(|| {
            let _deny = Policy::Deny.scope();
            implicit((normal(2, &[3, K]), w), |(x, w)| x.matmul(w.t()))
        });
        y.expect("is handled");
        assert_eq!((counters.seen, counters.handled, counters.materialized), (2, 2, 0));
    }
}

#[test]
fn activations_of_8_bits_are_close_and_have_the_gradient_of_the_float_product() {
    let w = normal(1, &[N, K]);
    let types: [(Value, Value); 7] = [
        pair(Nf4Array::quantize(&w, 64), Nf4Array::with_int8_activations),
        pair(Nf4Array::quantize(&w, Nf4 { block: 64, double: true }), Nf4Array::with_int8_activations),
        pair(Fp4Array::quantize(&w, 64), Fp4Array::with_int8_activations),
        pair(Int8Array::quantize(&w, Granularity::Row), Int8Array::with_int8_activations),
        pair(AffineArray::quantize(&w, Affine { bits: 4, group: 32 }), AffineArray::with_int8_activations),
        pair(AffineArray::quantize(&w, Affine { bits: 8, group: 32 }), AffineArray::with_int8_activations),
        pair(KQuantArray::quantize(&w, KQuant { bits: 4 }), KQuantArray::with_int8_activations),
    ];
    let x = Value::from(normal(2, &[17, K]));
    let loss = |[x, w]: [Array; 2]| x.matmul(w.t())?.sum(None);
    for (float, rounded) in types {
        let _deny = Policy::Deny.scope();
        let forward = |w: &Value| {
            let made = implicit((&x, w), |(x, w)| x.matmul(w.t()));
            made.expect("is handled").dense().expect("dense")
        };
        let error = relative_error(&forward(&rounded), &forward(&float)).expect("floats");
        assert!(error > 1e-4 && error < 1e-2, "{rounded}: {error}");
        let gradient = |w: &Value| {
            let [dx, _] = grad_wrt([0], loss).call([x.clone(), w.clone()]).expect("has a gradient");
            dx.array().expect("dense").clone()
        };
        assert_close!(gradient(&rounded), gradient(&float), 1e-6);
        // The other orientation stays in floats.
        oracle(F32).check("x W", &[normal(3, &[5, N]).into(), rounded], product);
    }
}

/// Whoever does not know the format asks the family, which refuses where nothing would be rounded.
#[test]
fn the_family_rounds_activations_where_the_format_does() {
    let rounding = |value: &Value| value.family::<dyn Packed>().expect("is packed").rounding_activations();
    let (x, w) = (normal(2, &[17, K]), normal(1, &[N, K]));
    let product = |w: &Value| {
        let made = implicit((&x, w), |(x, w)| x.matmul(w.t()));
        made.expect("is handled").dense().expect("dense")
    };
    let (float, named) = pair(Nf4Array::quantize(&w, 64), Nf4Array::with_int8_activations);
    let erased = Value::from(rounding(&float).expect("rounds"));
    assert_close!(product(&erased), product(&named), 1e-7);
    assert!(relative_error(&product(&erased), &product(&float)).expect("floats") > 1e-4);
    let bf16: AnyFormat = "bf16".parse().expect("a format");
    let others = [
        bf16.quantize(&w).expect("quantizes"),
        Int8Array::quantize(&w, Granularity::Column).expect("quantizes").into(),
        Nf4Array::quantize(&normal(3, &[2, 8, 64]), 64).expect("quantizes").into(),
    ];
    expect_test::expect![[r#"
        bf16 has no products with activations in 8 bits
        help: leave `int8_activations` out, or use nf4, fp4, int8, affine, symmetric or k
        f32[40,96] in int8:40 is stored by columns, and its products stay in floats
        help: round the activations of matrices that are stored by rows
        f32[2,8,64] in nf4:64 is no matrix, and its products stay in floats
        help: round the activations of matrices that are stored by rows
    "#]]
    .assert_eq(&others.each_ref().map(|value| said_of(rounding(value))).concat());
}

fn pair<T: ImplicitArray + Clone>(made: Result<T>, with: fn(T) -> Result<T>) -> (Value, Value) {
    let made = made.expect("quantizes");
    (made.clone().into(), with(made).expect("has such products").into())
}
