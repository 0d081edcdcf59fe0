//! Adapters on frozen matrices.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops, random};
use tacit_arrays::format::Parts;
use tacit_arrays::{Lora, Nf4Array};
use tacit_conformance::assert_close;
use tacit_core::transform::{Wrt, grad, grad_wrt};
use tacit_core::{Aval, Counters, Policy, Result, Value, implicit};

use crate::messages::{check, said_of};
use crate::operands::{FLOATS, check_built, nf4, normal, normal_of, oracle};
use crate::structured::{dropped_lora, lora, lora_on};

const F32: Dtype = Dtype::Float32;

fn x(shape: &[i32]) -> Value {
    normal(1, shape).into()
}

fn forward(a: Vec<Array>) -> Result<Vec<Array>> {
    Ok(vec![a[0].matmul(a[1].t())?])
}

#[test]
fn products_on_both_sides() {
    for w in [lora(), dropped_lora(0.5)] {
        for left in [&[3, 9][..], &[2, 3, 9], &[9]] {
            oracle(F32).check("x W^T", &[x(left), w.clone()], forward);
        }
        oracle(F32).check("x W", &[x(&[3, 8]), w.clone()], |a| Ok(vec![a[0].matmul(&a[1])?]));
        oracle(F32).check("W x", &[w.clone(), x(&[9, 3])], |a| Ok(vec![a[0].matmul(&a[1])?]));
        oracle(F32).check("W^T x", &[w.clone(), x(&[8])], |a| Ok(vec![a[0].t().matmul(&a[1])?]));
        oracle(F32).check("x W^T + c", &[x(&[3, 9]), w.clone(), x(&[8])], |a| {
            Ok(vec![ops::addmm(&a[2], &a[0], a[1].t(), 0.5, -2.0)?])
        });
        oracle(F32)
            .check("W x + c", &[w, x(&[9, 3]), x(&[8, 3])], |a| Ok(vec![ops::addmm(&a[2], &a[0], &a[1], 0.5, -2.0)?]));
    }
}

#[test]
fn the_sum_is_that_of_peft() {
    let w = lora();
    let w = w.downcast::<Lora>().expect("a lora");
    let change = w.b().matmul(w.a()).expect("a product").multiply(Array::from_f32(3.0 / 2.0)).expect("scaled");
    let expected = w.base().dense().expect("dense").add(change).expect("a sum");
    let merged = w.merge().expect("is built").dense().expect("dense");
    assert_close!(merged, expected, 1e-6);
}

#[test]
fn a_base_with_packed_scales_builds_these_alone() {
    let plain = Nf4Array::quantize(&normal(2, &[64, 64]), 64).expect("quantizes");
    let scales = nf4(plain.scales().expect("scales").as_dense().expect("dense"), 32);
    let base =
        Nf4Array::from_parts(Parts::new(plain.codes().clone(), scales), 64, Aval::new(&[64, 64], F32)).expect("fits");
    let w = lora_on(base.into());
    oracle(F32).allowing().check("x W^T", &[x(&[3, 64]), w.clone()], forward);
    let (y, counters) = Counters::during(|| {
        let _allow = Policy::Allow.scope();
        implicit((x(&[3, 64]), w), |(x, w)| x.matmul(w.t()))
    });
    assert_eq!(y.expect("runs").to_string(), "f32[3,64]");
    assert_eq!((counters.materialized, counters.materialized_bytes), (1, 64 * 4));
}

#[test]
fn an_adapter_on_an_adapter() {
    let w = lora_on(lora_on(nf4(&normal(2, &[40, 96]), 64)));
    oracle(F32).check("x W^T", &[x(&[3, 96]), w], forward);
}

#[test]
fn half_types() {
    for dtype in FLOATS {
        for base in [Value::from(normal_of(dtype, 2, &[40, 96])), nf4(&normal_of(dtype, 2, &[40, 96]), 64)] {
            oracle(dtype).check("x W^T", &[normal_of(dtype, 1, &[3, 96]).into(), lora_on(base)], forward);
        }
        let w = lora_on(nf4(&normal(2, &[40, 96]), 64));
        oracle(dtype).check("astype", &[w], move |a| Ok(vec![a[0].as_dtype(dtype)?]));
    }
    let w = lora_on(nf4(&normal_of(Dtype::Float16, 2, &[40, 96]), 64));
    let widen = |a: Vec<Array>| Ok(vec![a[0].as_dtype(F32)?]);
    oracle(F32).check("astype", &[w], widen);
}

#[test]
fn rows_and_scalars() {
    for w in [lora(), dropped_lora(0.5)] {
        for rows in [Array::from_slice(&[3u32, 0, 7], &[3]), Array::from_slice(&[5i32], &[])] {
            oracle(F32).check("rows", &[w.clone(), rows.into()], |a| Ok(vec![a[0].take_axis(&a[1], 0)?]));
        }
        oracle(F32).check("rows of W^T", &[w.clone(), Array::from_slice(&[8u32], &[1]).into()], |a| {
            Ok(vec![a[0].t().take_axis(&a[1], 0)?])
        });
        oracle(F32).check("s W", &[w.clone(), x(&[])], |a| Ok(vec![a[1].multiply(&a[0])?]));
        let times = |a: Vec<Array>| Ok(vec![a[0].multiply(&a[1])?]);
        check_built("W x", &[w, x(&[9])], times);
    }
}

