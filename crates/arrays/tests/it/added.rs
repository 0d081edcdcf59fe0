//! Sums of packed and dense arrays, which are made from the codes.

use mlx_rs::{Array, Dtype, ops};
use tacit_core::transform::grad;
use tacit_core::{Counters, Policy, Result, Value, compile, implicit};

use crate::operands::{FLOATS, FORMATS, dense, every, normal, normal_of};

type Sum = fn(&Array, &Array) -> Result<Array>;

/// Sums of an array and what is as large, or one row of it.
const SUMS: [(&str, Sum); 3] = [
    ("w + x", |w, x| Ok(w.add(x)?)),
    ("x + w", |w, x| Ok(x.add(w)?)),
    ("0.9 w + x", |w, x| Ok(w.multiply(Array::from_f32(0.9).as_dtype(w.dtype())?)?.add(x)?)),
];

/// What the op makes of the dense array that its operand stands for: the array itself, or a view of a multiple.
fn expected(w: &Value, x: &Array, name: &str, sum: Sum) -> Array {
    if !name.contains("0.9") {
        return sum(&dense(w), x).expect("adds");
    }
    let multiple = implicit(w, |w| w.multiply(Array::from_f32(0.9).as_dtype(w.dtype())?)).expect("a view");
    dense(&multiple).add(x).expect("adds")
}

#[test]
fn a_sum_is_that_of_the_dense_array_to_the_bit_and_builds_none() {
    for dtype in FLOATS {
        for shape in [&[6, 64][..], &[2, 3, 64]] {
            let row = normal_of(dtype, 3, &[64]);
            for w in every(dtype, 1, shape) {
                for x in [&normal_of(dtype, 2, shape), &row] {
                    for (name, sum) in SUMS {
                        let (made, counters) = Counters::during(|| {
                            let _deny = Policy::Deny.scope();
                            implicit((&w, x), |(w, x)| sum(&w, &x))
                        });
                        let made = made.unwrap_or_else(|error| panic!("{name} of {w}: {error}"));
                        assert!(matches!(made, Value::Dense(_)), "{name} of {w}");
                        assert_eq!(counters.materialized, 0, "{name} of {w}");
                        let (made, expected) = (dense(&made), expected(&w, x, name, sum));
                        assert_eq!(made.dtype(), expected.dtype(), "{name} of {w}");
                        assert!(made.eq_exact(&expected).expect("compares"), "{name} of {w} and {:?}", x.shape());
                    }
                }
            }
        }
    }
}

/// Long enough for several threads, and an end within a piece.
#[test]
fn a_long_sum_has_every_element() {
    let x = normal(2, &[33, 4128]);
    for format in &FORMATS {
        let w = (format.of)(&normal(1, &[33, 4128])).expect("quantizes");
        let made = implicit((&w, &x), |(w, x)| w.add(x)).expect("adds");
        assert!(dense(&made).eq_exact(dense(&w).add(&x).expect("adds")).expect("compares"), "{w}");
    }
}

#[test]
fn a_transposed_view_is_added_the_way_round_that_its_codes_lie() {
    let _deny = Policy::Deny.scope();
    let x = normal(2, &[64, 6]);
    for w in every(Dtype::Float32, 1, &[6, 64]) {
        let made = implicit((&w, &x), |(w, x)| w.t().add(x)).expect("adds");
        assert!(dense(&made).eq_exact(dense(&w).t().add(&x).expect("adds")).expect("compares"), "{w}");
    }
}

/// That of the dense array is the sum's own, and asks nobody.
#[test]
fn the_gradient_of_the_dense_array_is_that_of_the_sum() {
    let _deny = Policy::Deny.scope();
    let x = normal(2, &[6, 64]);
    for w in every(Dtype::Float32, 1, &[6, 64]) {
        let loss = |x: Array| implicit((&w, x), |(w, x)| w.add(&x)?.square()?.sum(None))?.dense();
        let made = grad(loss).call(&x).expect("differentiates");
        let twice = dense(&w).add(&x).and_then(|sum| sum.multiply(Array::from_f32(2.0))).expect("computes");
        assert!(made.array().expect("a gradient").eq_exact(&twice).expect("compares"), "{w}");
    }
}

#[test]
fn a_compiled_sum_is_the_same() {
    let _deny = Policy::Deny.scope();
    let x = normal(2, &[6, 64]);
    for w in every(Dtype::Float32, 1, &[6, 64]) {
        let moment = |(w, x): (Array, Array)| {
            let decayed = w.multiply(Array::from_f32(0.9))?.add(x.multiply(Array::from_f32(0.1))?)?;
            ops::sqrt(decayed.square()?)
        };
        let plain = implicit((&w, &x), moment).expect("runs");
        let compiled = compile(moment).call((&w, &x)).expect("runs");
        assert!(dense(&plain).eq_exact(dense(&compiled)).expect("compares"), "{w}");
    }
}
