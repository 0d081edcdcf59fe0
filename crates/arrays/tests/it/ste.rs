//! Straight-through gradients: the value of the inner array, the gradient of the dense function there.

use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, transforms};
use tacit_arrays::format::Affine;
use tacit_arrays::{AffineArray, Nf4Array, Ste, ste};
use tacit_conformance::oracle::{Oracle, floats, relative_error};
use tacit_core::transform::intercept;
use tacit_core::{Counters, Policy, Result, Value, implicit};

use crate::operands::normal;

type Quantizer = fn(&Array) -> Result<Value>;

fn nf4(w: &Array) -> Result<Value> {
    Ok(Nf4Array::quantize(w, 64)?.into())
}

fn affine(w: &Array) -> Result<Value> {
    Ok(AffineArray::quantize(w, Affine { bits: 2, group: 32 })?.into())
}

/// A quantizer without an implicit type.
fn rounded(w: &Array) -> Result<Value> {
    Ok(ops::round(w.multiply(Array::from_f32(2.0))?, None)?.multiply(Array::from_f32(0.5))?.into())
}

const QUANTIZERS: [(&str, Quantizer); 3] = [("nf4", nf4), ("affine", affine), ("rounded", rounded)];

/// A scalar whose gradient tells the elements of `y` apart.
fn weighted(y: &Array) -> Result<Array> {
    let weights: Vec<f32> = (1..=y.size()).map(|i| (i as f32).sin()).collect();
    Ok(y.multiply(Array::from_slice(&weights, y.shape()))?.sum(None)?)
}

/// The masters are quantized straight through, the others stay as they are; both get a gradient. Value and
/// gradients must be those of the dense function at the quantized masters, eager and compiled.
#[track_caller]
fn check(
    policy: Policy,
    quantize: Quantizer,
    others: &[Array],
    masters: &[Array],
    f: impl Fn(Vec<Array>) -> Result<Array> + 'static,
) {
    let f = Rc::new(f);
    let count = others.len();
    let argnums: Vec<i32> = (0..(count + masters.len()) as i32).collect();

    let args = [others, masters].concat();
    let inner: Vec<Array> = {
        let _allow = Policy::Allow.scope();
        masters.iter().map(|master| quantize(master)?.dense()).collect::<Result<_>>().expect("quantizes")
    };
    let dense = |arrays: &[Array]| Ok::<_, Exception>(vec![weighted(&f(arrays.to_vec())?)?]);
    let at = [others, &inner].concat();
    let (value, expected) = transforms::value_and_grad_with_argnums(dense, argnums.as_slice())(&at).expect("dense");

    let function = f.clone();
    let straight = move |arrays: &[Array]| {
        let operands = arrays
            .iter()
            .enumerate()
            .map(|(i, array)| if i < count { Ok(array.into()) } else { ste(array, quantize) })
            .collect::<Result<Vec<Value>>>()?;
        let results = intercept(&operands, |arrays| Ok(vec![weighted(&function(arrays)?)?]))?;
        Ok::<_, Exception>(vec![results[0].dense()?])
    };
    let step = move |arrays: &[Array]| {
        let straight = straight.clone();
        let (value, gradients) = transforms::value_and_grad_with_argnums(straight, argnums.as_slice())(arrays)?;
        Ok::<_, Exception>([value, gradients].concat())
    };
    let _guard = policy.scope();
    let expected = [value, expected].concat();
    let eager = step(&args).expect("eager");
    let compiled = transforms::compile::compile(step, None)(args.as_slice()).expect("compiled");
    for (form, found) in [("eager", eager), ("compiled", compiled)] {
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = relative_error(found, expected).expect("floats");
            assert!(
                error <= 1e-5,
                "{form}, {}: {error}",
                if i == 0 { "value".into() } else { format!("gradient {i}") }
            );
        }
    }
}

#[test]
fn products_on_either_side_and_of_transposes() {
    for (_, quantize) in QUANTIZERS {
        let (x, w) = ([normal(1, &[3, 64])], [normal(2, &[8, 64])]);
        check(Policy::Deny, quantize, &x, &w, |a| Ok(a[0].matmul(a[1].t())?));
        check(Policy::Deny, quantize, &x, &w, |a| Ok(a[1].matmul(a[0].t())?));
        check(Policy::Deny, quantize, &x, &w, |a| Ok(a[0].matmul(a[1].t().t().t())?));
        check(Policy::Deny, quantize, &[normal(1, &[3, 8])], &w, |a| Ok(a[0].matmul(&a[1])?));
        check(Policy::Deny, quantize, &[normal(1, &[8, 3])], &w, |a| Ok(a[1].t().matmul(&a[0])?));
    }
}

#[test]
fn batched_left_sides() {
    for (_, quantize) in QUANTIZERS {
        let (x, w) = ([normal(1, &[2, 2, 3, 64])], [normal(2, &[8, 64])]);
        check(Policy::Deny, quantize, &x, &w, |a| Ok(a[0].matmul(a[1].t())?));
    }
}

#[test]
fn scaled_sums() {
    for (_, quantize) in QUANTIZERS {
        let (others, w) = ([normal(1, &[3, 64]), normal(3, &[8])], [normal(2, &[8, 64])]);
        check(Policy::Deny, quantize, &others, &w, |a| Ok(ops::addmm(&a[1], &a[0], a[2].t(), None, None)?));
        check(Policy::Deny, quantize, &others, &w, |a| Ok(ops::addmm(&a[1], &a[0], a[2].t(), 0.5, -2.0)?));
    }
}

#[test]
fn rows() {
    for (_, quantize) in QUANTIZERS {
        check(Policy::Deny, quantize, &[], &[normal(2, &[8, 64])], |a| {
            Ok(a[0].take_axis(Array::from_slice(&[3i32, -1, 3, 0], &[2, 2]), 0)?)
        });
    }
}

