//! Whatever builds a dense array is asked of the policy, and counted.

use expect_test::expect;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, Parts};
use tacit_arrays::{AffineArray, Nf4Array, Scaled};
use tacit_conformance::assert_close;
use tacit_core::compile::{CompileOptions, compile_with};
use tacit_core::transform::{checkpoint, grad, grad_wrt, jvp, vmap};
use tacit_core::tree::{self, Gradient, Open};
use tacit_core::{Aval, Counters, Error, Materialize, Policy, Result, Value, implicit};

use crate::operands::{affine, every, nf4, normal};

fn scaled() -> Scaled {
    Scaled::new(nf4(&normal(1, &[8, 64]), 64), &Array::from_f32(2.0)).expect("fits")
}

#[test]
fn a_layer_is_opened_for_a_view_that_was_asked_for_alone() {
    let inner = nf4(&normal(1, &[8, 64]), 64);
    {
        let _deny = Policy::Deny.scope();
        assert!(matches!(inner.opened(), Err(Error::MaterializationDenied { .. })));
        assert!(matches!(scaled().materialize(), Err(Error::MaterializationDenied { .. })));
    }
    let _allow = Policy::Allow.scope();
    let (_, counters) = Counters::during(|| inner.opened().expect("is built"));
    assert_eq!(counters.materialized, 1);
    let (_, counters) = Counters::during(|| Value::from(scaled()).materialize().expect("is built"));
    assert_eq!((counters.materialized, counters.materialized_bytes), (1, 8 * 64 * 4));
    // The leave ends with the view.
    let _deny = Policy::Deny.scope();
    assert!(matches!(inner.opened(), Err(Error::MaterializationDenied { .. })));
}

/// `sum(tanh(x W^T))`
fn loss((w, x): (Array, Array)) -> Result<Array> {
    Ok(ops::tanh(x.matmul(w.t())?)?.sum(None)?)
}

fn rows((w, rows): (Array, Array)) -> Result<Array> {
    Ok(w.take_axis(&rows, 0)?.square()?.sum(None)?)
}

fn x() -> Value {
    normal(2, &[3, 64]).into()
}

fn gradient(
    policy: Policy,
    f: fn((Array, Array)) -> Result<Array>,
    args: (Value, Value),
) -> (Result<Gradient>, Counters) {
    let _policy = policy.scope();
    let (result, counters) = Counters::during(|| grad(f).call(args));
    (result.map(|(dw, _)| dw), counters)
}

/// Whether something of it has a gradient.
fn has_floats(w: &Value) -> bool {
    tree::leaves(w, Open::Fully).expect("leaves").iter().any(|leaf| leaf.aval().expect("an aval").dtype.is_float())
}

#[test]
fn the_gradient_of_scales_of_a_product_needs_no_leave() {
    for w in every(Dtype::Float32, 1, &[8, 64]) {
        let (found, counters) = gradient(Policy::Deny, loss, (w.clone(), x()));
        assert!(found.is_ok(), "{w}: {found:?}");
        assert_eq!((counters.materialized, counters.materialized_bytes), (0, 0), "{w}");
    }
}

fn sum((w, x): (Array, Array)) -> Result<Array> {
    Ok(ops::tanh(w.add(x)?)?.sum(None)?)
}

/// As large as the weight.
fn addend() -> Value {
    normal(2, &[8, 64]).into()
}

