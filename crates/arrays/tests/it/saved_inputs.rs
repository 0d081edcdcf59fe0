//! Weights whose gradients read activations from codes, against the weights themselves.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::expect;
use mlx_rs::{Array, Dtype, fast, nn, ops};
use tacit_arrays::format::{AnyFormat, Nf4, Quantizer};
use tacit_arrays::{Lora, Nf4Array, Prepared, SavedInputs};
use tacit_core::transform::{checkpoint, grad, value_and_grad};
use tacit_core::{Counters, Policy, Result, Value, compile, implicit};

use crate::messages::said_of;
use crate::operands::{normal, normal_of};
use crate::saved::{float, relative_error};

type Op = fn(&Array, &Array) -> Result<Array>;

/// Ops of activations and a weight of these shapes; the first ones sum in `f32` whatever their dtype.
const OPS: [(&str, &[i32], &[i32], Op); 7] = [
    ("product", &[2, 48, 64], &[128, 64], |x, w| Ok(x.matmul(w.t())?)),
    ("product and sum", &[2, 48, 64], &[64, 64], |x, w| Ok(ops::addmm(w.sum_axis(0, false)?, x, w.t(), None, None)?)),
    ("product from the left", &[64, 48], &[128, 64], |x, w| Ok(w.matmul(x)?)),
    ("norm", &[2, 48, 64], &[64], |x, w| Ok(fast::rms_norm(x, Some(w), 1e-5)?)),
    ("multiple of a part", &[48, 64], &[2, 64], |x, w| {
        let scale = w.split_equal(2, 0)?.swap_remove(1).multiply(Array::from_f32(0.5).as_dtype(w.dtype())?)?;
        Ok(x.multiply(scale)?)
    }),
    ("convolution", &[2, 8, 8, 16], &[8, 3, 3, 16], |x, w| Ok(ops::conv2d(x, w, None, None, None, None)?)),
    ("experts", &[3, 5, 64], &[2, 8, 64], |x, w| {
        let (left, right) = (Array::from_slice(&[0u32, 2, 1], &[3]), Array::from_slice(&[1u32, 0, 1], &[3]));
        Ok(ops::gather_mm(x, w.swap_axes(1, 2)?, &left, &right, None)?)
    }),
];

/// A loss of a function of activations and a weight, and its gradients.
fn step(f: Op, format: Option<&str>, x: &Array, w: &Array) -> (f32, [Array; 2]) {
    let mut step = value_and_grad(|(x, w): (Array, Array)| -> Result<Array> {
        let w: Value = match format {
            Some(format) => SavedInputs::new(w, format)?.into(),
            None => w.into(),
        };
        let y = implicit((x, w), |(x, w)| f(&x, &w))?.dense()?;
        Ok(y.as_dtype(Dtype::Float32)?.square()?.mean(None)?)
    });
    let (loss, (dx, dw)) = step.call((x, w)).expect("differentiates");
    (loss.dense().expect("dense").item_exact::<f32>(), [float(&dx), float(&dw)])
}

#[test]
fn an_op_is_that_of_the_weight_and_its_gradient_reads_codes() {
    let _deny = Policy::Deny.scope();
    for (dtype, count) in [(Dtype::Float32, OPS.len()), (Dtype::Bfloat16, 3), (Dtype::Float16, 3)] {
        for (name, activations, weight, f) in OPS.into_iter().take(count) {
            let (x, w) = (normal_of(dtype, 1, activations), normal_of(dtype, 2, weight));
            let (loss, plain) = step(f, None, &x, &w);
            let (found, gradients) = step(f, Some("affine:8:32"), &x, &w);
            assert_eq!(found.to_bits(), loss.to_bits(), "{name} {dtype:?}");
            let [dx, dw] = [0, 1].map(|at| relative_error(&gradients[at..=at], &plain[at..=at]));
            assert!(dw > 0.0 && dw < 1e-2, "{name} {dtype:?}: the gradient of the weight is off by {dw}");
            assert!(dx < 1e-2, "{name} {dtype:?}: the gradient of the activations is off by {dx}");
        }
    }
}

/// A format that holds everything as it is, and counts what it is given.
#[derive(Debug)]
struct Counted {
    name: &'static str,
    count: Arc<AtomicUsize>,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Quantizer for Counted {
    fn quantize(&self, x: &Array) -> Result<Value> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(x.into())
    }
}

/// How many activations are coded where `f` is called with a format of this name.
fn coded(name: &'static str, f: impl FnOnce(AnyFormat) -> Result<()>) -> usize {
    let count = Arc::new(AtomicUsize::new(0));
    f(Counted { name, count: Arc::clone(&count) }.into()).expect("runs");
    count.load(Ordering::Relaxed)
}

#[test]
fn activations_are_coded_once_and_only_where_a_gradient_reads_them() {
    let x = normal(1, &[2, 48, 64]);
    let weights = || [11, 12, 13].map(|seed| normal(seed, &[64, 64])).to_vec();
    // Three products of one input, and what is between them and a fourth: of the gate its two sides, and the sigmoid's result.
    let layer = |x: &Array, w: &[Array]| -> Result<Array> {
        let (a, b) = (x.matmul(w[0].t())?, x.matmul(w[1].t())?);
        Ok(ops::sigmoid(a)?.multiply(b.add(x.matmul(w[0].t())?)?)?.matmul(w[1].t())?)
    };
    let run = |format: &AnyFormat, x: Array, w: Vec<Array>| -> Result<Array> {
        let w = w.into_iter().map(|w| Ok(SavedInputs::new(w, format)?.into())).collect::<Result<Vec<Value>>>()?;
        Ok(implicit((x, w), |(x, w)| layer(&x, &w))?.dense()?.sum(None)?)
    };
    let trained =
        coded("counted-trained", |format| grad(|w: Vec<Array>| run(&format, x.clone(), w)).call(weights()).map(drop));
    assert_eq!(trained, 4, "the input, the sigmoid's result, the sum beside it, and their product");
    let frozen = coded("counted-frozen", |format| grad(|x: Array| run(&format, x, weights())).call(&x).map(drop));
    assert_eq!(frozen, 2, "both sides of the gate: no product needs its input");
    let forward = coded("counted-forward", |format| run(&format, x.clone(), weights()).map(drop));
    assert_eq!(forward, 0, "there is no gradient");
}

