//! Structured arrays: an operand of each type, what all of them have in common, and mixtures.

use mlx_rs::{Array, Dtype, ops, random};
use tacit_arrays::format::Parts;
use tacit_arrays::{Constant, Diagonal, Identity, Lora, LowRank, Masked, Nf4Array, Sparse24};
use tacit_core::{Aval, Policy, Value, implicit};

use crate::operands::{affine, nf4, normal, normal_of, oracle};

const F32: Dtype = Dtype::Float32;

/// `[4, 6]` of one positive number.
pub(crate) fn constant() -> Value {
    Constant::full(&[4, 6], &Array::from_f32(0.75)).expect("one number").into()
}

/// `[5, 5]`
pub(crate) fn identity() -> Value {
    Identity::new(5, F32).expect("rows").into()
}

/// `[5, 5]`
pub(crate) fn diagonal() -> Value {
    Diagonal::new(normal(11, &[5])).expect("a vector").into()
}

/// `[8, 9]` of rank 2.
pub(crate) fn low_rank() -> Value {
    LowRank::new(normal(12, &[8, 2]), normal(13, &[2, 9])).expect("a product").into()
}

/// `[8, 9]` of rank 2 on a dense base.
pub(crate) fn lora() -> Value {
    lora_on(normal(14, &[8, 9]).into())
}

pub(crate) fn lora_on(base: Value) -> Value {
    let aval = base.aval().expect("an aval");
    let (a, b) = (normal_of(F32, 15, &[2, aval.shape[1]]), normal_of(F32, 16, &[aval.shape[0], 2]));
    Lora::new(base, a, b, 3.0).expect("fits").into()
}

pub(crate) fn dropped_lora(p: f32) -> Value {
    let lora = lora();
    let key = random::key(17).expect("a key");
    lora.downcast::<Lora>().expect("a lora").clone().with_dropout(p, key).expect("a probability").into()
}

/// `[4, 6]`, about half of it kept.
pub(crate) fn masked() -> Value {
    masked_of(normal(18, &[4, 6]).into())
}

pub(crate) fn masked_of(inner: Value) -> Value {
    let mask = normal(19, &inner.aval().expect("an aval").shape).gt(Array::from_f32(0.0)).expect("a mask");
    Masked::new(inner, mask).expect("of one shape").into()
}

/// `[4, 12]`: an odd number of groups in a row.
pub(crate) fn sparse24() -> Value {
    Sparse24::prune(&normal(20, &[4, 12])).expect("groups of four").into()
}

fn all() -> Vec<Value> {
    vec![constant(), identity(), diagonal(), low_rank(), lora(), dropped_lora(0.3), masked(), sparse24()]
}

#[test]
fn any_primitive_equals_the_dense_one() {
    for w in all() {
        let f = |a: Vec<Array>| {
            let y = ops::tanh(&a[0])?.add(ops::softmax_axis(&a[0], -1, None)?)?.max_axes(&[0], true)?;
            Ok(vec![y.multiply(&a[0])?, a[0].square()?.sum(None)?])
        };
        oracle(F32).allowing().check("some primitives", &[w], f);
    }
}

#[test]
fn every_matrix_in_a_product_with_every_other() {
    let square: Vec<Value> = vec![
        Constant::full(&[8, 8], &Array::from_f32(0.75)).expect("one number").into(),
        Identity::new(8, F32).expect("rows").into(),
        Diagonal::new(normal(1, &[8])).expect("a vector").into(),
        LowRank::new(normal(2, &[8, 1]), normal(3, &[1, 8])).expect("a product").into(),
        lora_on(normal(4, &[8, 8]).into()),
        masked_of(normal(5, &[8, 8]).into()),
        Sparse24::prune(&normal(6, &[8, 8])).expect("groups").into(),
        nf4(&normal(7, &[8, 8]), 64),
    ];
    for a in &square {
        for b in &square {
            let operands = [a.clone(), b.clone(), normal(8, &[8]).into()];
            oracle(F32).allowing().check("a b, a b^T + c", &operands, |a| {
                Ok(vec![a[0].matmul(&a[1])?, ops::addmm(&a[2], &a[0], a[1].t(), 0.5, 2.0)?])
            });
        }
    }
}

