//! `saved_as`: what a gradient reads of a forward pass, in another form.

mod refused;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast, nn, ops, random, transforms};
use tacit::transform::{checkpoint, grad, jvp, saved_as, value_and_grad, vmap};
use tacit::{Aval, Error, Policy, Result, Value, compile, implicit};

use crate::transforms_shared::registry;
use crate::types::{Left, numbers, vector, with_handlers};

type Function = fn(&Array, &Array) -> Result<Array>;

fn normal(seed: u64, shape: &[i32], dtype: Dtype) -> Array {
    let key = random::key(seed).expect("a key");
    let array = random::normal::<f32>(shape, None, None, &key).and_then(|x| x.as_dtype(dtype)).expect("numbers");
    array.eval().expect("evaluates");
    array
}

fn itself(x: &Array) -> Result<Value> {
    Ok(x.into())
}

/// As good as no number at all, which only a vjp that reads nothing of it survives.
fn lost(x: &Array) -> Result<Value> {
    Ok(ops::full::<f32>(x.shape(), Array::from_f32(f32::NAN))?.as_dtype(x.dtype())?.into())
}

/// The value and the gradients of a function of activations `x` and weights `w`, which is captured.
fn gradients(f: Function, encode: Option<fn(&Array) -> Result<Value>>, x: &Array, w: &Array) -> Result<[Array; 3]> {
    let step = |(x, w): (Array, Array)| -> Result<Array> {
        let y = match encode {
            Some(encode) => saved_as(encode, |x: Array| f(&x, &w)).call(x)?.dense()?,
            None => f(&x, &w)?,
        };
        // Cotangents that tell elements apart.
        let weights: Vec<f32> = (1..=y.size()).map(|i| (i as f32).sin()).collect();
        let y = y.as_dtype(Dtype::Float32)?.multiply(Array::from_slice(&weights, y.shape()))?;
        Ok(y.sum(None)?)
    };
    let (value, (dx, dw)) = value_and_grad(step).call((x, w))?;
    let all = [value.dense()?, dx.array()?.clone(), dw.array()?.clone()];
    transforms::eval(&all)?;
    Ok(all)
}

