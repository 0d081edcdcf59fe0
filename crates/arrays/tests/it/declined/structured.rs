//! Matrices of few numbers, adapters, and what is trained.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Nf4, Symmetric};
use tacit_arrays::{
    ActivationGranularity, AsStored, Constant, Diagonal, Identity, Int8Inputs, Int8Training, Linear, LowRank, Product,
    Sparse24, SymmetricArray, ste,
};
use tacit_conformance::opaque::Opaque;
use tacit_core::primitives::{AddMM, GatherMM};
use tacit_core::{Error, Value, implicit};

use super::{declined, product, rows, x};
use crate::adapters::lora_set_on;
use crate::messages::said_of;
use crate::operands::{nf4, normal, normal_of};
use crate::structured::{constant, diagonal, identity, lora, lora_on, low_rank, masked, sparse24};

const F32: Dtype = Dtype::Float32;

fn rank_of_eight() -> Value {
    LowRank::new(normal(1, &[4, 8]), normal(2, &[8, 6])).expect("a product").into()
}

fn packed_factor() -> Value {
    LowRank::new(nf4(&normal(1, &[64, 2]), 32), normal(2, &[2, 64])).expect("a product").into()
}

fn groups(shape: &[i32]) -> Value {
    Sparse24::prune(&normal(1, shape)).expect("groups of four").into()
}

#[test]
fn constants_and_diagonals() {
    let places = || Value::from(Constant::zeros(&[3], Dtype::Uint32).expect("zeros"));
    let none = || Value::from(Constant::zeros(&[0, 4], F32).expect("zeros"));
    let integers = || Value::from(Identity::new(5, Dtype::Int32).expect("rows"));
    expect![[""]].assert_eq(&declined(&[
        ("implicit rows", vec![constant(), places()], |a| Ok(a[0].take_axis(&a[1], 0)?)),
        ("whether all are true", vec![constant()], |a| Ok(a[0].all(None)?)),
        ("a sum of nothing", vec![none()], |a| Ok(a[0].sum_axis(0, None)?)),
        ("- of integers", vec![integers()], |a| Ok(a[0].negative()?)),
        ("a diagonal as integers", vec![diagonal()], |a| Ok(a[0].as_dtype(Dtype::Int32)?)),
        ("a quotient of diagonals", vec![diagonal(), diagonal()], |a| Ok(a[0].divide(&a[1])?)),
        ("a mask as integers", vec![masked()], |a| Ok(a[0].as_dtype(Dtype::Int32)?)),
    ]));
}

#[test]
fn low_ranks() {
    expect![[""]].assert_eq(&declined(&[
        ("a product by many factors", vec![x(&[100, 4]), rank_of_eight()], |a| Ok(a[0].matmul(&a[1])?)),
        ("times a matrix", vec![low_rank(), x(&[8, 9])], |a| Ok(a[0].multiply(&a[1])?)),
        ("a sum of many factors", vec![rank_of_eight(), rank_of_eight()], |a| Ok(a[0].add(&a[1])?)),
        ("a sum of packed factors", vec![packed_factor(), packed_factor()], |a| Ok(a[0].add(&a[1])?)),
    ]));
}

#[test]
fn groups_of_four() {
    expect![[""]].assert_eq(&declined(&[
        ("three axes", vec![groups(&[2, 3, 8])], |a| Ok(a[0].transpose_axes(&[0, 2, 1])?)),
        ("as integers", vec![sparse24()], |a| Ok(a[0].as_dtype(Dtype::Int32)?)),
        ("rows of the transpose", vec![sparse24()], |a| Ok(a[0].t().take_axis(Array::from_slice(&[1u32], &[1]), 0)?)),
        ("the transpose of a row", vec![groups(&[1, 8])], |a| Ok(a[0].t().squeeze_axes(&[1])?)),
        ("a sum of rows", vec![sparse24()], |a| Ok(a[0].sum_axis(0, None)?)),
        ("a join", vec![sparse24(), x(&[4, 12])], |a| Ok(ops::concatenate(&[&a[0], &a[1]], 0)?)),
    ]));
}

