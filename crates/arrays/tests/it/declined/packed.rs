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
    expect![[""]].assert_eq(&declined(&[
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
    expect![[""]].assert_eq(&declined(&[
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
    expect![[""]].assert_eq(&declined(&[
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
    expect![[""]].assert_eq(&declined(&[
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
    expect![[""]].assert_eq(&said.concat());
}

#[test]
fn writes() {
    let buffer = || nf4(&normal(1, &[16, 64]), 64);
    let columns = || nf4(&normal(2, &[64, 4]), 32);
    expect![[""]].assert_eq(&declined(&[
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
    expect![[""]].assert_eq(&said.concat());
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
    expect![[""]].assert_eq(&said.concat());
    expect![[""]].assert_eq(&declined(&[("floats that are written", vec![w.into(), x(&[4, 64])], |a| {
        let mut w = a[0].clone();
        w.try_index_mut((2..6, ..), &a[1])?;
        Ok(w)
    })]));
}