#[test]
fn products_that_build_neither_side() {
    let nf4 = || nf4(&normal(7, &[8, 8]), 64);
    let vector = normal(1, &[8]);
    let low_rank = LowRank::new(normal(2, &[8, 1]), normal(3, &[1, 8])).expect("a product");
    let identity = || Value::from(Identity::new(8, F32).expect("rows"));
    let diagonal = || Value::from(Diagonal::new(vector.clone()).expect("a vector"));
    for [a, b] in [
        [identity(), nf4()],
        [nf4(), identity()],
        [identity(), diagonal()],
        [diagonal(), low_rank.clone().into()],
        [low_rank.clone().into(), diagonal()],
        [low_rank.clone().into(), nf4()],
        [nf4(), low_rank.clone().into()],
        [lora_on(nf4()), low_rank.clone().into()],
    ] {
        oracle(F32).check("a b", &[a, b], |a| Ok(vec![a[0].matmul(&a[1])?]));
    }
}

#[test]
fn a_product_with_the_identity_is_the_other_operand() {
    let operands = [Identity::new(64, F32).expect("rows").into(), nf4(&normal(7, &[64, 8]), 64)];
    let y = implicit(operands, |[a, b]| a.matmul(&b)).expect("is handled");
    assert_eq!(y.to_string(), "Nf4(f32[64,8])");
}

#[test]
fn a_diagonal_times_packed_codes_builds_these_once() {
    for w in [nf4(&normal(7, &[32, 64]), 64), affine(&normal(7, &[32, 64]), 32, 4)] {
        let d = Diagonal::new(normal(1, &[32])).expect("a vector").into();
        oracle(F32).allowing().check("D W", &[d, w], |a| Ok(vec![a[0].matmul(&a[1])?]));
    }
}

#[test]
fn half_types() {
    for dtype in [Dtype::Bfloat16, Dtype::Float16] {
        let x = Value::from(normal_of(dtype, 1, &[3, 8]));
        let number = Array::from_f32(0.75).as_dtype(dtype).expect("cast");
        let constant = Constant::full(&[8, 8], &number).expect("one number");
        // The dense gradient adds 64 elements in the half type itself, which is off by more than a few roundings.
        let x_constant = [x.clone(), constant.into()];
        oracle(dtype).values_only().check("x C", &x_constant, |a| Ok(vec![a[0].matmul(&a[1])?]));
        for w in [
            Identity::new(8, dtype).expect("rows").into(),
            Diagonal::new(normal_of(dtype, 2, &[8])).expect("a vector").into(),
            LowRank::new(normal_of(dtype, 3, &[8, 1]), normal_of(dtype, 4, &[1, 8])).expect("a product").into(),
            lora_on(normal_of(dtype, 5, &[8, 8]).into()),
        ] {
            oracle(dtype).check("x W", &[x.clone(), w], |a| Ok(vec![a[0].matmul(&a[1])?]));
        }
    }
}

#[test]
fn a_mask_over_an_adapter_over_packed_codes_with_packed_scales() {
    let plain = Nf4Array::quantize(&normal(1, &[64, 64]), 64).expect("quantizes");
    let scales = nf4(plain.scales().expect("scales").as_dense().expect("dense"), 32);
    let base =
        Nf4Array::from_parts(Parts::new(plain.codes().clone(), scales), 64, Aval::new(&[64, 64], F32)).expect("fits");
    let w = masked_of(lora_on(base.into()));
    let f = |a: Vec<Array>| {
        let rows = a[1].take_axis(Array::from_slice(&[3u32, 7], &[2]), 0)?;
        Ok(vec![a[0].matmul(rows.t())?])
    };
    oracle(F32).allowing().check("x W[rows]^T", &[normal(2, &[3, 64]).into(), w], f);
}

#[test]
fn the_policy_allows_what_no_handler_builds() {
    let _deny = Policy::Deny.scope();
    for (w, shape) in [(low_rank(), [3, 9]), (lora(), [3, 9]), (lora_on(nf4(&normal(1, &[8, 64]), 64)), [3, 64])] {
        let y = implicit((normal(2, &shape), w), |(x, w)| x.matmul(w.t()));
        assert_eq!(y.expect("is handled").to_string(), "f32[3,8]");
    }
}