#[test]
fn products_that_are_asked_for() {
    let stored = AsStored::new(lora_on(nf4(&normal(1, &[8, 64]), 64)), Nf4::from(64)).expect("an adapter");
    let set = lora_set_on(&nf4(&normal(1, &[8, 64]), 64), Array::from_slice(&[1u32, 0], &[2]));
    let half = |seed, shape: &[i32]| normal_of(Dtype::Bfloat16, seed, shape);
    let thin = LowRank::new(half(1, &[8, 2]), half(2, &[2, 9])).expect("a product");
    let adapter = lora();
    let adapter = adapter.family::<dyn Linear>().expect("has products");
    let said = [
        product(constant(), Product::Rows, rows()),
        product(diagonal(), Product::Rows, rows()),
        product(identity(), Product::Rows, rows()),
        product(set, Product::Rows, rows()),
        said_of(stored.transposed(&[0, 1])),
        said_of(adapter.cast(Dtype::Float16)),
        said_of(thin.cast(F32)),
        said_of(Constant::ones(&[4, 6], F32).expect("ones").transposed(&[1, 0])),
        said_of(adapter.gather_mm(
            &GatherMM { left_sorted: false, right_sorted: false },
            &x(&[1, 8]),
            &rows(),
            &rows(),
        )),
        said_of(Linear::sum(&stored, &AddMM { alpha: 1.0, beta: 1.0 }, Product::Right, &x(&[2, 8]), &x(&[64]))),
    ];
    expect![[""]].assert_eq(&said.concat());
}

fn rounding() -> Value {
    Int8Inputs::new(nf4(&normal(1, &[8, 64]), 64), ActivationGranularity::Token).expect("a float matrix").into()
}

fn in_eight_bits(shape: &[i32]) -> Value {
    Int8Training::new(normal(1, shape)).expect("a float matrix").into()
}

#[test]
fn products_of_integers() {
    let row = in_eight_bits(&[1, 64]);
    expect![[""]].assert_eq(&declined(&[
        ("the transpose", vec![rounding()], |a| Ok(a[0].t())),
        ("rows, repeated", vec![row], |a| Ok(ops::broadcast_to(&a[0], &[8, 64])?)),
    ]));
    let w = in_eight_bits(&[8, 64]);
    let wide = w.family::<dyn Linear>().expect("has products");
    let said = [
        product(rounding(), Product::Rows, rows()),
        product(in_eight_bits(&[8, 64]), Product::Left, x(&[64])),
        said_of(wide.product_widely(Product::Rows, &rows().into())),
        said_of(Int8Training::new(nf4(&normal(1, &[8, 64]), 64))),
        said_of(Int8Training::new(ops::zeros::<i32>(&[8, 64]).expect("zeros"))),
    ];
    expect![[""]].assert_eq(&said.concat());
}

/// Both have a derivative that is not that of the same op on the master.
#[test]
fn derivatives_that_a_master_does_not_have() {
    let keys = ste(normal(1, &[2, 5, 64]), |w| Ok::<_, Error>(nf4(w, 64))).expect("quantizes");
    let w = || ste(normal(1, &[8, 64]), |w| Ok::<_, Error>(nf4(w, 64))).expect("quantizes");
    let hidden = Value::from(Opaque::new(normal(2, &[3, 64])));
    expect![[""]].assert_eq(&declined(&[
        ("scores", vec![x(&[2, 3, 64]), keys], |a| Ok(a[0].matmul(a[1].swap_axes(-1, -2)?)?)),
        ("beside an implicit array", vec![hidden, w()], |a| Ok(a[0].matmul(a[1].t())?)),
        ("a product with a diagonal", vec![Diagonal::new(normal(1, &[8])).expect("a vector").into(), w()], |a| {
            Ok(a[0].matmul(&a[1])?)
        }),
    ]));
}

#[test]
fn a_transpose_is_not_made_affine() {
    let w = SymmetricArray::quantize(&normal_of(F32, 1, &[8, 64]), Symmetric { bits: 8, group: 32 });
    let turned = implicit(w.expect("quantizes"), |w| Ok::<_, Error>(w.t())).expect("turns");
    expect![[""]].assert_eq(&said_of(turned.downcast::<SymmetricArray>().expect("is a view").to_affine()));
}
