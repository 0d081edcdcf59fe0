//! Packed arrays.

use expect_test::expect;
use mlx_rs::ops::indexing::{IntoStrideBy, TryIndexMutOp, TryIndexOp};
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Bf16, Nf4, Parts};
use tacit_arrays::{Batched, Bf16Array, Constant, Linear, Nf4Array, Nvfp4Array, Packed, Product, Scaled, Stored, cut};
use tacit_core::extra_ops::dynamic_slice;
use tacit_core::primitives::{AddMM, GatherMM};
use tacit_core::{Aval, ImplicitArray, Materialize, Result, Value};

use super::{declined, product, rows, x};
use crate::messages::said_of;
use crate::operands::{affine, mxfp4, nf4, normal, normal_of};
use crate::structured::low_rank;

const F32: Dtype = Dtype::Float32;

fn matrix() -> Value {
    nf4(&normal(1, &[8, 64]), 64)
}

/// Two matrices of 8 rows of 64.
fn two() -> Value {
    nf4(&normal(1, &[2, 8, 64]), 64)
}

/// Small matrices, of which one block has several.
fn in_one_block(shape: &[i32]) -> Value {
    nf4(&normal(1, shape), 32)
}

/// A matrix whose scales are nf4 themselves.
fn of_packed_scales() -> Value {
    let plain = Nf4Array::quantize(&normal(2, &[64, 64]), 64).expect("quantizes");
    let scales = nf4(plain.scales().expect("scales").as_dense().expect("dense"), 32);
    let parts = Parts::new(plain.codes().clone(), scales);
    Nf4Array::from_parts(parts, 64, Aval::new(&[64, 64], F32)).expect("fits").into()
}

fn nested(shape: &[i32]) -> Value {
    Nf4Array::quantize(&normal(1, shape), Nf4 { block: 64, double: true }).expect("quantizes").into()
}

/// All scales relative to one.
fn relative() -> Value {
    Nvfp4Array::quantize_relative(&normal(1, &[16, 64]), &Array::from_f32(4.5)).expect("quantizes").into()
}

fn batch() -> Value {
    Batched::new(two(), &[4], vec![0, 1, 0, 1], false).expect("numbers of matrices").into()
}

