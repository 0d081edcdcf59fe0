//! Models whose weights are trained as their codes.

use expect_test::expect;
use mlx_rs::module::{FlattenedModuleParam, Module, ModuleParameters};
use mlx_rs::optimizers::{Adam, Optimizer, Sgd};
use mlx_rs::{Array, Dtype, nn};
use tacit_arrays::format::{Int8, quantize_by_key};
use tacit_arrays::{Packed, TrainedCodes};
use tacit_core::compile::{CompileOptions, compile_with_state};
use tacit_core::{Error, Policy, Result, Value};
use tacit_nn::{Model, Outcome, ParameterFilter, Parameters, QatConfig, QuantizedState};

use crate::types::{error, normal, numbers, said_of};

type Layers = Model<nn::Sequential>;

fn float() -> Layers {
    mlx_rs::random::seed(3).expect("seeds");
    let linear = |inputs, outputs| nn::Linear::new(inputs, outputs).expect("builds");
    let layers = nn::Sequential::new().append(linear(64, 64)).append(nn::Relu).append(linear(64, 64));
    Model::new(layers).expect("a model")
}

fn model(seed: u64) -> Layers {
    let format: tacit_arrays::format::AnyFormat = "int8+stochastic".parse().expect("a format");
    float().prepare("*.weight", QatConfig::new(format).seed(seed)).expect("prepares")
}

fn gradients(model: &mut Layers, seed: u64) -> Result<(Array, FlattenedModuleParam)> {
    let (x, target) = (normal(seed, &[16, 64]), normal(seed + 1, &[16, 64]));
    model.value_and_grad(ParameterFilter::default(), x, |m, x: Array| {
        m.forward(&x)?.subtract(&target)?.square()?.mean(None)
    })
}

/// Steps of an optimizer on the same batch; the losses.
fn losses<O: Optimizer>(model: &mut Layers, optimizer: &mut O, steps: usize) -> Vec<f32> {
    let step = |_| {
        let (loss, gradients) = gradients(model, 1).expect("differentiates");
        model.update(optimizer, &gradients).expect("updates");
        model.eval().expect("evaluates");
        loss.item_exact::<f32>()
    };
    (0..steps).map(step).collect()
}

fn values(model: &Layers) -> Parameters {
    model.values().expect("values")
}

#[test]
fn codes_learn_without_a_master() {
    let mut model = model(0);
    let bytes = 2 * (64 * 64 + 64 * 4 + 8 + 64 * 4);
    assert_eq!(model.nbytes(), bytes);
    let mut adam = QuantizedState::eight_bits(Adam::new(1e-2)).expect("formats").from_elements(1);
    let found = losses(&mut model, &mut adam, 60);
    let expected = losses(&mut float(), &mut Adam::new(1e-2), 60);
    let (first, last) = (found[0], found[59]);
    assert!(last < 0.5 * first && last < expected[59] + 0.1 * first, "{first} {last} {}", expected[59]);
    assert_eq!(model.nbytes(), bytes);
    let paths = |only: ParameterFilter| model.leaves(&only).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    assert_eq!(
        paths(ParameterFilter::Masters)[..3],
        ["layers.0.weight.codes.codes", "layers.0.weight.codes.scales", "layers.0.weight.key"]
    );
    assert!(paths(ParameterFilter::Scales).is_empty());
    let x = normal(9, &[3, 64]);
    let trained = numbers(&model.forward(&x).expect("runs"));
    model.convert().expect("converts");
    assert_eq!(numbers(&model.forward(&x).expect("runs")), trained);
    assert_eq!(model.get("layers.0.weight").expect("is there").to_string(), "Int8(f32[64,64])");
    let report = model.report();
    assert!(matches!(&report.rows["layers.0.weight"].outcome, Outcome::Quantized { format, .. } if format == "int8"));
}

