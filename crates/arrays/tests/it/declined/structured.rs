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
    expect![[r#"
        implicit rows
            declined: constant_moving: implicit indices are not looked at
            declined: linear_gather: the other side is Constant(u32[3]), which is not dense
        whether all are true
            declined: constant_reduction: And of equal elements is not known
        a sum of nothing
            declined: constant_reduction: there are no elements to reduce, or more than a float counts
        - of integers
            declined: linear_negative: only float arrays are scaled
        a diagonal as integers
            declined: linear_astype: only float arrays are diagonal
        a quotient of diagonals
            declined: diagonal_binary: Divide may make more than zero of zeros
        a mask as integers
            declined: masked_astype: only float arrays are masked
            declined: linear_astype: only f32, bf16 and f16 are read as views
    "#]]
    .assert_eq(&declined(&[
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
    expect![[r#"
        a product by many factors
            declined: linear_matmul: a matrix f32[4,6] of rank 8 is cheaper when it is built
        times a matrix
            declined: low_rank_multiply: f32[8,9] is no scalar, row or column
            declined: linear_multiply: f32[8,9] is not a scalar
        a sum of many factors
            declined: low_rank_add: the factors together are larger than the sum
        a sum of packed factors
            declined: low_rank_add: implicit factors are not put side by side
    "#]]
    .assert_eq(&declined(&[
        ("a product by many factors", vec![x(&[100, 4]), rank_of_eight()], |a| Ok(a[0].matmul(&a[1])?)),
        ("times a matrix", vec![low_rank(), x(&[8, 9])], |a| Ok(a[0].multiply(&a[1])?)),
        ("a sum of many factors", vec![rank_of_eight(), rank_of_eight()], |a| Ok(a[0].add(&a[1])?)),
        ("a sum of packed factors", vec![packed_factor(), packed_factor()], |a| Ok(a[0].add(&a[1])?)),
    ]));
}

#[test]
fn groups_of_four() {
    expect![[r#"
        three axes
            declined: sparse24_transpose: only matrices are transposed as a view
            declined: linear_transpose: no view of tacit.Sparse24 has a product
        as integers
            declined: sparse24_astype: only float arrays are sparse
            declined: linear_astype: only f32, bf16 and f16 are read as views
        rows of the transpose
            declined: sparse24_gather: elements of groups are not gathered from the parts
        the transpose of a row
            declined: sparse24_squeeze: the matrix is transposed
        a sum of rows
            declined: sparse24_sum: a group is not summed as a whole
        a join
            declined: linear_concatenate: no part has a product
    "#]]
    .assert_eq(&declined(&[
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
    expect![[r#"
        declined: rows are moved elements
        declined: rows are built of zeros
        declined: rows are built of zeros
        declined: 2 adapters are in use at a time
        declined: only matrices are quantized the other way round
        declined: the base may be beyond the range of f16 where the sum is not
        declined: a wider type would show the rounding of the narrower one
        declined: a view serves as well
        declined: it has no products of chosen matrices
        declined: the product and then the sum serve as well
    "#]]
    .assert_eq(&said.concat());
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
    expect![[r#"
        the transpose
            declined: int8_inputs_moving: its products are those of a transposed matrix
        rows, repeated
            declined: int8_training_broadcast: rows or columns of the matrix are repeated
            declined: linear_broadcast: it is not packed
    "#]]
    .assert_eq(&declined(&[
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
    expect![[r#"
        declined: rows are those of the matrix
        declined: the right side is a vector
        declined: it is read in a wider type
        Nf4(f32[8,64]) has no products of 8-bit integers
        help: give a matrix of floats, or one in the format int8 or int8:columns
        i32[8,64] cannot be int8
        help: quantize an f32, f16 or bf16 array
    "#]]
    .assert_eq(&said.concat());
}

/// Both have a derivative that is not that of the same op on the master.
#[test]
fn derivatives_that_a_master_does_not_have() {
    let keys = ste(normal(1, &[2, 5, 64]), |w| Ok::<_, Error>(nf4(w, 64))).expect("quantizes");
    let w = || ste(normal(1, &[8, 64]), |w| Ok::<_, Error>(nf4(w, 64))).expect("quantizes");
    let hidden = Value::from(Opaque::new(normal(2, &[3, 64])));
    expect![[r#"
        scores
            declined: linear_transpose: no view of tacit.Ste has a product
            declined: tacit.Ste: the result is implicit, and its derivative not that of the same view of a master
        beside an implicit array
            declined: linear_transpose: no view of tacit.Ste has a product
            declined: tacit.Ste: the children of the other implicit operand would get no gradient
            declined: linear_matmul: the other side is Opaque(f32[3,64]), which is not dense
        a product with a diagonal
            declined: linear_multiply: f32[8,1] is not a scalar
    "#]]
    .assert_eq(&declined(&[
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
    expect![[r#"
        f32[64,8] is the transpose of what is stored
        help: make the affine array before it is transposed
    "#]]
    .assert_eq(&said_of(turned.downcast::<SymmetricArray>().expect("is a view").to_affine()));
}