fn same(a: &Array, b: &Array) -> bool {
    let bits = |x: &Array| {
        numbers(&x.as_dtype(Dtype::Float32).expect("casts")).iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    Aval::from(a) == Aval::from(b) && bits(a) == bits(b)
}

/// Functions of `x: [4,8,16]` and `w: [16,16]` of one dtype.
const FUNCTIONS: &[(&str, Function)] = &[
    ("product", |x, w| Ok(x.matmul(w.t())?)),
    ("three products", |x, w| {
        let product = |x: &Array| x.matmul(w.t());
        let (q, k, v) = (product(x)?, product(x)?, product(x)?);
        Ok(ops::softmax_axis(q.matmul(k.swap_axes(-1, -2)?)?, -1, None)?.matmul(v)?)
    }),
    ("addmm", |x, w| Ok(ops::addmm(w.sum_axis(0, false)?, x, w.t(), None, None)?)),
    ("exp and division", |x, w| {
        Ok(x.matmul(w)?
            .abs()?
            .negative()?
            .exp()?
            .divide(x.square()?.add(Array::from_f32(1.0).as_dtype(x.dtype())?)?)?)
    }),
    ("gates", |x, w| Ok(nn::silu(x.matmul(w)?)?.multiply(nn::gelu(x)?)?)),
    ("tanh and sigmoid", |x, w| Ok(ops::tanh(x.matmul(w)?)?.multiply(ops::sigmoid(x)?)?)),
    ("relu", |x, w| Ok(nn::relu(x.matmul(w)?)?.matmul(w)?)),
    ("leaky relu", |x, w| {
        let y = x.matmul(w)?;
        Ok(ops::maximum(&y, y.multiply(Array::from_f32(0.1).as_dtype(x.dtype())?)?)?)
    }),
    ("norms", |x, w| {
        let scale = w.sum_axis(0, false)?;
        let y = fast::rms_norm(x, Some(&scale), 1e-5)?;
        Ok(fast::layer_norm(y.matmul(w)?, Some(&scale), Some(&scale), 1e-5)?)
    }),
    ("attention", |x, w| {
        let y = fast::rope(
            x.matmul(w)?.reshape(&[4, 8, 2, 8])?.transpose_axes(&[0, 2, 1, 3])?,
            8,
            false,
            1e4f32,
            1.0,
            0,
            None,
        )?;
        let mask = fast::ScaledDotProductAttentionMask::Causal;
        Ok(fast::scaled_dot_product_attention(&y, &y, &y, 0.3, mask, None)?)
    }),
    ("reductions", |x, w| {
        let y = x.matmul(w)?;
        Ok(y.max_axis(-1, true)?.multiply(y.min_axis(0, true)?)?.add(y.logsumexp_axis(-1, true)?)?)
    }),
    ("choices", |x, w| {
        let y = x.matmul(w)?;
        let positive = y.gt(Array::from_f32(0.0).as_dtype(x.dtype())?)?;
        Ok(ops::select(&positive, y.square()?, y.abs()?)?)
    }),
    ("sorted", |x, w| Ok(ops::sort_axis(x.matmul(w)?, -1)?.square()?)),
    ("parts", |x, w| {
        let y = x.matmul(w)?;
        let (a, b) = (y.try_index((.., .., ..8))?, y.try_index((.., .., 8..))?);
        Ok(ops::concatenate(&[a.multiply(&b)?, b.exp()?], -1)?)
    }),
    ("scans", |x, w| Ok(ops::cumsum(x.matmul(w)?.square()?, Some(1), None, None)?.matmul(w)?)),
    ("powers", |x, w| Ok(x.abs()?.add(Array::from_f32(1.0).as_dtype(x.dtype())?)?.power(w.sum_axis(0, false)?)?)),
    ("dropout", |x, w| {
        let kept = random::bernoulli(&Array::from_f32(0.5), x.shape(), &random::key(3)?)?;
        Ok(x.matmul(w)?.multiply(kept.as_dtype(x.dtype())?)?.matmul(w)?)
    }),
    ("captured and returned", |x, _| Ok(x.clone())),
];

#[test]
fn a_form_that_loses_nothing_changes_no_bit() {
    for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
        let (x, w) = (
            normal(1, &[4, 8, 16], dtype),
            normal(2, &[16, 16], dtype).multiply(Array::from_f32(0.3)).expect("scales"),
        );
        let w = w.as_dtype(dtype).expect("casts");
        for (name, f) in FUNCTIONS {
            let plain = gradients(*f, None, &x, &w).unwrap_or_else(|error| panic!("{name}: {error}"));
            let saved = gradients(*f, Some(itself), &x, &w).unwrap_or_else(|error| panic!("{name}: {error}"));
            for (part, (plain, saved)) in ["value", "dx", "dw"].iter().zip(plain.iter().zip(&saved)) {
                assert!(same(plain, saved), "{name} of {dtype:?}: {part} is {saved:?} and not {plain:?}");
            }
        }
    }
}

#[test]
fn a_compiled_gradient_is_the_same() {
    let (x, w) = (normal(1, &[4, 8, 16], Dtype::Float32), normal(2, &[16, 16], Dtype::Float32));
    for (name, f) in FUNCTIONS {
        let plain = gradients(*f, None, &x, &w).expect("differentiates");
        let mut step = compile(move |(x, w): (Array, Array)| gradients_of(*f, &x, &w));
        for _ in 0..2 {
            let (dx, dw) = step.call((&x, &w)).unwrap_or_else(|error| panic!("{name}: {error}"));
            for (plain, found) in plain[1..].iter().zip([dx, dw]) {
                let (plain, found) = (numbers(plain), numbers(&found.dense().expect("dense")));
                let most = plain.iter().fold(1f32, |most, x| most.max(x.abs()));
                assert_eq!(plain.len(), found.len(), "{name}");
                let off = plain.iter().zip(&found).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp);
                assert!(off.is_some_and(|off| off <= 1e-5 * most), "{name}: {off:?} of {most}");
            }
        }
    }
}

fn gradients_of(f: Function, x: &Array, w: &Array) -> Result<(Array, Array)> {
    let mut step = grad(move |(x, w): (Array, Array)| -> Result<Array> {
        let y = saved_as(itself, |x: Array| f(&x, &w)).call(x)?.dense()?;
        let weights: Vec<f32> = (1..=y.size()).map(|i| (i as f32).sin()).collect();
        Ok(y.multiply(Array::from_slice(&weights, y.shape()))?.sum(None)?)
    });
    let (dx, dw) = step.call((x, w))?;
    Ok((dx.array()?.clone(), dw.array()?.clone()))
}

