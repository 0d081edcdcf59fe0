//! Steps of models whose activations are saved in a format.

use expect_test::expect;
use mlx_rs::module::{FlattenedModuleParam, Module};
use mlx_rs::optimizers::{Adam, Optimizer};
use mlx_rs::{Array, nn, random};
use tacit_arrays::format::Nf4;
use tacit_arrays::saved;
use tacit_core::compile::CompileOptions;
use tacit_core::{Counters, Error, Policy, Result, compile_with_state};
use tacit_nn::{LoraConfig, Model, ParameterFilter, Rules, Stateful};

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
        let (outcome, counters) = Counters::during(|| step(&mut model, filter, Some("affine:8:64")));
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

#[test]
fn a_rule_by_path_saves_in_a_step_of_any_model() {
    for (mut model, filter) in [(model(), ParameterFilter::Dense), (adapted(), ParameterFilter::Lora)] {
        let _deny = Policy::Deny.scope();
        let (plain_loss, plain) = step(&mut model, filter.clone(), None).expect("a step");
        let error_of = |model: &mut Model<nn::Sequential>| {
            let (outcome, counters) = Counters::during(|| step(model, filter.clone(), None));
            let (loss, gradients) = outcome.expect("a step");
            assert_eq!((counters.materialized, counters.materialized_bytes), (0, 0));
            assert_eq!(numbers(&loss), numbers(&plain_loss));
            assert_eq!(gradients.len(), plain.len());
            relative_error(&gradients, &plain)
        };
        model.saved_activations("layers.*", "affine:8:64").expect("names parameters");
        let format_of = |model: &Model<nn::Sequential>, path| model.saved_activations_of(path).map(ToString::to_string);
        assert_eq!(format_of(&model, "layers.0.weight").as_deref(), Some("affine:8:64"));
        let all = error_of(&mut model);
        assert!(all > 0.0 && all < 1e-2, "{all}");
        // The first layer and what comes before the next one.
        let last = Rules::new().skip("layers.0.*").and_then(|rules| rules.quantize("*", "affine:8:64")).expect("rules");
        model.saved_activations("*", &last).expect("names parameters");
        assert_eq!(format_of(&model, "layers.0.weight"), None);
        let some = error_of(&mut model);
        assert!(some > 0.0 && some < all, "{some} of {all}");
        model.saved_activations("*", &Rules::new().skip("*").expect("a rule")).expect("names parameters");
        assert!(error_of(&mut model) == 0.0);
        assert_eq!(
            model.get("layers.0.bias").expect("is there").to_string(),
            "f32[128]",
            "parameters are what they were"
        );
    }
}

#[test]
fn what_is_made_of_parameters_alone_is_plain() {
    let _deny = Policy::Deny.scope();
    let mut model = Model::new(nn::Linear::new(64, 1).expect("builds")).expect("reads");
    model.saved_activations("*", "affine:8:64").expect("names parameters");
    let only = ParameterFilter::Paths("weight".parse().expect("a pattern"));
    let step = model.value_and_grad(only, (), |model, ()| {
        model.run(|linear| -> Result<Array> {
            let bias = linear.bias.value.take().expect("has one");
            linear.bias.value = Some(bias.multiply(Array::from_f32(0.5))?);
            Ok(linear.weight.sum(None)?.add(bias)?)
        })
    });
    step.expect("no activation is materialized");
    assert!(!model.get("bias").expect("is there").is_implicit());
}

#[test]
fn a_compiled_step_saves_by_path_and_traces_anew_where_a_rule_changes() {
    let mut state = (adapted(), Stateful(Adam::new(1e-3)));
    let mut compiled = compile_with_state(
        CompileOptions::default(),
        |(model, optimizer): &mut (Model<nn::Sequential>, Stateful<Adam>), _: Array| -> Result<Array> {
            let (loss, gradients) = step(model, ParameterFilter::Lora, None)?;
            optimizer.update(model, &gradients)?;
            Ok(loss)
        },
    );
    let mut traces = 0;
    for (number, expected) in eager(None, 10).into_iter().enumerate() {
        if number == 5 {
            traces = compiled.stats().traces;
            state.0.saved_activations("*", "affine:8:64").expect("names parameters");
        }
        let loss = compiled.call(&mut state, Array::from_f32(0.0)).and_then(|loss| loss.dense()).expect("a step");
        let loss = numbers(&loss)[0];
        assert!((loss - expected).abs() < 1e-2 * expected, "{loss} and not {expected} in step {number}");
    }
    assert_eq!(compiled.stats().traces, traces + 1);
}

#[test]
fn rules_that_name_nothing_are_an_error() {
    let mut model = model();
    let Err(error) = model.saved_activations("layer.*", "int8") else { panic!("there is no such parameter") };
    expect![[r#"
        no float parameter of the model is named by the rules
        help: its parameters are layers.0.bias, layers.0.weight, layers.2.bias, layers.2.weight, layers.4.bias, layers.4.weight"#]]
    .assert_eq(&error.to_string());
}

/// When it is asked for, and not with the first gradient.
#[test]
fn a_format_that_rounds_at_random_is_refused() {
    let mut model = model();
    let Err(error) = model.saved_activations("layers.0.*", "int8+stochastic") else { panic!("there is no key") };
    expect![[r#"
        the parameter layers.0.bias: activations are not saved in the format int8+stochastic, which rounds by a random key
        help: write int8"#]]
    .assert_eq(&error.to_string());
    step(&mut model, ParameterFilter::default(), None).expect("it is what it was");
}