#[test]
fn what_stands_in_between_as_it_is_ends_a_format() {
    let (x, w) = (normal(1, &[48, 64]), normal(2, &[64, 64]));
    let count = |name: &'static str, ends: bool| {
        coded(name, |format| {
            let loss = |w: Array| -> Result<Array> {
                let saved = SavedInputs::new(&w, &format)?;
                let second = if ends { SavedInputs::exact(&w)? } else { saved.clone() };
                let layers = |(w, v): (Array, Array)| {
                    let y = nn::silu(x.matmul(&w)?)?.matmul(&v)?;
                    nn::silu(y)?.matmul(w)
                };
                Ok(implicit((saved, second), layers)?.dense()?.sum(None)?)
            };
            grad(loss).call(&w).map(drop)
        })
    };
    let (all, first) = (count("counted-all", false), count("counted-first", true));
    assert!(first < all, "{first} of {all}");
}

#[test]
fn lora_over_nf4_builds_no_weight() {
    let _deny = Policy::Deny.scope();
    let base = Nf4Array::quantize(&normal(1, &[128, 64]), 64).expect("quantizes");
    let args = (normal(2, &[4, 64]), normal(3, &[128, 4]), normal(4, &[3, 32, 64]));
    let gradients = |format: Option<&str>| {
        let mut step = value_and_grad(|(a, b, x): (Array, Array, Array)| -> Result<Array> {
            let w = Lora::new(base.clone(), a, b, 0.5)?;
            let w: Value = match format {
                Some(format) => SavedInputs::new(w, format)?.into(),
                None => w.into(),
            };
            Ok(implicit((x, w), |(x, w)| nn::silu(x.matmul(w.t())?)?.square())?.dense()?.mean(None)?)
        });
        let (outcome, counters) = Counters::during(|| step.call(args.clone()));
        let (loss, (da, db, dx)) = outcome.expect("is handled");
        assert_eq!((counters.materialized, counters.materialized_bytes), (0, 0));
        (loss.dense().expect("dense").item_exact::<f32>(), [da, db, dx].each_ref().map(float))
    };
    let (plain, saved) = (gradients(None), gradients(Some("affine:8:64")));
    assert_eq!(plain.0.to_bits(), saved.0.to_bits());
    let error = relative_error(&saved.1, &plain.1);
    assert!(error > 0.0 && error <= 1e-2, "{error}");
}

#[test]
fn a_prepared_weight_a_checkpoint_and_a_compiled_step_save_too() {
    let (x, master) = (normal(4, &[3, 32, 64]), normal(1, &[128, 64]));
    let loss = |w: Array, x: &Array, format: Option<&str>, again: bool| -> Result<Array> {
        let w = Prepared::new(&w, Nf4 { block: 64, double: false })?;
        let w: Value = match format {
            Some(format) => SavedInputs::new(w, format)?.into(),
            None => w.into(),
        };
        let layer = |(x, w): (Array, Array)| x.matmul(w.t())?.square();
        let y = if again {
            implicit((x, w), |(x, w)| checkpoint(layer).call((x, w))?.dense())?
        } else {
            implicit((x, w), layer)?
        };
        Ok(y.dense()?.mean(None)?)
    };
    let gradient = |w: &Array, x: &Array, format: Option<&str>, again: bool| -> Result<Array> {
        let mut gradient = grad(|w: Array| loss(w, x, format, again));
        Ok(gradient.call(w)?.array()?.clone())
    };
    let plain = [gradient(&master, &x, None, false).expect("differentiates")];
    for again in [false, true] {
        let found = [gradient(&master, &x, Some("affine:8:64"), again).expect("differentiates")];
        let error = relative_error(&found, &plain);
        assert!(error > 0.0 && error <= 1e-2, "{again}: {error}");
        let mut compiled = compile(|(w, x): (Array, Array)| gradient(&w, &x, Some("affine:8:64"), again));
        for _ in 0..2 {
            let compiled = compiled.call((&master, &x)).and_then(|found| found.dense()).expect("compiles");
            // A code may be the next one where a sum is rounded otherwise.
            assert!(relative_error(&[compiled], &found) <= 1e-4);
        }
    }
}

#[test]
fn what_saves_no_activations_is_refused() {
    let integers = Array::from_slice(&[1i32, 2], &[2]);
    let said = [
        said_of(SavedInputs::new(integers, "int8")),
        said_of(SavedInputs::new(normal(1, &[2]), "affine:8:63")),
        said_of(SavedInputs::new(normal(1, &[2]), "int8+stochastic")),
    ];
    expect![[r#"
        the weight is i32[2], which is not float
        help: give an f32, f16 or bf16 array
        MLX has no affine format of 8 bits in groups of 63
        help: use 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128
        activations are not saved in the format int8+stochastic, which rounds by a random key
        help: write int8
    "#]]
    .assert_eq(&said.concat());
}