#[test]
fn a_step_is_that_of_the_floats_rounded_by_the_key() {
    let _allow = Policy::Allow.scope();
    let mut model = model(4);
    let path = "layers.2.weight";
    let before = model.get(path).expect("is there");
    let before = before.downcast::<TrainedCodes>().expect("is trained as codes").clone();
    let (_, gradients) = gradients(&mut model, 1).expect("differentiates");
    let gradient = &gradients["layers.2.weight.value"];
    assert_eq!(gradient.shape(), [64, 64]);
    model.update(&mut Sgd::new(0.5), &gradients).expect("updates");
    let moved = before.codes().dense().and_then(|w| Ok(w.subtract(gradient.multiply(Array::from_f32(0.5))?)?));
    let (kept, key) = mlx_rs::random::split(before.key(), 2).expect("splits");
    let expected = quantize_by_key(Int8::default(), &moved.expect("moves"), &key).expect("quantizes");
    let after = model.get(path).expect("is there");
    let after = after.downcast::<TrainedCodes>().expect("is trained as codes");
    assert!(*after.codes() == expected);
    assert!(after.key().eq_exact(&kept).expect("compares"));
    // A parameter without a gradient is what it was.
    let (mut other, bias) = (self::model(4), gradients["layers.0.bias"].clone());
    let only: FlattenedModuleParam = [("layers.0.bias".into(), bias)].into_iter().collect();
    other.update(&mut Sgd::new(0.5), &only).expect("updates");
    assert!(other.get(path).expect("is there") == Value::from(before));
}

/// Weights of one shape that had one key would be rounded alike in every step.
#[test]
fn each_weight_has_a_key_of_its_own() {
    let mut one = float();
    // The first one twice.
    for path in ["layers.0.weight", "layers.0.weight", "layers.2.weight"] {
        one = one.prepare(path, "int8+stochastic").expect("prepares");
    }
    assert!(values(&one) == values(&model(0)), "by one call or several");
    let keys = ["layers.0.weight", "layers.2.weight"].map(|path| {
        let weight = one.get(path).expect("is there");
        weight.downcast::<TrainedCodes>().expect("is trained as codes").key().clone()
    });
    assert!(!keys[0].eq_exact(&keys[1]).expect("compares"));
}

/// A step makes codes and scales anew, and not what was said of them.
#[test]
fn a_step_keeps_the_type_of_scales_and_rounded_activations() {
    for text in ["affine:8:64+stochastic", "symmetric:8:64+stochastic"] {
        let mut model = float().prepare("*.weight", text).expect("prepares");
        model.cast_scales(Dtype::Bfloat16).expect("casts");
        model.int8_activations("*.weight").expect("rounds");
        let bytes = model.nbytes();
        let (_, gradients) = gradients(&mut model, 1).expect("differentiates");
        model.update(&mut Sgd::new(0.1), &gradients).expect("updates");
        assert_eq!(model.nbytes(), bytes, "{text}");
        let weight = model.get("layers.0.weight").expect("is there");
        let codes = weight.downcast::<TrainedCodes>().expect("is trained as codes").codes();
        assert!(codes.family::<dyn Packed>().is_some_and(Packed::int8_activations), "{text}");
    }
}

#[test]
fn a_compiled_step_is_the_eager_one() {
    let new = || (model(1), QuantizedState::eight_bits(Adam::new(1e-3)).expect("formats"));
    let step = |(model, adam): &mut (Layers, QuantizedState<Adam>), x: Array| {
        let trained = ParameterFilter::default();
        let (loss, gradients) = model.value_and_grad(trained, &x, |m, x: &Array| m.forward(x)?.square()?.mean(None))?;
        model.update(adam, &gradients)?;
        Ok::<_, Error>(loss)
    };
    let (mut eager, mut compiled) = (new(), new());
    let mut function = compile_with_state(CompileOptions::default(), step);
    for at in 0..5 {
        let x = normal(10 + at, &[16, 64]);
        let expected = numbers(&step(&mut eager, x.clone()).expect("runs"))[0];
        let found = function.call(&mut compiled, x).and_then(|loss| loss.dense()).expect("runs");
        let found = numbers(&found)[0];
        // A float that differs in its last bit may be rounded to another code.
        assert!((expected - found).abs() < 1e-2 * expected, "{expected} and {found} in step {at}");
    }
    assert_eq!(function.stats().traces, 2);
    let keys = [&eager, &compiled].map(|(model, _)| {
        let value = model.get("layers.0.weight").expect("is there");
        value.downcast::<TrainedCodes>().expect("is trained as codes").key().clone()
    });
    assert!(keys[0].eq_exact(&keys[1]).expect("compares"));
}

