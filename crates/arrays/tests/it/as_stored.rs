//! Adapters that are trained as they will be stored.

use expect_test::expect;
use mlx_rs::{Array, Dtype};
use tacit_arrays::format::{self, AnyFormat, Nf4};
use tacit_arrays::{Adapter, AsStored, Lora};
use tacit_conformance::assert_close;
use tacit_core::transform::{Wrt, grad_wrt};
use tacit_core::{Counters, Policy, Value, implicit};

use crate::adapters::dora_on;
use crate::messages::check;
use crate::operands::{FLOATS, both, every, nf4, normal, normal_of, oracle};
use crate::structured::lora_on;

const F32: Dtype = Dtype::Float32;

/// A text of each format; the rows that are tried have 96 elements.
pub(crate) const FORMATS: [&str; 11] = [
    "nf4:64",
    "nf4:64:double",
    "fp4:64",
    "affine:4:32",
    "affine:3:32",
    "int8",
    "int8:32",
    "mxfp4",
    "mxfp8",
    "nvfp4",
    "ternary",
];

pub(crate) fn parsed(text: &str) -> AnyFormat {
    format::parse(text).expect("a format")
}

fn as_stored(sum: Value, format: impl Into<AnyFormat>) -> Value {
    AsStored::new(sum, format).expect("an adapter").into()
}

fn x(shape: &[i32]) -> Value {
    normal(1, shape).into()
}

fn same(a: &Array, b: &Array) -> bool {
    a.eq(b).expect("compares").all(None).expect("all").item_exact::<bool>()
}

/// What the kernel codes is what the quantizer makes of the dense sum, but where a rounding of the sum moves a code.
#[test]
fn every_format_over_every_base_is_quantized_without_a_dense_matrix() {
    for base in every(F32, 2, &[40, 96]) {
        let sum = lora_on(base);
        let dense = {
            let _allow = Policy::Allow.scope();
            sum.dense().expect("is built")
        };
        for text in FORMATS {
            let format = parsed(text);
            let (made, counters) = Counters::during(|| {
                let _deny = Policy::Deny.scope();
                format.quantize_sum(sum.family::<dyn Adapter>().expect("an adapter"))
            });
            let made = made.unwrap_or_else(|error| panic!("{text} of {sum}: {error}"));
            assert_eq!(counters.materialized, 0, "{text}");
            assert!(format.stores(&made), "{text}: {made}");
            let _allow = Policy::Allow.scope();
            let expected = format.quantize(&dense).expect("quantizes").dense().expect("dense");
            let made = made.dense().expect("dense");
            let apart = made.subtract(&expected).expect("a difference").abs().expect("abs");
            let moved =
                apart.gt(Array::from_f32(1e-4)).expect("compares").sum(None).expect("a sum").item_exact::<i32>();
            assert!(moved <= 4, "{moved} of 3840 elements have another code in {text}");
        }
    }
}

#[test]
fn columns_are_quantized_where_the_base_has_them_too() {
    let format = parsed("int8:columns");
    let base = format.quantize(&normal(2, &[40, 96])).expect("quantizes");
    let sum = lora_on(base);
    let made = {
        let _deny = Policy::Deny.scope();
        format.quantize_sum(sum.family::<dyn Adapter>().expect("an adapter")).expect("builds no dense matrix")
    };
    let _allow = Policy::Allow.scope();
    let expected = format.quantize(&sum.dense().expect("dense")).expect("quantizes");
    assert_close!(made.dense().expect("dense"), expected.dense().expect("dense"), 1e-5);
}

#[test]
fn the_merged_product_is_the_trained_one_to_the_bit() {
    for text in FORMATS {
        for dtype in FLOATS {
            for sum in
                [lora_on(nf4(&normal_of(dtype, 2, &[40, 96]), 32)), dora_on(nf4(&normal_of(dtype, 2, &[40, 96]), 32))]
            {
                let _deny = Policy::Deny.scope();
                let w = as_stored(sum, parsed(text));
                let merged = w.downcast::<AsStored>().expect("one").merged().expect("merges");
                let y = |w: &Value, transposed: bool| {
                    let x = normal_of(dtype, 1, if transposed { &[3, 96] } else { &[3, 40] });
                    let made = implicit((x, w), |(x, w)| if transposed { x.matmul(w.t()) } else { x.matmul(w) });
                    made.expect("runs").dense().expect("dense")
                };
                assert!(same(&y(&w, true), &y(&merged, true)), "x W^T in {text} of {dtype:?}");
                assert!(same(&y(&w, false), &y(&merged, false)), "x W in {text} of {dtype:?}");
            }
        }
    }
}

#[test]
fn products_and_rows() {
    for base in both(F32, 2, &[40, 96]) {
        for sum in [lora_on(base.clone()), dora_on(base.clone())] {
            let w = as_stored(sum, Nf4 { block: 32, double: false });
            let oracle = || oracle(F32).allowing();
            oracle().check("x W^T", &[x(&[2, 3, 96]), w.clone()], |a| Ok(vec![a[0].matmul(a[1].t())?]));
            oracle().check("x W", &[x(&[3, 40]), w.clone()], |a| Ok(vec![a[0].matmul(&a[1])?]));
            oracle().check("W x", &[w.clone(), x(&[96, 2])], |a| Ok(vec![a[0].matmul(&a[1])?]));
            let rows = Array::from_slice(&[3i32, 0, 39], &[3]);
            oracle().check("rows", &[w.clone(), rows.into()], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
        }
    }
}

#[test]
fn the_gradient_of_the_factors_is_that_of_the_sum() {
    let loss = |(w, x): (Array, Array)| x.matmul(w.t())?.sum(None);
    let wrt = || Wrt::paths(|path| path.ends_with(".a") || path.ends_with(".b"));
    let sum = lora_on(nf4(&normal(2, &[40, 96]), 64));
    let w = as_stored(sum.clone(), Nf4::from(64));
    let _deny = Policy::Deny.scope();
    let (of_sum, _) = grad_wrt(wrt(), loss).call((sum, x(&[3, 96]))).expect("runs");
    let (stored, _) = grad_wrt(wrt(), loss).call((w, x(&[3, 96]))).expect("runs");
    assert_eq!(
        stored.to_string(),
        "tacit.AsStored{sum: tacit.Lora{base: tacit.Nf4{codes: nothing, scales: nothing}, a: f32[2,96], b: f32[40,2]}}"
    );
    for name in ["a", "b"] {
        let (stored, expected) = (stored.child("sum").child(name), of_sum.child(name));
        assert_close!(stored.array().expect("a gradient").clone(), expected.array().expect("a gradient").clone(), 1e-5);
    }
}

#[test]
fn bad_arguments() {
    check(
        AsStored::new(normal(1, &[8, 64]), Nf4::from(64)),
        expect![[r#"
        f32[8,64] is no adapter
        help: give a `Lora`, or another of the family `Adapter`"#]],
    );
    check(
        AsStored::new(nf4(&normal(1, &[8, 64]), 64), Nf4::from(64)),
        expect![[r#"
        Nf4(f32[8,64]) is no adapter
        help: give a `Lora`, or another of the family `Adapter`"#]],
    );
    let small = Lora::new(normal(1, &[8, 9]), normal(2, &[2, 9]), normal(3, &[8, 2]), 1.0).expect("fits");
    check(
        AsStored::new(small, parsed("affine:4:32")),
        expect![[r#"
        the last axis of f32[8,9] is not whole groups of 32, as affine has them
        help: use a smaller group size, or an array type whose blocks may straddle rows"#]],
    );
}
