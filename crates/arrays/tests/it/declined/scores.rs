//! Scores of attention.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::{Batched, Nf4Array, Scores};
use tacit_core::Value;

use super::{declined, x};
use crate::messages::said_of;
use crate::operands::{nf4, normal};

/// Two heads of five tokens.
fn stored() -> Value {
    nf4(&normal(1, &[2, 5, 64]), 64)
}

fn heads(matrices: [usize; 2], transposed: bool) -> Batched {
    Batched::new(stored(), &[2], matrices.to_vec(), transposed).expect("numbers of matrices")
}

#[test]
fn what_scores_do_not_wait_for() {
    let operands = || vec![x(&[2, 3, 64]), stored()];
    expect![[r#"
        keys that are not transposed
            declined: scores_of: the keys are not transposed
        a factor of each token
            declined: scores_multiply: f32[5] is not a scalar
            declined: linear_multiply: f32[5] is not a scalar
        weights, and a sum
            declined: scores_add: only floats are added, and before anything is hidden
        a sum, and a mask
            declined: scores_select: the scores have a mask or are weights already
        as integers
            declined: scores_astype: only f32, bf16 and f16 are computed
            declined: linear_astype: only f32, bf16 and f16 are read as views
        weights of weights
            declined: scores_softmax: they are weights already
    "#]]
    .assert_eq(&declined(&[
        ("keys that are not transposed", vec![x(&[2, 3, 5]), heads([1, 0], false).into()], |a| Ok(a[0].matmul(&a[1])?)),
        ("a factor of each token", operands(), |a| {
            Ok(a[0].matmul(a[1].swap_axes(-1, -2)?)?.multiply(ops::arange::<_, f32>(None, 5, None)?)?)
        }),
        ("weights, and a sum", operands(), |a| {
            let scores = a[0].matmul(a[1].swap_axes(-1, -2)?)?;
            Ok(ops::softmax_axis(&scores, -1, None)?.add(ops::arange::<_, f32>(None, 5, None)?)?)
        }),
        ("a sum, and a mask", operands(), |a| {
            let scores = a[0].matmul(a[1].swap_axes(-1, -2)?)?.add(ops::arange::<_, f32>(None, 5, None)?)?;
            let seen = Array::from_slice(&[true, true, false, true, true], &[5]);
            Ok(ops::select(&seen, &scores, Array::from_f32(-1e30))?)
        }),
        ("as integers", operands(), |a| Ok(a[0].matmul(a[1].swap_axes(-1, -2)?)?.as_dtype(Dtype::Int32)?)),
        ("weights of weights", operands(), |a| {
            let scores = a[0].matmul(a[1].swap_axes(-1, -2)?)?;
            Ok(ops::softmax_axis(ops::softmax_axis(&scores, -1, None)?, -1, None)?)
        }),
    ]));
}

#[test]
fn values_that_scores_do_not_weight() {
    let keys = || Value::from(heads([0, 1], true));
    expect![[r#"
        without a softmax
            declined: scores_matmul: the scores are no weights
            declined: linear_matmul: the other side is Scores(f32[2,3,5]), which is not dense
        of other heads
            declined: scores_matmul: the values are of another batch than the keys
            declined: linear_matmul: the other side is Scores(f32[2,3,5]), which is not dense
            declined: scores_of: the keys are not transposed
        transposed
            declined: scores_matmul: the values are transposed
            declined: linear_matmul: the other side is Scores(f32[2,3,5]), which is not dense
        of no codes
            declined: scores_matmul: it is not packed
            declined: linear_matmul: the other side is Scores(f32[2,3,5]), which is not dense
            declined: linear_matmul: it is read in a wider type
    "#]]
    .assert_eq(&declined(&[
        ("without a softmax", vec![x(&[2, 3, 64]), keys(), stored()], |a| Ok(a[0].matmul(&a[1])?.matmul(&a[2])?)),
        ("of other heads", vec![x(&[2, 3, 64]), keys(), heads([1, 0], false).into()], |a| {
            Ok(ops::softmax_axis(a[0].matmul(&a[1])?, -1, None)?.matmul(&a[2])?)
        }),
        ("transposed", vec![x(&[2, 3, 64]), keys(), nf4(&normal(2, &[2, 64, 5]), 32)], |a| {
            Ok(ops::softmax_axis(a[0].matmul(&a[1])?, -1, None)?.matmul(a[2].swap_axes(-1, -2)?)?)
        }),
        ("of no codes", vec![x(&[2, 3, 64]), keys(), heads([1, 0], true).into()], |a| {
            let values = a[2].swap_axes(-1, -2)?.as_dtype(Dtype::Float16)?.as_dtype(Dtype::Float32)?;
            Ok(ops::softmax_axis(a[0].matmul(&a[1])?, -1, None)?.matmul(values)?)
        }),
    ]));
}

#[test]
fn queries_of_other_types_and_batches() {
    let integers = ops::zeros::<i32>(&[2, 3, 64]).expect("zeros");
    let whole = Nf4Array::quantize(&normal(1, &[2, 5, 64]), 64).expect("quantizes");
    let one = Batched::new(whole, &[1], vec![1], true).expect("numbers of matrices");
    let said = [
        said_of(Scores::new(&integers, heads([0, 1], true))),
        said_of(Scores::new(&normal(2, &[2, 3, 5]), heads([0, 1], false))),
        said_of(Scores::new(&normal(2, &[2, 3, 64]), one)),
    ];
    expect![[r#"
        declined: only f32, bf16 and f16 are multiplied
        declined: the keys are not transposed
        declined: f32[2,3,64] is not of the batch of f32[1,64,5]
    "#]]
    .assert_eq(&said.concat());
}
