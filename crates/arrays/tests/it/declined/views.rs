//! Views.

use expect_test::expect;
use mlx_rs::ops::indexing::{self, IntoStrideBy, TryIndexMutOp, TryIndexOp, TryIndexUpdateOp};
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::Nf4;
use tacit_arrays::{
    Concat, Int8Training, Linear, Nf4Array, Product, Repeated, Rotated, Scaled, ScaledChannels, Sliced, Sparse24,
    Stacked, Transposed,
};
use tacit_core::Value;

use super::{declined, product, rows, without_shapes, x};
use crate::messages::said_of;
use crate::operands::{affine, nf4, normal, normal_of};
use crate::structured::{constant, low_rank, masked};

const HALF: Dtype = Dtype::Float16;

fn matrix() -> Value {
    nf4(&normal(1, &[8, 64]), 64)
}

/// 40 and 8 rows of 96.
fn joined() -> Value {
    let parts = vec![nf4(&normal(1, &[40, 96]), 64), affine(&normal(2, &[8, 96]), 32, 4)];
    Concat::new(parts, 0).expect("of one width").into()
}

/// Two matrices and one, along the axis before those of each.
fn stacks() -> Value {
    let parts = vec![nf4(&normal(1, &[2, 8, 64]), 64), affine(&normal(2, &[1, 8, 64]), 32, 4)];
    Concat::new(parts, 0).expect("of one shape").into()
}

fn repeated(w: impl Into<Value>) -> Value {
    Repeated::new(w, &[2]).expect("a matrix").into()
}

fn rotated(w: Value, axis: i32) -> Value {
    Rotated::new(w, axis).expect("has a rotation").into()
}

fn half() -> Value {
    rotated(nf4(&normal_of(HALF, 1, &[8, 64]), 64), -1)
}

/// 8 first, and 64 last.
fn channels(w: Value, axis: i32) -> Value {
    let extent = if axis < 0 { 64 } else { 8 };
    ScaledChannels::new(w, &normal(3, &[extent]), axis).expect("a factor for each").into()
}

fn sliced(start: &[i32], stop: &[i32]) -> Value {
    Sliced::new(low_rank(), start, stop).expect("is in range").into()
}

#[test]
fn joined_and_repeated_matrices() {
    let row = Value::from(Concat::new(vec![nf4(&normal(1, &[1, 64]), 64)], 0).expect("one part"));
    expect![[""]].assert_eq(&declined(&[
        ("a part that is cut", vec![joined()], |a| Ok(a[0].split_at_indices(&[20], 0)?.swap_remove(0))),
        ("parts that are split", vec![joined()], |a| Ok(a[0].split_equal(2, 1)?.swap_remove(0))),
        ("another shape", vec![joined()], |a| Ok(a[0].reshape(&[24, 192])?)),
        ("a row, repeated", vec![row], |a| Ok(ops::broadcast_to(&a[0], &[8, 64])?)),
        ("products of stacks", vec![x(&[3, 5, 8]), stacks()], |a| Ok(a[0].matmul(&a[1])?)),
        ("rows of a batch", vec![repeated(matrix())], |a| Ok(a[0].take_axis(Array::from_slice(&[1u32], &[1]), 0)?)),
        ("a flat batch", vec![repeated(matrix())], |a| Ok(a[0].reshape(&[-1])?)),
        ("a batch as integers", vec![repeated(matrix())], |a| Ok(a[0].as_dtype(Dtype::Int32)?)),
        ("a step beyond the end", vec![constant()], |a| Ok(a[0].try_index((0..4).stride_by(8))?)),
        ("backwards", vec![constant()], |a| Ok(a[0].try_index((..).stride_by(-1))?)),
    ]));
}