#[test]
fn the_gradient_of_scales_of_a_sum_is_asked_for_and_counted_once_for_all_children() {
    let (denied, counters) = gradient(Policy::Deny, sum, (affine(&normal(1, &[8, 64]), 32, 4), addend()));
    expect![[r#"
        kernel AffineAddDense builds a dense f32[8,64] for a gradient, which the policy forbids
        help: leave the children of the implicit array out of the derivative with `grad_wrt`, or hold the array in the closure; to train scales, prepare the weight with `trained_scales`, or allow it here with `Policy::Allow.scope()`"#]].assert_eq(&denied.expect_err("is denied").to_string());
    assert_eq!(counters.materialized, 0);
    for w in every(Dtype::Float32, 1, &[8, 64]).into_iter().filter(has_floats) {
        let (allowed, counters) = gradient(Policy::Allow, sum, (w.clone(), addend()));
        assert!(allowed.is_ok(), "{w}");
        assert_eq!((counters.materialized, counters.materialized_bytes), (1, 8 * 64 * 4), "{w}");
    }
}

#[test]
fn the_gradient_of_the_other_side_needs_no_leave() {
    let _deny = Policy::Deny.scope();
    for w in every(Dtype::Float32, 1, &[8, 64]) {
        let (result, counters) = Counters::during(|| grad_wrt([1], loss).call((w, x())));
        assert_eq!(result.expect("is handled").1.to_string(), "f32[3,64]");
        assert_eq!(counters.materialized, 0);
    }
}

#[test]
fn a_derivative_along_anything_needs_no_leave() {
    let dense = |w: &Value| {
        let _allow = Policy::Allow.scope();
        w.dense().expect("dense")
    };
    let product = |(w, x): (Array, Array)| x.matmul(w.t());
    let w = AffineArray::quantize(&normal(1, &[8, 64]), Affine { bits: 4, group: 32 }).expect("quantizes");
    let (scales, biases, dx) = (normal(3, &[8, 2]), normal(4, &[8, 2]), normal(5, &[3, 64]));
    let children = vec![
        ("codes".into(), Gradient::Nothing),
        ("scales".into(), scales.clone().into()),
        ("biases".into(), biases.clone().into()),
    ];
    let dw = Gradient::Node { name: "tacit.Affine", children };
    let (found, counters) = {
        let _deny = Policy::Deny.scope();
        Counters::during(|| jvp((w.clone(), x()), (dw, dx.clone()), product))
    };
    assert_eq!(counters.materialized, 0);
    let moved = AffineArray::from_parts(
        Parts { biases: Some(biases), ..Parts::new(w.codes().clone(), scales) },
        *w.format(),
        Aval::new(&[8, 64], Dtype::Float32),
    )
    .expect("fits");
    let of_x = dx.matmul(dense(&w.into()).t()).expect("plain");
    let of_w = x().dense().expect("dense").matmul(dense(&moved.into()).t()).expect("plain");
    assert_close!(found.expect("has one").1.dense().expect("dense"), of_x.add(of_w).expect("plain"), 1e-5);
}

#[test]
fn a_mapped_weight_is_asked_for_and_counted_for_each_example() {
    let w = Nf4Array::quantize(&normal(1, &[8, 64]), 64).expect("quantizes");
    let (packed, scales) =
        (w.codes().clone(), ops::stack(&[&w.scales().expect("scales").dense().expect("dense"); 5], 0).expect("stacks"));
    let product = move |scales: Array| -> Result<Array> {
        let w = Nf4Array::from_parts(Parts::new(packed.clone(), scales), 64, Aval::new(&[8, 64], Dtype::Float32))?;
        implicit((w, x()), |(w, x)| x.matmul(w.t()))?.dense()
    };
    let run = |policy: Policy| {
        let _policy = policy.scope();
        Counters::during(|| vmap(0, 0, product.clone()).call(&scales))
    };
    expect![[r#"
        kernel Nf4Matmul builds a dense f32[8,64] mapped over 5 examples, which the policy forbids
        help: map the other operands and not the children of the implicit array, or allow it here with `Policy::Allow.scope()`"#]].assert_eq(&run(Policy::Deny).0.expect_err("is denied").to_string());
    let (found, counters) = run(Policy::Allow);
    assert_eq!((counters.materialized, counters.materialized_bytes), (1, 5 * 8 * 64 * 4));
    let one = implicit((w, x()), |(w, x)| x.matmul(w.t())).expect("runs").dense().expect("dense");
    let found = found.expect("is allowed").dense().expect("dense");
    assert_close!(found, ops::broadcast_to(one, &[5, 3, 8]).expect("broadcasts"), 1e-5);
}

#[test]
fn rows_with_scales_of_their_own_build_nothing_else() {
    let wanted = || Value::from(Array::from_slice(&[7u32, 0, 7], &[3]));
    for w in every(Dtype::Float32, 1, &[8, 64]).into_iter().filter(has_floats) {
        let (found, counters) = gradient(Policy::Deny, rows, (w, wanted()));
        assert!(found.is_ok(), "{found:?}");
        assert_eq!(counters.materialized, 0);
    }
    let (denied, _) = gradient(Policy::Deny, rows, (nf4(&normal(1, &[8, 50]), 64), wanted()));
    expect![[r#"
        kernel Nf4GatherRows builds a dense f32[8,50] for a gradient, which the policy forbids
        help: leave the children of the implicit array out of the derivative with `grad_wrt`, or hold the array in the closure; to train scales, prepare the weight with `trained_scales`, or allow it here with `Policy::Allow.scope()`"#]].assert_eq(&denied.expect_err("is denied").to_string());
    let (found, counters) = gradient(Policy::Allow, rows, (nf4(&normal(1, &[8, 50]), 64), wanted()));
    assert!(found.is_ok());
    assert_eq!((counters.materialized, counters.materialized_bytes), (1, 8 * 50 * 4));
}

/// `sum(tanh(W + x))` for the parts of `W`.
fn of_parts((packed, scales, biases, x): (Array, Array, Array, Array)) -> Result<Array> {
    let w = AffineArray::from_parts(
        Parts { biases: Some(biases), ..Parts::new(packed, scales) },
        Affine { bits: 4, group: 32 },
        Aval::new(&[8, 64], Dtype::Float32),
    )?;
    implicit((w, x), sum)?.dense()
}

#[test]
fn a_checkpoint_asks_for_nothing_that_is_not_wanted() {
    let _deny = Policy::Deny.scope();
    let w = AffineArray::quantize(&normal(1, &[8, 64]), Affine { bits: 4, group: 32 }).expect("quantizes");
    let args =
        || (w.codes().clone(), w.scales().expect("scales").clone(), w.biases().expect("has them").clone(), addend());
    // Compiled, every argument is a tracer, wanted or not.
    let step = |(packed, scales, biases, x): (Array, Array, Array, Array)| -> Result<Array> {
        let again = |args: (Array, Array, Array, Array)| {
            let (packed, scales, biases, x) = args;
            checkpoint(of_parts).call((packed, scales, biases, x))?.dense()
        };
        let (.., dx) = grad_wrt([3], again).call((packed, scales, biases, x))?;
        Ok(dx.array()?.clone())
    };
    let (_, plain) = grad_wrt([1], sum).call((w.clone(), addend())).expect("is handled");
    let plain = plain.array().expect("dense").clone();
    let mut compiled = compile_with(CompileOptions::default(), step);
    for found in [implicit(args(), step), compiled.call(args())] {
        assert_close!(found.expect("is handled").dense().expect("dense"), plain, 1e-6);
    }
    let all = |args: (Array, Array, Array, Array)| of_parts(args);
    assert!(matches!(grad(all).call(args()), Err(Error::FallbackDenied { .. })));
}