/// What a file of the trained leaves has, codes and keys among them.
#[test]
fn a_run_goes_on_to_the_same_bits() {
    let (mut first, mut adam) = (model(2), Adam::new(1e-3));
    losses(&mut first, &mut adam, 2);
    let trained = ParameterFilter::default();
    let leaves = first.lasting_leaves(&trained).into_iter().map(|(path, array)| (path, array.clone()));
    let (leaves, kinds) = (leaves.collect::<Vec<_>>(), first.leaf_kinds(&trained).expect("has kinds"));
    let mut second = model(7);
    second.load_leaves(leaves, Some(&kinds)).expect("fits");
    assert!(values(&first) == values(&second));
    let mut other = adam.clone();
    assert_eq!(losses(&mut first, &mut adam, 3), losses(&mut second, &mut other, 3));
    assert!(values(&first) == values(&second));
}

fn loss(model: &mut Layers, x: &Array) -> Result<Array> {
    Ok(model.forward(x)?.square()?.mean(None)?)
}

/// As a penalty of gradients takes one, and a loss of what a step would make.
#[test]
fn a_gradient_inside_a_loss_leaves_the_outer_one_its_leaves() {
    let (mut model, x) = (model(5), normal(1, &[16, 64]));
    let trained = ParameterFilter::default;
    let (_, plain) = model.value_and_grad(trained(), &x, loss).expect("differentiates");
    let nested = model.value_and_grad(trained(), &x, |model, x| {
        let (_, inner) = model.value_and_grad(trained(), x, loss)?;
        expect![[r#"
            a step is made inside a gradient, which does not go through codes that are rounded at random
            help: make the step of what is trained as its codes after `Model::value_and_grad` has returned"#]]
        .assert_eq(&error(model.update(&mut Sgd::new(0.5), &inner)).to_string());
        loss(model, x)
    });
    let (_, nested) = nested.expect("differentiates");
    assert_eq!(nested.len(), plain.len());
    for (path, gradient) in &plain {
        assert!(nested[path].eq_values(gradient).expect("compares"), "{path}");
    }
    assert!(model.parameters().flatten().keys().all(|path| !path.ends_with("value")));
}

#[test]
fn what_fails_changes_nothing() {
    let mut model = model(3);
    let before = values(&model);
    let (_, mut gradients) = gradients(&mut model, 1).expect("differentiates");
    assert!(values(&model) == before, "a gradient changes nothing");
    gradients.insert("layers.2.weight.value".into(), normal(1, &[63, 64]));
    let mut said = said_of(model.update(&mut Adam::new(1e-3), &gradients));
    assert!(values(&model) == before);
    let failed =
        model.value_and_grad(ParameterFilter::default(), (), |_, ()| Err::<Array, _>(Error::decline("no loss")));
    assert!(failed.is_err() && values(&model) == before);
    // mlx-rs's own step knows of no such leaf.
    gradients.remove("layers.2.weight.value");
    Adam::new(1e-3).update(&mut model, &gradients).expect("passes over it");
    assert!(values(&model)["layers.0.weight"] == before["layers.0.weight"]);
    assert!(model.parameters().flatten().keys().all(|path| !path.ends_with("value")));
    said += &said_of(model.switch_quantization(false));
    model.switch_quantization(true).expect("it is on");
    assert!(values(&model)["layers.0.weight"] == before["layers.0.weight"]);
    let config = QatConfig::new(tacit_arrays::format::Stochastic::new(Int8::default()).expect("draws"));
    said += &said_of(float().prepare("*.weight", config.trained_scales()));
    expect![[r#"
        the leaf layers.2.weight.value is f32[64,64], and its gradient is f32[63,64]
        help: give a gradient of the leaf's own shape
        the parameter layers.0.weight is trained as its codes, and has no floats to be trained in
        help: prepare it in a format that rounds to the nearest for a run that begins in floats
        the parameter layers.0.weight: in the format int8+stochastic codes are trained, and no scales beside them
        help: train scales with a format that rounds to the nearest, or leave `trained_scales` out
    "#]]
    .assert_eq(&said);
}