#[test]
fn a_weight_used_twice() {
    for (_, quantize) in QUANTIZERS {
        check(Policy::Deny, quantize, &[normal(1, &[3, 64])], &[normal(2, &[8, 64])], |a| {
            Ok(a[0].matmul(a[1].t())?.matmul(&a[1])?)
        });
    }
}

#[test]
fn two_layers_with_a_nonlinearity() {
    for (_, quantize) in QUANTIZERS {
        let masters = [normal(2, &[32, 64]), normal(3, &[8, 32])];
        check(Policy::Deny, quantize, &[normal(4, &[3, 64])], &masters, |a| {
            Ok(mlx_rs::nn::relu(a[0].matmul(a[1].t())?)?.matmul(a[2].t())?)
        });
    }
}

#[test]
fn two_of_them_in_one_op() {
    for (_, quantize) in QUANTIZERS {
        let masters = [normal(1, &[5, 64]), normal(2, &[8, 64])];
        check(Policy::Allow, quantize, &[], &masters, |a| Ok(a[0].matmul(a[1].t())?));
        let masters = [normal(1, &[8, 64]), normal(2, &[8, 64])];
        check(Policy::Allow, quantize, &[], &masters, |a| Ok(a[0].multiply(&a[1])?));
    }
}

#[test]
fn ops_that_the_inner_type_has_no_handler_for() {
    for (_, quantize) in QUANTIZERS {
        let masters = [normal(2, &[8, 64])];
        check(Policy::Allow, quantize, &[], &masters, |a| Ok(a[0].square()?));
        check(Policy::Allow, quantize, &[normal(1, &[8, 64])], &masters, |a| Ok(a[0].subtract(&a[1])?));
        check(Policy::Allow, quantize, &[], &masters, |a| Ok(a[0].reshape(&[4, 128])?.sum_axis(0, None)?));
        check(Policy::Allow, quantize, &[], &masters, |a| Ok(ops::softmax_axis(&a[0], -1, None)?));
    }
}

#[test]
fn an_op_with_two_results() {
    check(Policy::Allow, nf4, &[], &[normal(2, &[8, 64])], |a| {
        let parts = a[0].split_equal(2, 0)?;
        Ok(parts[0].multiply(&parts[1])?)
    });
}

#[test]
fn a_stopped_gradient_stops() {
    for (_, quantize) in QUANTIZERS {
        let master = normal(2, &[8, 64]);
        let x = normal(1, &[3, 64]);
        let mut gradient = transforms::grad(move |master: &Array| {
            let _deny = Policy::Deny.scope();
            let w = ste(master, quantize)?;
            let y = implicit((&x, w), |(x, w)| x.matmul(mlx_rs::stop_gradient(&w)?.t()))?;
            y.dense()?.sum(None)
        });
        assert!(floats(&gradient(&master).expect("runs")).expect("floats").iter().all(|&g| g == 0.0));
    }
}

#[test]
fn the_quantizer_itself_passes_no_gradient() {
    // Through plain rounding the gradient is zero; straight through it is one.
    let master = normal(2, &[8, 64]);
    let mut plain = transforms::grad(|w: &Array| rounded(w)?.dense()?.sum(None));
    assert!(floats(&plain(&master).expect("runs")).expect("floats").iter().all(|&g| g == 0.0));
    let mut straight = transforms::grad(|w: &Array| ste(w, rounded)?.dense()?.sum(None));
    assert_eq!(floats(&straight(&master).expect("runs")).expect("floats"), [1.0; 8 * 64]);
}

#[test]
fn the_gradient_equals_that_through_the_materialized_array() {
    let x = Value::from(normal(1, &[3, 64]));
    for quantize in [nf4, affine] {
        let w = ste(normal(2, &[8, 64]), quantize).expect("quantizes");
        Oracle::new(1e-5).check("x W^T", &[x.clone(), w], |a| Ok(vec![a[0].matmul(a[1].t())?]));
    }
}

#[test]
fn a_view_holds_both_arrays_transposed() {
    let master = normal(2, &[8, 64]);
    let w = ste(&master, nf4).expect("quantizes");
    let transposed = implicit(w, |w| Ok::<_, tacit_core::Error>(w.t())).expect("is handled");
    let transposed = transposed.downcast::<Ste>().expect("is one still");
    assert!(transposed.inner().downcast::<Nf4Array>().is_some());
    assert!(transposed.master().eq_exact(master.t()).expect("evaluates"));
}

#[test]
fn a_fallback_is_counted_once_for_the_value() {
    let w = ste(normal(2, &[8, 64]), nf4).expect("quantizes");
    let _allow = Policy::Allow.scope();
    let (y, counters) = Counters::during(|| implicit(w, |w| w.square()));
    y.expect("falls back");
    assert_eq!((counters.materialized, counters.materialized_bytes), (1, 8 * 64 * 4));
}

#[test]
fn a_half_precision_master() {
    let master = normal(2, &[8, 64]).as_dtype(Dtype::Bfloat16).expect("bf16");
    let x = normal(1, &[3, 64]).as_dtype(Dtype::Bfloat16).expect("bf16");
    let mut gradient = transforms::grad(move |master: &Array| {
        let _deny = Policy::Deny.scope();
        let w = ste(master, nf4)?;
        let y = implicit((&x, w), |(x, w)| x.matmul(w.t()))?;
        y.dense()?.sum(None)
    });
    let gradient = gradient(&master).expect("runs");
    assert_eq!((gradient.shape(), gradient.dtype()), (&[8, 64][..], Dtype::Bfloat16));
}