#[test]
fn what_is_not_made_from_the_codes() {
    let halves = || Value::from(Bf16Array::quantize(&normal(1, &[8, 64]), Bf16).expect("quantizes"));
    let scaled = || Value::from(Scaled::new(low_rank(), &Array::from_f32(2.0)).expect("a scalar"));
    expect![[r#"
        W / 2 + x
            declined: scaled_add: a sum with a quotient is not made from the codes
        2 L + x
            declined: scaled_add: what is scaled has no codes
        - of powers of two
            declined: linear_negative: the scales are no floats that another number could scale
        - of values
            declined: linear_negative: the codes are the values, and have no scales
        - of packed scales
            declined: linear_negative: the scales are of a type that is not known here
        as integers
            declined: linear_astype: only f32, bf16 and f16 are read as views
        as the product of a batch
            declined: linear_matmul: f32[1,2,3,5] is not a matrix, nor a stack of them
    "#]]
    .assert_eq(&declined(&[
        ("W / 2 + x", vec![mxfp4(&normal(1, &[8, 64])), x(&[8, 64])], |a| {
            Ok(a[0].divide(Array::from_f32(2.0))?.add(&a[1])?)
        }),
        ("2 L + x", vec![scaled(), x(&[8, 9])], |a| Ok(a[0].add(&a[1])?)),
        ("- of powers of two", vec![mxfp4(&normal(1, &[8, 64]))], |a| Ok(a[0].negative()?)),
        ("- of values", vec![halves()], |a| Ok(a[0].negative()?)),
        ("- of packed scales", vec![of_packed_scales()], |a| Ok(a[0].negative()?)),
        ("as integers", vec![matrix()], |a| Ok(a[0].as_dtype(Dtype::Int32)?)),
        ("as the product of a batch", vec![in_one_block(&[1, 2, 3, 5]), x(&[1, 2, 4, 3])], |a| Ok(a[1].matmul(&a[0])?)),
    ]));
}

#[test]
fn joins() {
    let other = nf4(&normal(2, &[64, 8]), 64);
    expect![[r#"
        with a dense array
            declined: packed_concatenate: the parts are of several types
        with a transpose
            declined: packed_concatenate: the parts differ in their formats, or in whether they are transposed or round activations
        of other blocks
            declined: packed_concatenate: the parts have different formats: nf4:64 and nf4:32
        inside a block
            declined: packed_concatenate: a part does not end with a block
        of relative scales
            declined: packed_concatenate: each part has a global scale of its own
        of nested scales
            declined: packed_concatenate: the scales are packed themselves
    "#]].assert_eq(&declined(&[
        ("with a dense array", vec![matrix(), x(&[8, 64])], |a| Ok(ops::concatenate(&[&a[0], &a[1]], 0)?)),
        ("with a transpose", vec![matrix(), other], |a| Ok(ops::concatenate(&[&a[0], &a[1].t()], 0)?)),
        ("of other blocks", vec![matrix(), in_one_block(&[8, 64])], |a| Ok(ops::concatenate(&[&a[0], &a[1]], 0)?)),
        ("inside a block", vec![in_one_block(&[8, 40]), in_one_block(&[8, 40])], |a| {
            Ok(ops::concatenate(&[&a[0], &a[1]], 1)?)
        }),
        ("of relative scales", vec![relative(), relative()], |a| Ok(ops::concatenate(&[&a[0], &a[1]], 0)?)),
        ("of nested scales", vec![nested(&[8, 64]), nested(&[8, 64])], |a| Ok(ops::concatenate(&[&a[0], &a[1]], 0)?)),
    ]));
}

#[test]
fn shapes_and_slices() {
    expect![[r#"
        transpose, reshaped
            declined: packed_reshape: the codes of a transposed view lie in another order
        groups that are cut
            declined: packed_reshape: a group would be cut
        half a block
            declined: packed_slice: the slice does not begin and end with a block
        one column
            declined: packed_slice: the slice does not begin and end with a block
            declined: cut_slice: Nf4(f32[8,64]) in blocks of 64 is not cut from 0 to 1 along axis 1
            declined: linear_slice: no view of tacit.Nf4 has a product
        every other row
            declined: packed_slice: only ranges without steps are cut as a view
            declined: cut_slice: only ranges without steps are cut as a view
            declined: linear_slice: only ranges without steps are cut as a view
        packed scales
            declined: packed_slice: the scales are of a type that is not known here
            declined: cut_slice: Nf4(f32[64,64]) in blocks of 64 is not cut from 0 to 32 along axis 0
            declined: linear_slice: no view of tacit.Nf4 has a product
        matrices in another order
            declined: linear_transpose: only the last two axes are transposed as a view
    "#]]
    .assert_eq(&declined(&[
        ("transpose, reshaped", vec![matrix()], |a| Ok(a[0].t().reshape(&[-1])?)),
        ("groups that are cut", vec![affine(&normal(1, &[4, 64]), 64, 4)], |a| Ok(a[0].reshape(&[16, 16])?)),
        ("half a block", vec![matrix()], |a| Ok(a[0].try_index((.., ..32))?)),
        ("one column", vec![matrix()], |a| Ok(a[0].try_index((.., ..1))?)),
        ("every other row", vec![matrix()], |a| Ok(a[0].try_index((..).stride_by(2))?)),
        ("packed scales", vec![of_packed_scales()], |a| Ok(a[0].try_index(..32)?)),
        ("matrices in another order", vec![in_one_block(&[2, 3, 5])], |a| Ok(a[0].transpose_axes(&[1, 0, 2])?)),
    ]));
}

#[test]
fn batches() {
    expect![[r#"
        axes
            declined: linear_transpose: an axis of the matrices becomes one of the batch
        flat
            declined: batched_reshape: the matrices would be cut
        columns
            declined: batched_slice: the rows of the stored matrices would be cut
        rows
            declined: linear_broadcast: rows or columns of the matrices are repeated
        one block
            declined: linear_broadcast: a block belongs to several of its matrices
        of no codes
            declined: linear_broadcast: it is not packed
    "#]]
    .assert_eq(&declined(&[
        ("axes", vec![two()], |a| Ok(a[0].transpose_axes(&[1, 0, 2])?)),
        ("flat", vec![batch()], |a| Ok(a[0].reshape(&[-1])?)),
        ("columns", vec![batch()], |a| Ok(a[0].try_index((.., .., ..32))?)),
        ("rows", vec![nf4(&normal(1, &[2, 1, 64]), 64)], |a| Ok(ops::broadcast_to(&a[0], &[2, 8, 64])?)),
        ("one block", vec![in_one_block(&[2, 3, 5])], |a| Ok(ops::broadcast_to(&a[0], &[4, 2, 3, 5])?)),
        ("of no codes", vec![low_rank()], |a| Ok(ops::broadcast_to(&a[0], &[2, 8, 9])?)),
    ]));
    let half = Batched::new(nf4(&normal_of(Dtype::Bfloat16, 1, &[2, 8, 64]), 64), &[2], vec![1, 0], false);
    let half = half.expect("numbers of matrices");
    let said = [
        product(batch(), Product::Rows, rows()),
        product(batch(), Product::Right, x(&[3, 2, 8])),
        said_of(half.cast(F32)),
    ];
    expect![[r#"
        declined: rows are not taken of its parts
        declined: f32[3,2,8] is not of the batch of f32[4,8,64]
        declined: a rounding must show
    "#]]
    .assert_eq(&said.concat());
}

#[test]
fn writes() {
    let buffer = || nf4(&normal(1, &[16, 64]), 64);
    let columns = || nf4(&normal(2, &[64, 4]), 32);
    expect![[r#"
        a part of rows, read
            declined: packed_dynamic_slice: a row would be cut
        the ends of rows
            declined: packed_slice_update: only ranges of whole rows are written
        the starts of rows
            declined: packed_slice_update: f32[4,32] is no whole rows of f32[16,64]
        places in rows
            declined: packed_scatter_axis: rows are written whole, and where all of them agree
        zeros
            declined: packed_slice_update: what is written has no codes
        a transpose
            declined: packed_slice_update: what is written is the transpose of what is stored
        other blocks
            declined: packed_slice_update: what is written has other static fields
        rows of relative scales
            declined: packed_slice_update: scales are relative to one of the whole array
        relative scales
            declined: packed_slice_update: the scales are relative to a magnitude of the whole array
    "#]]
    .assert_eq(&declined(&[
        ("a part of rows, read", vec![buffer()], |a| {
            dynamic_slice(&a[0], &Array::from_slice(&[5i32], &[1]), &[0], &[4, 32])
        }),
        ("the ends of rows", vec![buffer(), x(&[4, 32])], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((5..9, 32..), &a[1])?;
            Ok(w)
        }),
        ("the starts of rows", vec![buffer(), x(&[4, 32])], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((5..9, ..32), &a[1])?;
            Ok(w)
        }),
        ("places in rows", vec![buffer(), x(&[16, 1])], |a| {
            Ok(a[0].put_along_axis(ops::zeros::<i32>(&[16, 1])?, &a[1], 1)?)
        }),
        ("zeros", vec![buffer(), Constant::zeros(&[4, 64], F32).expect("zeros").into()], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((5..9, ..), &a[1])?;
            Ok(w)
        }),
        ("a transpose", vec![buffer(), columns()], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((5..9, ..), a[1].t())?;
            Ok(w)
        }),
        ("other blocks", vec![buffer(), nf4(&normal(2, &[4, 64]), 32)], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((5..9, ..), &a[1])?;
            Ok(w)
        }),
        ("rows of relative scales", vec![buffer(), relative()], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((5..9, ..), a[1].try_index(..4)?)?;
            Ok(w)
        }),
        ("relative scales", vec![relative(), x(&[4, 64])], |a| {
            let mut w = a[0].clone();
            w.try_index_mut((5..9, ..), &a[1])?;
            Ok(w)
        }),
    ]));
}

#[test]
fn products_that_are_asked_for() {
    let w = low_rank();
    let w = w.family::<dyn Linear>().expect("has products");
    let (sum, chosen) = (AddMM { alpha: 1.0, beta: 1.0 }, GatherMM { left_sorted: false, right_sorted: false });
    let vector = nf4(&normal(1, &[64]), 64);
    let vector = vector.family::<dyn Linear>().expect("has products");
    let said = [
        said_of(w.product_widely(Product::Right, &x(&[2, 8]))),
        said_of(w.sum(&sum, Product::Right, &x(&[2, 8]), &x(&[9]))),
        said_of(w.gather_mm(&chosen, &x(&[2, 8]), &rows(), &rows())),
        said_of(vector.gather_mm(&chosen, &x(&[1, 64]), &rows(), &rows())),
        product(matrix(), Product::Left, x(&[64])),
        product(in_one_block(&[1, 2, 3, 5]), Product::Right, x(&[4, 3])),
        said_of(cut(&of_packed_scales(), 1, 0..32)),
    ];
    expect![[r#"
        declined: it is read in a wider type
        declined: the product and then the sum serve as well
        declined: it has no products of chosen matrices
        declined: vectors have no products to choose from
        declined: the right side is a vector
        declined: f32[1,2,3,5] is not a matrix, nor a stack of them
        Nf4(f32[64,64]) in blocks of 64 is not cut from 0 to 32 along axis 1
        help: cut it at multiples of 32, where codes and scales come apart
    "#]]
    .assert_eq(&said.concat());
}

/// A type of another crate that lends the codes of an array, and neither quantizes nor rounds.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "declined.Lending", family(Packed, Linear))]
struct Lending {
    inner: Value,
    #[implicit(aux)]
    aval: Aval,
}

impl Lending {
    fn of(inner: Value) -> Self {
        Self { aval: inner.aval().expect("an aval"), inner }
    }

    fn codes(&self) -> &dyn Packed {
        self.inner.family().expect("is packed")
    }
}

impl Materialize for Lending {
    fn materialize(&self) -> Result<Value> {
        self.inner.opened()
    }
}

impl Packed for Lending {
    fn stored(&self) -> Stored {
        self.codes().stored()
    }

    fn restored(&self, stored: Stored) -> Box<dyn ImplicitArray> {
        Box::new(Self::of(self.codes().restored(stored).into()))
    }
}

#[test]
fn what_a_type_of_another_crate_leaves_out() {
    let w = Lending::of(matrix());
    let said = [said_of(w.encoded(&normal(2, &[4, 64]))), said_of(w.rounding_activations())];
    expect![[r#"
        declined: the type does not quantize f32[4,64]
        declined: the type has no products with activations in 8 bits
    "#]]
    .assert_eq(&said.concat());
    expect![[r#"
        floats that are written
            declined: packed_slice_update: the type does not quantize f32[4,64]
    "#]]
    .assert_eq(&declined(&[("floats that are written", vec![w.into(), x(&[4, 64])], |a| {
        let mut w = a[0].clone();
        w.try_index_mut((2..6, ..), &a[1])?;
        Ok(w)
    })]));
}
