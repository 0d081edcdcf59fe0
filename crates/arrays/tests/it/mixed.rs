//! Two types in one op, and one type inside another.

use mlx_rs::{Array, Dtype};
use tacit_arrays::Nf4Array;
use tacit_arrays::format::Parts;
use tacit_conformance::opaque::Opaque;
use tacit_core::{Counters, Policy, Value, implicit};

use crate::operands::{affine, nf4, normal, oracle};

const F32: Dtype = Dtype::Float32;

fn pair(left: &[i32], right: &[i32]) -> Vec<[Value; 2]> {
    let (a, b) = (normal(1, left), normal(2, right));
    vec![[nf4(&a, 64), affine(&b, 32, 4)], [affine(&a, 32, 4), nf4(&b, 64)], [nf4(&a, 64), nf4(&b, 32)]]
}

#[test]
fn sums_and_products_of_two_types() {
    for operands in pair(&[8, 64], &[8, 64]) {
        oracle(F32).allowing().check("a + b", &operands, |arrays| Ok(vec![arrays[0].add(&arrays[1])?]));
        oracle(F32).allowing().check("a * b", &operands, |arrays| Ok(vec![arrays[0].multiply(&arrays[1])?]));
    }
}

#[test]
fn a_matmul_of_two_types() {
    for operands in pair(&[8, 64], &[8, 64]) {
        oracle(F32).allowing().check("a b^T", &operands, |arrays| Ok(vec![arrays[0].matmul(arrays[1].t())?]));
    }
    for operands in pair(&[8, 64], &[64, 32]) {
        oracle(F32).allowing().check("a b", &operands, |arrays| Ok(vec![arrays[0].matmul(&arrays[1])?]));
    }
}

#[test]
fn a_chain_of_two_packed_products_builds_neither() {
    for [a, b] in pair(&[40, 64], &[8, 64]) {
        oracle(F32).check("x a b^T", &[normal(3, &[3, 40]).into(), a, b], |arrays| {
            Ok(vec![arrays[0].matmul(&arrays[1])?.matmul(arrays[2].t())?])
        });
    }
}

#[test]
fn scales_that_are_implicit_themselves() {
    let inner = Nf4Array::quantize(&normal(1, &[40, 64]), 64).expect("quantizes");
    let absmax = inner.scales().expect("scales").as_dense().expect("dense").clone();
    let aval = tacit_core::Aval::new(&[40, 64], F32);
    let w = Value::from(
        Nf4Array::from_parts(Parts::new(inner.codes().clone(), Opaque::new(absmax)), 64, aval).expect("fits"),
    );
    let x = Value::from(normal(2, &[3, 64]));

    let operands = [x.clone(), w.clone()];
    oracle(F32).allowing().check("x W^T", &operands, |arrays| Ok(vec![arrays[0].matmul(arrays[1].t())?]));
    let rows = [w.clone(), Array::from_slice(&[3u32, 39], &[2]).into()];
    oracle(F32).allowing().check("rows", &rows, |arrays| Ok(vec![arrays[0].take_axis(&arrays[1], 0)?]));

    let (y, counters) = Counters::during(|| {
        let _allow = Policy::Allow.scope();
        implicit((x, w), |(x, w)| x.matmul(w.t()))
    });
    y.expect("is handled");
    // The scales alone are built, never the weight.
    assert_eq!((counters.handled, counters.materialized, counters.materialized_bytes), (2, 1, 40 * 4));
}
