//! Steps of models whose activations are saved in a format.

use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, nn, random};
use tacit_arrays::format::Nf4;
use tacit_arrays::saved;
use tacit_core::compile::CompileOptions;
use tacit_core::{Counters, Error, Policy, Result, compile_with_state};
use tacit_nn::{LoraConfig, Model, ParameterFilter, Stateful};

use crate::types::{normal, numbers};

fn model() -> Model<nn::Sequential> {
    random::seed(7).expect("seeds");
    let linear = |inputs, outputs| nn::Linear::new(inputs, outputs).expect("builds");
    let layers = nn::Sequential::new().append(linear(64, 128)).append(nn::Relu).append(linear(128, 64));
    Model::new(layers.append(nn::Gelu::new()).append(linear(64, 4))).expect("reads")
}

/// Adapters over weights of 4 bits.
fn adapted() -> Model<nn::Sequential> {
    let config = LoraConfig { rank: 4, alpha: 8.0, ..LoraConfig::default() };
    let model = model().quantize("*.weight", Nf4 { block: 64, double: false }).expect("quantizes");
    let mut model = model.lora("*.weight", config).expect("adapts");
    // At first the second factors are zeros, and the first have no gradient.
    let mut optimizer = Adam::new(1e-2);
    let (_, gradients) = step(&mut model, ParameterFilter::Lora, None).expect("a step");
    optimizer.update(&mut model, &gradients).expect("an update");
    model
}

type Step = Result<(Array, FlattenedModuleParam)>;

fn step(model: &mut Model<nn::Sequential>, filter: ParameterFilter, format: Option<&str>) -> Step {
    let (x, y) = (normal(1, &[32, 64]), normal(2, &[32, 4]));
    model.value_and_grad(filter, (x, y), |model, (x, y)| -> Result<Array> {
        let found = match format {
            Some(format) => saved(format, |x: Array| model.forward(&x))?.call(x)?.dense()?,
            None => model.forward(&x)?,
        };
        Ok(found.subtract(y)?.square()?.mean(None)?)
    })
}

fn relative_error(found: &FlattenedModuleParam, expected: &FlattenedModuleParam) -> f32 {
    let square = |array: &Array| array.square().and_then(|x| x.sum(None)).expect("sums").item_exact::<f32>();
    let (mut off, mut all) = (0.0, 0.0);
    for (path, expected) in expected {
        off += square(&found[path].subtract(expected).expect("one shape"));
        all += square(expected);
    }
    (off / all).sqrt()
}

#[test]
fn a_step_of_any_model_takes_saved_activations() {
    for (mut model, filter) in [(model(), ParameterFilter::Dense), (adapted(), ParameterFilter::Lora)] {
        let _deny = Policy::Deny.scope();
        let (plain_loss, plain) = step(&mut model, filter.clone(), None).expect("a step");
        let (outcome, counters) = Counters::of(|| step(&mut model, filter, Some("affine:8:64")));
        let (loss, gradients) = outcome.expect("a step");
        assert_eq!((counters.materialized, counters.materialized_bytes), (0, 0));
        assert_eq!(numbers(&loss), numbers(&plain_loss));
        let error = relative_error(&gradients, &plain);
        assert!(gradients.len() == plain.len() && error > 0.0 && error < 1e-2, "{error}");
    }
}

/// The losses of a run without `compile`.
fn eager(format: Option<&str>, steps: usize) -> Vec<f32> {
    let (mut model, mut optimizer) = (adapted(), Adam::new(1e-3));
    let losses = (0..steps).map(|_| {
        let (loss, gradients) = step(&mut model, ParameterFilter::Lora, format).expect("a step");
        optimizer.update(&mut model, &gradients).expect("an update");
        numbers(&loss)[0]
    });
    losses.collect()
}

#[test]
fn a_run_learns_as_a_plain_one() {
    let (plain, found) = (eager(None, 20), eager(Some("affine:8:64"), 20));
    println!("{} to {}, and to {}", plain[0], plain[19], found[19]);
    assert!(plain[19] < 0.5 * plain[0], "{plain:?}");
    for (step, (found, plain)) in found.iter().zip(&plain).enumerate() {
        assert!((found - plain).abs() < 1e-2 * plain, "{found} and not {plain} in step {step}");
    }
}

#[test]
fn a_compiled_step_takes_them_too() {
    let mut state = (adapted(), Stateful(Adam::new(1e-3)));
    let mut compiled = compile_with_state(
        CompileOptions::default(),
        |(model, optimizer): &mut (Model<nn::Sequential>, Stateful<Adam>), _: Array| -> Result<Array> {
            let (loss, gradients) = step(model, ParameterFilter::Lora, Some("affine:8:64"))?;
            optimizer.update(model, &gradients)?;
            Ok(loss)
        },
    );
    let nothing = Array::from_f32(0.0);
    for expected in eager(Some("affine:8:64"), 20) {
        let loss = compiled.call(&mut state, &nothing).and_then(|loss| loss.dense()).expect("a step");
        assert!((numbers(&loss)[0] - expected).abs() < 1e-3 * expected, "{loss:?} and not {expected}");
    }
}

#[test]
fn an_error_leaves_the_model_as_it_was() {
    let mut model = adapted();
    let x = normal(1, &[32, 64]);
    let before = numbers(&model.forward(&x).expect("runs"));
    let failed = model.value_and_grad(ParameterFilter::Lora, &x, |model, x| -> Result<Array> {
        let layers = |x: Array| -> Result<Array> {
            model.forward(&x)?;
            Err(Error::refuse("of its own"))
        };
        Ok(saved("affine:8:64", layers)?.call(x)?.dense()?.sum(None)?)
    });
    assert!(matches!(failed, Err(Error::Refused { .. })), "{failed:?}");
    assert_eq!(numbers(&model.forward(&x).expect("runs")), before);
    step(&mut model, ParameterFilter::Lora, Some("affine:8:64")).expect("a step");
}