#[test]
fn rotations() {
    let nested = Nf4Array::quantize(&normal_of(HALF, 1, &[8, 64]), Nf4 { block: 64, double: true }).expect("quantizes");
    let halves = || Value::from(normal_of(HALF, 2, &[2, 64]));
    expect![[""]].assert_eq(&declined(&[
        ("a join with dense halves", vec![half(), halves()], |a| Ok(ops::concatenate(&[&a[0], &a[1]], 0)?)),
        ("a join with what is not rotated", vec![rotated(matrix(), -1), matrix()], |a| {
            Ok(ops::concatenate(&[&a[0], &a[1]], 0)?)
        }),
        ("a join along the axis", vec![rotated(matrix(), -1), rotated(matrix(), -1)], |a| {
            Ok(ops::concatenate(&[&a[0], &a[1]], 1)?)
        }),
        ("a part of rows", vec![rotated(matrix(), -1), x(&[8, 32])], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((.., ..32), &a[1])?;
            Ok(w)
        }),
        ("a cut", vec![rotated(matrix(), -1)], |a| Ok(a[0].try_index((.., ..32))?)),
        ("rows that are added", vec![half(), halves()], |a| {
            Ok(a[0].try_index_update((2..4, ..), &a[1], indexing::UpdateMode::Add).expect("fits"))
        }),
        ("rows at places", vec![rotated(matrix(), -1), x(&[2, 64])], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((&Array::from_slice(&[3u32, 1], &[2]), ..), &a[1])?;
            Ok(w)
        }),
        ("halves in packed scales", vec![rotated(nested.into(), -1), halves()], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((2..4, ..), &a[1])?;
            Ok(w)
        }),
    ]));
    let said = [
        product(rotated(matrix(), -1), Product::Rows, rows()),
        product(rotated(matrix(), -1), Product::Left, x(&[64])),
        product(rotated(nf4(&normal(1, &[8, 5, 64]), 64), 0), Product::Right, x(&[8, 3, 5])),
    ];
    expect![[""]].assert_eq(&said.concat());
}

#[test]
fn scales_and_slices() {
    let scaled = Scaled::new(nf4(&normal_of(HALF, 1, &[8, 64]), 64), &Array::from_f32(2.0)).expect("a scalar");
    expect![[""]].assert_eq(&declined(&[
        ("a sum of halves", vec![scaled.into()], |a| Ok(a[0].sum_axis(0, None)?)),
        ("channels that are cut", vec![channels(matrix(), -1)], |a| Ok(a[0].reshape(&[16, 32])?)),
    ]));
    let said = [
        product(channels(matrix(), -1), Product::Rows, rows()),
        product(channels(matrix(), -1), Product::Left, x(&[64])),
        product(channels(nf4(&normal(1, &[8, 5, 64]), 64), 0), Product::Right, x(&[8, 3, 5])),
        product(sliced(&[2, 0], &[8, 9]), Product::Right, x(&[3, 6])),
        product(sliced(&[0, 0], &[8, 3]), Product::Right, x(&[3, 8])),
        product(sliced(&[2, 0], &[8, 9]), Product::Rows, ops::zeros::<u32>(&[0]).expect("zeros")),
        said_of(ScaledChannels::new(ops::zeros::<i32>(&[2, 3]).expect("zeros"), &normal(3, &[3]), -1)),
    ];
    expect![[""]].assert_eq(&said.concat());
}

#[test]
fn stacks_and_transposes() {
    let experts = |count: usize| Stacked::new(vec![nf4(&normal(1, &[8, 32]), 64); count]).expect("fits");
    let vectors = Stacked::new(vec![nf4(&normal(1, &[64]), 64); 2]).expect("fits");
    let rows_of_one = Stacked::new(vec![nf4(&normal(1, &[1, 64]), 64); 2]).expect("fits");
    let many = Value::from(experts(65));
    expect![[""]].assert_eq(&declined(&[
        ("chosen of many", vec![x(&[2, 1, 8]), many], |a| {
            Ok(ops::gather_mm(&a[0], &a[1], None, &Array::from_slice(&[64u32, 3], &[2]), None)?)
        }),
        ("another axis of one", vec![rows_of_one.into()], |a| Ok(a[0].squeeze_axes(&[1])?)),
    ]));
    let turned = Transposed::new(experts(2), &[1, 0, 2]).expect("a permutation");
    let unmultiplied = repeated(Sparse24::prune(&normal(1, &[8, 16])).expect("groups of four"));
    let said = [
        product(vectors, Product::Right, x(&[3, 2])),
        said_of(experts(2).transposed(&[1, 0, 2])),
        product(turned, Product::Right, x(&[8, 3, 2])),
        product(unmultiplied.clone(), Product::Rows, rows()),
        product(unmultiplied, Product::Right, nf4(&normal(2, &[2, 4, 8]), 32)),
    ];
    expect![[""]].assert_eq(&said.concat());
}

#[test]
fn what_is_broadcast_in_a_function_without_shapes() {
    let vector = nf4(&normal(1, &[64]), 64);
    let integers = Value::from(Int8Training::new(normal(1, &[8, 64])).expect("a float matrix"));
    let said = [
        without_shapes(x(&[2, 48, 96]), joined(), |(x, w)| Ok(x.add(&w)?)),
        without_shapes(x(&[2, 8, 64]), integers, |(x, w)| Ok(x.add(&w)?)),
        without_shapes(x(&[3, 64]), vector, |(x, w)| Ok(x.add(&w)?)),
        without_shapes(x(&[2, 3, 4]), masked(), |(x, w)| Ok(x.matmul(&w)?)),
    ];
    expect![[""]].assert_eq(&said.concat());
}