/// What is encoded while the gradients of a function of an activation and a weight are taken.
fn encoded(f: impl Fn(&Array, &Array) -> Result<Array>, wrt_weight: bool) -> Vec<String> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let told = Rc::clone(&seen);
    let encode = Rc::new(move |x: &Array| -> Result<Value> {
        told.borrow_mut().push(Aval::from(x).to_string());
        Ok(x.into())
    });
    let (x, w) = (normal(1, &[2, 8], Dtype::Float32), normal(2, &[8, 8], Dtype::Float32));
    let loss = |x: Array, w: &Array| -> Result<Array> {
        let encode = Rc::clone(&encode);
        Ok(saved_as(move |x: &Array| encode(x), |x: Array| f(&x, w)).call(x)?.dense()?.sum(None)?)
    };
    if wrt_weight {
        grad(|(x, w): (Array, Array)| loss(x, &w)).call((x, w)).expect("differentiates");
    } else {
        grad(|x: Array| loss(x, &w)).call(x).expect("differentiates");
    }
    seen.take()
}

#[test]
fn what_no_vjp_reads_is_not_encoded() {
    let moved = |x: &Array, w: &Array| {
        let y = x.add(w.sum_axis(0, true)?)?.subtract(x)?.reshape(&[4, 4])?.t();
        let y = ops::concatenate(&[y.clone(), y], 0)?.as_dtype(Dtype::Float16)?;
        Ok(y.try_index((1.., ..))?.as_dtype(Dtype::Float32)?.sum_axis(0, false)?)
    };
    assert_eq!(encoded(moved, true), [""; 0]);
    let product = |x: &Array, w: &Array| Ok(x.matmul(w)?);
    assert_eq!(encoded(product, false), [""; 0], "the weight is not trained");
    assert_eq!(encoded(product, true), ["f32[2,8]"]);
}

#[test]
fn what_several_vjps_read_is_encoded_once_and_so_are_its_views() {
    let products = |x: &Array, w: &Array| {
        let views = [x.clone(), x.reshape(&[1, 2, 8])?, x.reshape(&[4, 4])?.reshape(&[2, 8])?, x.negative()?];
        views.iter().try_fold(Array::from_f32(0.0), |sum, view| Ok(sum.add(view.matmul(w)?)?))
    };
    assert_eq!(encoded(products, true), ["f32[2,8]"]);
    assert_eq!(encoded(|x, _| Ok(x.exp()?.exp()?), false), ["f32[2,8]"; 2], "each result, which the vjp of exp reads");
}

#[test]
fn masks_and_signs_are_those_of_the_activations() {
    let (x, w) = (normal(1, &[16, 8], Dtype::Float32), normal(2, &[8, 8], Dtype::Float32));
    let functions: [(&str, Function); 7] = [
        ("relu", |x, _| Ok(nn::relu(x)?)),
        ("leaky relu", |x, _| Ok(ops::maximum(x, x.multiply(Array::from_f32(0.1))?)?)),
        ("clipped", |x, _| Ok(ops::clip(x, (-0.5, 0.5))?)),
        ("a maximum of what depends on the other", |x, _| {
            Ok(ops::maximum(x, ops::maximum(x.negative()?, x.sum_axis(0, true)?)?)?)
        }),
        ("abs", |x, _| Ok(x.abs()?)),
        ("max", |x, _| Ok(x.max_axis(-1, false)?)),
        ("choice", |x, _| Ok(ops::select(x.gt(Array::from_f32(0.5))?, x, Array::from_f32(0.0))?)),
    ];
    for (name, f) in functions {
        let plain = gradients(f, None, &x, &w).expect("differentiates");
        let saved = gradients(f, Some(lost), &x, &w).expect("differentiates");
        assert!(same(&plain[1], &saved[1]), "{name}: {:?} and not {:?}", saved[1], plain[1]);
    }
}

#[test]
fn a_value_that_is_not_the_activation_is_what_the_vjp_reads() {
    let rounded = |x: &Array| -> Result<Value> { Ok(x.round(None)?.into()) };
    let loss =
        move |x: Array| -> Result<Array> { Ok(saved_as(rounded, |x: Array| x.square()).call(x)?.dense()?.sum(None)?) };
    let (value, dx) = value_and_grad(loss).call(vector(&[1.25, 2.75])).expect("differentiates");
    assert_eq!(numbers(&value.dense().expect("dense")), [1.25f32 * 1.25 + 2.75 * 2.75]);
    assert_eq!(numbers(dx.array().expect("dense")), [2.0, 6.0]);
}