#[test]
fn dropout_drops_input_features_of_a_by_its_key() {
    let _allow = Policy::Allow.scope();
    let own = |p| {
        let Value::Implicit(w) = dropped_lora(p) else { panic!("a lora") };
        w
    };
    let base = normal(14, &[8, 9]);
    let column_sums = |w: Value| {
        let change = w.dense().expect("dense").subtract(&base).expect("a difference");
        change.abs().expect("abs").sum_axes(&[0], false).expect("sums").as_slice::<f32>().to_vec()
    };
    let plain = column_sums(lora());
    let dropped = column_sums(own(0.5).into());
    let (mut gone, mut doubled) = (0, 0);
    for (plain, dropped) in plain.iter().zip(&dropped) {
        if *dropped < 1e-5 {
            gone += 1;
        } else {
            assert!((dropped / plain - 2.0).abs() < 1e-3, "{dropped} of {plain}");
            doubled += 1;
        }
    }
    assert!(gone > 0 && doubled > 0, "{gone} dropped and {doubled} kept");
    // Another key, another choice; the same key, the same.
    let w = lora();
    let keyed = |seed| {
        let key = random::key(seed).expect("a key");
        column_sums(w.downcast::<Lora>().expect("a lora").clone().with_dropout(0.5, key).expect("fits").into())
    };
    assert_eq!(keyed(17), dropped);
    assert!((0..8).any(|seed| keyed(seed) != dropped));
    assert_eq!(column_sums(dropped_lora(0.0)), plain);
    let merged = dropped_lora(0.5).downcast::<Lora>().expect("a lora").merge().expect("is built");
    assert_eq!(column_sums(merged), plain);
}

#[test]
fn the_gradient_goes_to_the_adapter() {
    let w = lora_on(nf4(&normal(2, &[40, 96]), 64));
    let loss = |(w, x): (Array, Array)| x.matmul(w.t())?.square()?.sum(None);
    let adapter = Wrt::paths(|path| path.ends_with(['a', 'b']));
    {
        let _deny = Policy::Deny.scope();
        let (dw, _) = grad_wrt(adapter, loss).call((w.clone(), x(&[3, 96]))).expect("runs");
        assert_eq!(
            dw.to_string(),
            "tacit.Lora{base: tacit.Nf4{codes: nothing, scales: nothing}, a: f32[2,96], b: f32[40,2]}"
        );
    }
    let _allow = Policy::Allow.scope();
    let (dw, _) = grad(loss).call((w, x(&[3, 96]))).expect("runs");
    assert_eq!(
        dw.to_string(),
        "tacit.Lora{base: tacit.Nf4{codes: nothing, scales: f32[60]}, a: f32[2,96], b: f32[40,2]}"
    );
}

#[test]
fn bad_arguments() {
    let of = |base: &[i32], a: &[i32], b: &[i32]| Lora::new(normal(1, base), normal(2, a), normal(3, b), 1.0);
    let said = [
        said_of(of(&[8, 9], &[2, 8], &[8, 2])),
        said_of(of(&[2, 8, 9], &[2, 9], &[8, 2])),
        said_of(of(&[8, 9], &[0, 9], &[8, 0])),
        said_of(Lora::new(Array::from_slice(&[1i32, 2], &[1, 2]), normal(2, &[1, 2]), normal(3, &[1, 1]), 1.0)),
        said_of(Lora::new(normal(1, &[8, 9]), normal(2, &[2, 9]), normal(3, &[8, 2]), f32::NAN)),
    ];
    expect![[r#"
        a is f32[2,8] and b is f32[8,2], which do not fit a base of f32[8,9]
        help: give a: [r, in] and b: [out, r] for a base [out, in]
        a is f32[2,9] and b is f32[8,2], which do not fit a base of f32[2,8,9]
        help: give a: [r, in] and b: [out, r] for a base [out, in]
        a is f32[0,9], which has no elements
        help: keep an empty array dense
        the base is i32[1,2], which is not float
        help: give an f32, f16 or bf16 array
        alpha is NaN
        help: give a finite one; the rank is the usual choice
    "#]]
    .assert_eq(&said.concat());
    let fine = || of(&[8, 9], &[2, 9], &[8, 2]).expect("fits");
    let key = || random::key(1).expect("a key");
    let said = [
        said_of(fine().with_dropout(1.0, key())),
        said_of(fine().with_dropout(f32::NAN, key())),
        said_of(fine().with_dropout(0.1, normal(1, &[2]))),
    ];
    expect![[r#"
        the dropout probability is 1
        help: give one that is at least 0 and below 1
        the dropout probability is NaN
        help: give one that is at least 0 and below 1
        the dropout key is f32[2], and a key is u32[2]
        help: make one with `mlx_rs::random::key`
    "#]]
    .assert_eq(&said.concat());
    let _deny = Policy::Deny.scope();
    check(
        fine().merge(),
        expect![[r#"
            a dense array of Lora(f32[8,9]) needs Lora materialized, which the policy forbids
            help: allow it here with `Policy::Allow.scope()`"#]],
    );
}
