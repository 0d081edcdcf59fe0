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
    expect![[r#"
        a part that is cut
            declined: concat_split: a part would be cut
        parts that are split
            declined: concat_split: the parts themselves would be split
        another shape
            declined: concat_reshape: the axis of the parts is lost
        a row, repeated
            declined: concat_broadcast: the parts would be repeated along their own axis
            declined: linear_broadcast: it is not packed
        products of stacks
            declined: linear_matmul: the parts are not joined along an axis of the matrices
        rows of a batch
            declined: repeated_moving: an index may be outside
            declined: linear_gather: rows are moved elements
        a flat batch
            declined: repeated_moving: the matrix would be cut, or be no matrix
        a batch as integers
            declined: linear_astype: only f32, bf16 and f16 are read as views
        a step beyond the end
            declined: constant_moving: its ends are not those of what it leaves
            declined: cut_slice: only ranges without steps are cut as a view
            declined: linear_slice: only ranges without steps are cut as a view
        backwards
            declined: constant_moving: the slice runs backwards
            declined: cut_slice: only ranges without steps are cut as a view
            declined: linear_slice: only ranges without steps are cut as a view
    "#]]
    .assert_eq(&declined(&[
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
    expect![[r#"
        a join with dense halves
            declined: rotated_concatenate: rotated rows may be beyond the range of f16
        a join with what is not rotated
            declined: rotated_concatenate: Nf4(f32[8,64]) is not rotated alike
        a join along the axis
            declined: rotated_concatenate: the parts are joined along the rotated axis
        a part of rows
            declined: rotated_update: parts of rotated rows are replaced
        a cut
            declined: view_moving: Slice does not keep axis 1 whole
            declined: cut_slice: f32[8,64] is rotated along axis 1, which cannot be cut
        rows that are added
            declined: rotated_update: rotated sums may be beyond the range of f16
        rows at places
            declined: rotated_update: Scatter does not write whole rows
        halves in packed scales
            declined: rotated_update: what is built rotated may be beyond the range of f16
            declined: packed_slice_update: the scales are packed themselves
    "#]]
    .assert_eq(&declined(&[
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
    expect![[r#"
        declined: rows are moved elements
        declined: the right side is a vector
        declined: whole matrices are rotated
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn scales_and_slices() {
    let scaled = Scaled::new(nf4(&normal_of(HALF, 1, &[8, 64]), 64), &Array::from_f32(2.0)).expect("a scalar");
    expect![[r#"
        a sum of halves
            declined: scaled_sum: the sum may be beyond the range of f16 before it is scaled
        channels that are cut
            declined: view_moving: Reshape does not keep axis 1 whole
    "#]]
    .assert_eq(&declined(&[
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
    expect![[r#"
        declined: rows are moved elements
        declined: the right side is a vector
        declined: whole matrices are scaled
        declined: another axis than that of the output is cut
        declined: less than half of the product is wanted
        declined: nothing is gathered
        what is scaled is i32[2,3], which is not float
        help: give an f32, f16 or bf16 array
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn stacks_and_transposes() {
    let experts = |count: usize| Stacked::new(vec![nf4(&normal(1, &[8, 32]), 64); count]).expect("fits");
    let vectors = Stacked::new(vec![nf4(&normal(1, &[64]), 64); 2]).expect("fits");
    let rows_of_one = Stacked::new(vec![nf4(&normal(1, &[1, 64]), 64); 2]).expect("fits");
    let many = Value::from(experts(65));
    expect![[r#"
        chosen of many
            declined: linear_gather_mm: f32[65,8,32] is not a stack of at most 64 matrices
        another axis of one
            declined: stacked_squeeze: only the axis of the experts is squeezed
    "#]]
    .assert_eq(&declined(&[
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
    expect![[r#"
        declined: vectors are stacked
        declined: the experts are no longer along the first axis
        declined: more than the last two axes are permuted
        declined: rows are moved elements
        declined: it has no products
    "#]]
    .assert_eq(&said.concat());
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
    expect![[r#"
        broadcast[shape=(2,48,96)] of Concat(f32[48,96]), f32[2,48,96] needs Concat materialized, which the policy forbids
        declined: concat_broadcast: the other operands say how often
        declined: linear_broadcast: it is not packed
        declined: broadcast_beside: it is repeated
        help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`
        broadcast[shape=(2,8,64)] of Int8Training(f32[8,64]), f32[2,8,64] needs Int8Training materialized, which the policy forbids
        declined: int8_training_broadcast: the other operands say how often
        declined: linear_broadcast: it is not packed
        declined: broadcast_beside: it is repeated
        help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`
        broadcast[shape=(3,64)] of Nf4(f32[64]), f32[3,64] needs Nf4 materialized, which the policy forbids
        declined: linear_broadcast: a block belongs to several of its matrices
        declined: broadcast_beside: it is repeated
        help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`
        broadcast_axes[ignore_axes=(-2,-1)] of Masked(f32[4,6]), f32[2,3,4] needs Masked materialized, which the policy forbids
        declined: view_moving: it is repeated for a product, and has none
        declined: broadcast_axes_beside: it is repeated
        help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`
    "#]].assert_eq(&said.concat());
}