#[test]
fn a_gradient_of_mlx_reads_it_too() {
    let rounded = |x: &Array| -> Result<Value> { Ok(x.round(None)?.into()) };
    let mut gradient =
        transforms::grad(move |x: &Array| Ok(saved_as(rounded, |x: Array| x.square()).call(x)?.dense()?));
    assert_eq!(numbers(&gradient(&Array::from_f32(2.75)).expect("differentiates")), [6.0]);
}

#[test]
fn padded_values_are_cut() {
    let padded = |x: &Array| -> Result<Value> { Ok(ops::pad(x.reshape(&[-1])?, (0, 3), None, None)?.into()) };
    let loss =
        move |x: Array| -> Result<Array> { Ok(saved_as(padded, |x: Array| x.square()).call(x)?.dense()?.sum(None)?) };
    let dx = grad(loss).call(vector(&[1.0, 2.0]).reshape(&[2, 1]).expect("reshapes")).expect("differentiates");
    assert_eq!(numbers(dx.array().expect("dense")), [2.0, 4.0]);
}

#[test]
fn captured_implicit_weights_are_intercepted_and_saved_for() {
    let _scopes = with_handlers(registry());
    let _deny = Policy::Deny.scope();
    let count = Rc::new(Cell::new(0));
    let counted = Rc::clone(&count);
    let encode = move |x: &Array| -> Result<Value> {
        counted.set(counted.get() + 1);
        Ok(x.round(None)?.into())
    };
    let encode = Rc::new(encode);
    let loss = move |(w, x): (Array, Array)| -> Result<Array> {
        let encode = Rc::clone(&encode);
        Ok(saved_as(move |x: &Array| encode(x), |x: Array| w.multiply(x)).call(x)?.dense()?.sum(None)?)
    };
    let args = (Left::of(&vector(&[2.0, 3.0])), Value::from(vector(&[1.25, 2.75])));
    let (dw, dx) = grad(loss).call(args).expect("is handled");
    assert_eq!(numbers(dx.array().expect("dense")), [2.0, 3.0]);
    assert_eq!(numbers(dw.child("array").array().expect("dense")), [1.0, 3.0], "what was encoded");
    assert_eq!(count.get(), 1);
}

#[test]
fn around_a_gradient_implicit_saves_nothing_and_is_right() {
    let _scopes = with_handlers(registry());
    let gradient = implicit((Left::of(&vector(&[2.0, 3.0])), vector(&[1.25, 2.75])), |(w, x)| -> Result<Array> {
        let loss = |x: Array| -> Result<Array> {
            Ok(saved_as(lost, |x: Array| w.multiply(x.square()?)).call(x)?.dense()?.sum(None)?)
        };
        Ok(grad(loss).call(x)?.array()?.clone())
    });
    assert_eq!(numbers(&gradient.expect("runs").dense().expect("dense")), [5.0, 16.5]);
}

#[test]
fn tangents_are_those_of_the_function_and_mapped_it_keeps_its_gradients() {
    let x = vector(&[1.25, 2.75]);
    let f = |x: Array| saved_as(lost, |x: Array| x.square()).call(x)?.dense();
    let (_, tangent) = jvp(&x, tacit::tree::Gradient::Dense(vector(&[1.0, 2.0])), f).expect("runs");
    assert_eq!(numbers(&tangent.dense().expect("dense")), [2.5, 11.0]);
    let mapped = |x: Array| -> Result<Array> { Ok(vmap(0, 0, f).call(x)?.dense()?.sum(None)?) };
    assert_eq!(numbers(grad(mapped).call(&x).expect("runs").array().expect("dense")), [2.5, 5.5]);
    let rounded = |x: &Array| -> Result<Value> { Ok(x.round(None)?.into()) };
    let each = move |x: Array| -> Result<Array> {
        let mut gradient = grad(move |x: Array| saved_as(rounded, |x: Array| x.square()).call(x)?.dense());
        Ok(gradient.call(x)?.array()?.clone())
    };
    assert_eq!(numbers(&vmap(0, 0, each).call(&x).expect("runs").dense().expect("dense")), [2.0, 6.0]);
}

