//! Straight-through training of unmodified modules with mlx-rs's own optimizers.

use mlx_rs::error::Exception;
use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::optimizers::{Optimizer, Sgd};
use mlx_rs::{Array, nn, random};
use tacit_arrays::format::Affine;
use tacit_arrays::{AffineArray, Nf4Array};
use tacit_conformance::assert_close;
use tacit_conformance::oracle::relative_error;
use tacit_core::{Counters, Policy, Result, Value};
use tacit_nn::{quantized, straight_through, with_parameters};

use crate::types::normal;

type Rule = fn(&str, &Array) -> Result<Option<Value>>;

fn nf4(path: &str, w: &Array) -> Result<Option<Value>> {
    Ok(if path.ends_with("weight") { Some(Nf4Array::quantize(w, 64)?.into()) } else { None })
}

fn affine(path: &str, w: &Array) -> Result<Option<Value>> {
    Ok(if path.ends_with("weight") {
        Some(AffineArray::quantize(w, Affine { bits: 2, group: 32 })?.into())
    } else {
        None
    })
}

fn network() -> nn::Sequential {
    random::seed(7).expect("seeds");
    nn::Sequential::new()
        .append(nn::Linear::new(64, 32).expect("builds"))
        .append(nn::Relu)
        .append(nn::Linear::new(32, 4).expect("builds"))
}

fn loss(network: &mut nn::Sequential, rule: Rule, x: &Array, y: &Array) -> Result<Array, Exception> {
    let weights = straight_through(network, rule)?;
    let made = with_parameters(network, &weights, |network| network.forward(x))?.dense()?;
    made.subtract(y)?.square()?.mean(None)
}

#[test]
fn steps_reduce_the_loss_and_build_nothing() {
    for rule in [nf4 as Rule, affine] {
        let _deny = Policy::Deny.scope();
        let mut network = network();
        let (x, y) = (normal(1, &[16, 64]), normal(2, &[16, 4]));
        let mut step =
            nn::value_and_grad(|network: &mut nn::Sequential, (x, y): (&Array, &Array)| loss(network, rule, x, y));
        let mut optimizer = Sgd::new(0.05);
        let (losses, counters) = Counters::during(|| {
            (0..30)
                .map(|_| {
                    let (value, gradients) = step(&mut network, (&x, &y)).expect("a step");
                    optimizer.update(&mut network, gradients).expect("an update");
                    value.item_exact::<f32>()
                })
                .collect::<Vec<_>>()
        });
        assert!(losses[29] < 0.7 * losses[0], "{losses:?}");
        assert_eq!(counters.materialized, 0);
    }
}

#[test]
fn gradients_are_those_of_the_dense_network_at_the_quantized_weights() {
    for rule in [nf4 as Rule, affine] {
        let mut straight = network();
        let (x, y) = (normal(1, &[16, 64]), normal(2, &[16, 4]));
        let mut dense = network();
        let inner = quantized(&dense, rule).expect("quantizes");
        for (path, slot) in dense.parameters_mut().flatten() {
            if let Some(value) = inner.get(&*path) {
                *slot = value.dense().expect("builds");
            }
        }
        let plain = |network: &mut nn::Sequential, (x, y): (&Array, &Array)| {
            network.forward(x)?.subtract(y)?.square()?.mean(None)
        };
        let (value, expected) = nn::value_and_grad(plain)(&mut dense, (&x, &y)).expect("dense");
        let _deny = Policy::Deny.scope();
        let through = |network: &mut nn::Sequential, (x, y): (&Array, &Array)| loss(network, rule, x, y);
        let (found_value, found) = nn::value_and_grad(through)(&mut straight, (&x, &y)).expect("straight through");
        assert_close!(found_value, value, 1e-5);
        assert_eq!(found.len(), expected.len());
        for (path, gradient) in &found {
            let error = relative_error(gradient, &expected[path]).expect("floats");
            assert!(error <= 1e-5, "{path}: {error}");
        }
    }
}
