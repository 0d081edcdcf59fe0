//! Arrays times and by numbers: each element is rounded once.

use mlx_rs::{Array, Dtype, transforms};
use tacit_arrays::format::Granularity;
use tacit_arrays::{Int8Array, LowRank, Scaled};
use tacit_conformance::oracle::floats;
use tacit_core::{Policy, Value, implicit, transform};

use crate::half_types::{HALVES, check, full, ones};
use crate::operands::{mxfp4, nf4, normal, normal_of};

#[test]
fn the_gradient_of_a_scalar_counts_all_elements() {
    for dtype in HALVES {
        let w = Scaled::new(nf4(&ones(dtype, &[20, 64]), 64), &Array::from_f32(1.0)).expect("fits");
        let x = ones(dtype, &[50, 64]);
        let sum = move |w: Array| x.matmul(w.t())?.as_dtype(Dtype::Float32)?.sum(None);
        let found = transform::grad(sum).call(w).expect("is handled");
        assert_eq!(floats(found.child("scale").array().expect("dense")).expect("floats"), [64000.0]);
    }
}

/// The bits of an array, as wide floats, under `Policy::Allow`.
fn bits(value: &Value) -> Vec<f32> {
    let _allow = Policy::Allow.scope();
    floats(&value.dense().expect("dense")).expect("floats")
}

#[test]
fn a_quotient_is_rounded_once() {
    for dtype in [Dtype::Bfloat16, Dtype::Float16, Dtype::Float32] {
        for divisor in [3.0, 0.7, -1.1] {
            let s = Array::from_f32(divisor).as_dtype(dtype).expect("a scalar");
            let divided = |w: &Value| implicit((w, &s), |(w, s)| w.divide(s)).expect("is handled");
            let x = normal_of(dtype, 1, &[8, 64]);
            // Views keep the divisor: the quotients are those of the dense array.
            let views = [
                mxfp4(&x),
                LowRank::new(normal_of(dtype, 2, &[8, 1]), normal_of(dtype, 3, &[1, 64])).expect("fits").into(),
            ];
            for w in views {
                let expected = {
                    let _allow = Policy::Allow.scope();
                    Value::from(w.dense().expect("dense").divide(&s).expect("divides"))
                };
                let _deny = Policy::Deny.scope();
                assert_eq!(bits(&divided(&w)), bits(&expected), "{w} / {divisor}");
            }
            // Scales in single precision: the quotients are those of the array before it was rounded.
            let quantizers: [fn(&Array) -> Value; 2] =
                [|x| nf4(x, 64), |x| Int8Array::quantize(x, Granularity::Row).expect("quantizes").into()];
            for quantize in quantizers {
                let (w, wide) = (quantize(&x), quantize(&x.as_dtype(Dtype::Float32).expect("f32")));
                let wide = Value::Dense({
                    let _allow = Policy::Allow.scope();
                    wide.dense().expect("dense")
                });
                let wide_s = s.as_dtype(Dtype::Float32).expect("f32");
                let exact = implicit((wide, wide_s), |(w, s)| w.divide(s)).expect("divides");
                let exact = implicit(exact, |exact| exact.as_dtype(dtype)).expect("casts");
                if dtype != Dtype::Float32 {
                    assert_eq!(bits(&divided(&w)), bits(&exact), "{w} / {divisor}");
                }
            }
        }
    }
}

#[test]
fn a_small_scalar_brings_a_product_back_into_range() {
    let _deny = Policy::Deny.scope();
    let w = mxfp4(&full(Dtype::Float16, &[2, 64], 48.0));
    let operands = [full(Dtype::Float16, &[1, 64], 512.0).into(), w, full(Dtype::Float16, &[], 1.0 / 128.0).into()];
    check(operands.clone(), 12288.0, |[x, w, s]| Ok(x.matmul(w.multiply(s)?.t())?));
    check(operands, 12288.0, |[x, w, s]| Ok(x.matmul(w.divide(s.reciprocal()?)?.t())?));
}

#[test]
fn gradients_of_quotients() {
    let (x, s) = (normal(1, &[3, 64]), Array::from_f32(1.7));
    let w = mxfp4(&normal(2, &[8, 64]));
    let weights = normal(3, &[3, 8]);
    let dense = {
        let _allow = Policy::Allow.scope();
        w.dense().expect("dense")
    };
    let of = |w: Value| {
        let (x, weights) = (x.clone(), weights.clone());
        let loss = move |s: &Array| {
            let y = implicit((&x, &w, s), |(x, w, s)| x.matmul(w.divide(s)?.multiply(Array::from_f32(0.5))?.t()))?;
            y.dense()?.multiply(&weights)?.sum(None)
        };
        transforms::grad(loss)(&s).expect("runs").item_exact::<f32>()
    };
    let (found, expected) = (of(w), of(dense.into()));
    assert!((found - expected).abs() <= 1e-4 * expected.abs(), "{found} {expected}");
}