#[test]
fn checkpoint_inside_holds_its_boundary_in_the_form_and_outside_nothing() {
    let rounded = |x: &Array| -> Result<Value> { Ok(x.round(None)?.into()) };
    let inside = move |x: Array| -> Result<Array> {
        let layers = |x: Array| checkpoint(|x: Array| x.square()?.square()).call(x)?.dense();
        Ok(saved_as(rounded, layers).call(x)?.dense()?.sum(None)?)
    };
    let dx = grad(inside).call(vector(&[1.25, 2.75])).expect("differentiates");
    assert_eq!(numbers(dx.array().expect("dense")), [4.0, 108.0]);
    let outside = move |x: Array| -> Result<Array> {
        let saved = move |x: Array| saved_as(rounded, |x: Array| x.square()).call(x)?.dense();
        Ok(checkpoint(saved).call(x)?.dense()?.sum(None)?)
    };
    let dx = grad(outside).call(vector(&[1.25, 2.75])).expect("differentiates");
    assert_eq!(numbers(dx.array().expect("dense")), [2.0, 6.0]);
}

#[test]
fn a_value_of_another_dtype_is_cast() {
    let half = |x: &Array| -> Result<Value> { Ok(x.as_dtype(Dtype::Bfloat16)?.into()) };
    let loss =
        move |x: Array| -> Result<Array> { Ok(saved_as(half, |x: Array| x.square()).call(x)?.dense()?.sum(None)?) };
    let dx = grad(loss).call(vector(&[1.001, 2.5])).expect("differentiates");
    assert_eq!(numbers(dx.array().expect("dense")), [2.0, 5.0]);
}

#[test]
fn inside_another_form_an_activation_has_the_innermost() {
    let rounded = |x: &Array| -> Result<Value> { Ok(x.round(None)?.into()) };
    let loss = move |x: Array| -> Result<Array> {
        let layers = move |x: Array| {
            let y = saved_as(itself, |x: Array| x.square()).call(x)?.dense()?;
            Ok::<_, Error>(y.square()?)
        };
        Ok(saved_as(rounded, layers).call(x)?.dense()?.sum(None)?)
    };
    let dx = grad(loss).call(vector(&[1.5, 2.5])).expect("differentiates");
    // 2 round(x^2) 2 x
    assert_eq!(numbers(dx.array().expect("dense")), [12.0, 60.0]);
}

#[test]
fn a_gradient_that_nobody_evaluates_goes_with_its_graph() {
    let held = Rc::new(());
    let inside = Rc::clone(&held);
    let loss = move |(x, w): (Array, Array)| -> Result<Array> {
        let inside = Rc::clone(&inside);
        // A node of the graph holds what this captures.
        let mut first = checkpoint(move |x: Array| {
            let _ = &inside;
            x.exp()
        });
        let layers = |x: Array| -> Result<Array> { Ok(ops::tanh(first.call(x)?.dense()?.matmul(&w)?)?.square()?) };
        // The cotangents depend on the forward pass.
        Ok(saved_as(itself, layers).call(x)?.dense()?.square()?.sum(None)?)
    };
    let args = (normal(1, &[2, 8], Dtype::Float32), normal(2, &[8, 8], Dtype::Float32));
    let mut gradient = grad(loss);
    let gradients = gradient.call(args).expect("differentiates");
    assert!(Rc::strong_count(&held) > 2);
    drop((gradient, gradients));
    assert_eq!(Rc::strong_count(&held), 1);
}

#[test]
fn a_long_chain_is_saved_once_for_each_op() {
    let chain = |x: Array| (0..1000).try_fold(x, |x, _| x.sin());
    let count = Rc::new(Cell::new(0));
    let counted = Rc::clone(&count);
    let encode = Rc::new(move |x: &Array| -> Result<Value> {
        counted.set(counted.get() + 1);
        Ok(x.into())
    });
    let loss = move |x: Array| -> Result<Array> {
        let encode = Rc::clone(&encode);
        Ok(saved_as(move |x: &Array| encode(x), chain).call(x)?.dense()?.sum(None)?)
    };
    let found = grad(loss).call(vector(&[1.0, 0.5])).expect("differentiates");
    let plain =
        grad(|x: Array| Ok::<_, Error>(chain(x)?.sum(None)?)).call(vector(&[1.0, 0.5])).expect("differentiates");
    assert!(same(found.array().expect("dense"), plain.array().expect("dense")));
    assert_eq!(count.get(), 1000);
}
