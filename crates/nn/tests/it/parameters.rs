//! mlx-rs modules with other parameters for the length of a call.

use mlx_rs::builder::Builder;
use mlx_rs::module::{Module, ModuleParameters, ModuleParametersExt};
use mlx_rs::{Array, nn};
use tacit_arrays::Nf4Array;
use tacit_core::{Error, Policy, Result, Taker, Value};
use tacit_nn::{Parameters, explain_with_parameters, with_parameters};

use crate::types::{Hidden, dense, error, matrix, normal, numbers, vector};

fn linear() -> nn::Linear {
    let mut linear = nn::Linear::new(2, 3).expect("builds");
    linear.weight.value = matrix(3, 2);
    linear.bias.value = Some(vector(&[0.5, 0.5, 0.5]));
    linear
}

fn one(path: &str, value: impl Into<Value>) -> Parameters {
    Parameters::from([(path.to_owned(), value.into())])
}

fn other_weight() -> Value {
    Hidden::of(Hidden::of(matrix(3, 2).negative().expect("builds")))
}

fn has_its_own(linear: &nn::Linear) -> bool {
    numbers(&linear.weight) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
}

#[test]
fn a_parameter_is_replaced_during_the_call_only() {
    let _allow = Policy::Allow.scope();
    let (mut linear, x) = (linear(), vector(&[1.0, 1.0]).reshape(&[1, 2]).expect("builds"));
    let value = with_parameters(&mut linear, &one("weight", other_weight()), |linear| linear.forward(&x));
    assert_eq!(dense(&value.expect("runs")), [-2.5, -6.5, -10.5]);
    assert!(has_its_own(&linear));
    assert_eq!(numbers(&linear.forward(&x).expect("runs")), [3.5, 7.5, 11.5]);
}

#[test]
fn dense_parameters_and_several_at_once_work_alike() {
    let _allow = Policy::Allow.scope();
    let (mut linear, x) = (linear(), vector(&[1.0, 1.0]).reshape(&[1, 2]).expect("builds"));
    let mut parameters = one("weight", other_weight());
    parameters.insert("bias".to_owned(), vector(&[0.0; 3]).into());
    let value = with_parameters(&mut linear, &parameters, |linear| linear.forward(&x)).expect("runs");
    assert_eq!(dense(&value), [-3.0, -7.0, -11.0]);
    assert_eq!(numbers(linear.bias.value.as_ref().expect("has one")), [0.5; 3]);
}

#[test]
fn the_module_has_its_own_back_after_an_error() {
    let mut linear = linear();
    let failed: Result<Value> =
        with_parameters(&mut linear, &one("weight", other_weight()), |_| Err::<Array, _>(Error::invalid("no", "yes")));
    assert!(failed.is_err() && has_its_own(&linear));
}

#[test]
fn the_module_has_its_own_back_after_a_panic() {
    let mut linear = linear();
    let panicked =
        with_parameters(&mut linear, &one("weight", other_weight()), |_| -> Result<Array> { panic!("on purpose") });
    assert!(panicked.is_err() && has_its_own(&linear));
}

#[test]
fn the_module_has_its_own_back_after_an_eval_inside() {
    let mut linear = linear();
    let failed = with_parameters(&mut linear, &one("weight", other_weight()), |linear| {
        linear.weight.eval()?;
        linear.forward(&vector(&[1.0, 1.0]))
    });
    assert!(matches!(error(failed), Error::EvalInTrace));
    assert!(has_its_own(&linear));
}

#[test]
fn a_path_that_is_not_there_names_those_that_are() {
    let failed =
        with_parameters(&mut linear(), &one("wieght", other_weight()), |linear| linear.forward(&vector(&[1.0, 1.0])));
    expect_test::expect![[r"
        the module has no parameter wieght
        help: its parameters are bias, weight"]]
    .assert_eq(&error(failed).to_string());
}

#[test]
fn another_shape_is_an_error() {
    let failed = with_parameters(&mut linear(), &one("weight", Hidden::of(matrix(2, 3))), |linear| {
        linear.forward(&vector(&[1.0, 1.0]))
    });
    expect_test::expect![[r"
        the parameter weight is f32[3,2] and was given Hidden(f32[2,3])
        help: give a value of the parameter's own shape and dtype"]]
    .assert_eq(&error(failed).to_string());
}

#[test]
fn nested_modules_have_paths() {
    let _allow = Policy::Allow.scope();
    let mut model =
        nn::Sequential::new().append(linear()).append(nn::Relu).append(nn::Linear::new(3, 2).expect("builds"));
    let path = model.parameters().flatten().into_keys().find(|path| path.ends_with("0.weight")).expect("has one");
    let x = vector(&[1.0, 1.0]);
    let parameters = one(&path, other_weight());
    let explanation = explain_with_parameters(&mut model, &parameters, |model| model.forward(&x)).expect("runs");
    assert_eq!(explanation.equations.iter().filter(|equation| equation.taker == Taker::Materialized).count(), 1);
    let value = with_parameters(&mut model, &parameters, |model| model.forward(&x)).expect("runs");
    let bias =
        model.parameters().flatten().into_iter().find(|(path, _)| path.ends_with("2.bias")).expect("has one").1.clone();
    assert_eq!(dense(&value), numbers(&bias), "negative activations leave only the last bias");
}

/// NF4, then batch normalization in training mode.
fn normalized() -> (nn::Sequential, Parameters) {
    let linear = nn::Linear::new(64, 8).expect("builds");
    let weight = Nf4Array::quantize(&linear.weight, 64).expect("quantizes");
    let model = nn::Sequential::new().append(linear).append(nn::BatchNorm::new(8).expect("builds"));
    model.eval().expect("evaluates");
    (model, Parameters::from([("layers.0.weight".to_owned(), weight.into())]))
}

fn parameter(model: &impl ModuleParameters, path: &str) -> Vec<f32> {
    numbers(model.parameters().flatten()[path])
}

/// The dense model with the same weight built.
fn built(model: &mut nn::Sequential, parameters: &Parameters) {
    let _allow = Policy::Allow.scope();
    for (path, slot) in model.parameters_mut().flatten() {
        if let Some(value) = parameters.get(&*path) {
            *slot = value.dense().expect("builds");
        }
    }
}

#[test]
fn statistics_that_the_forward_pass_assigns_stay_and_are_dense() {
    let _deny = Policy::Deny.scope();
    let (mut model, parameters) = normalized();
    let (mut expected, _) = normalized();
    expected.update_flattened(model.parameters().flatten().into_iter().map(|(p, a)| (p, a.clone())).collect());
    built(&mut expected, &parameters);
    for seed in 0..3 {
        let x = normal(seed, &[16, 64]);
        let y = with_parameters(&mut model, &parameters, |model| model.forward(&x)).expect("runs");
        let dense_y = expected.forward(&x).expect("runs");
        assert!(y.as_dense().expect("dense").all_close(&dense_y, 1e-4, 1e-4, None).expect("runs"));
        for path in ["layers.1.running_mean", "layers.1.running_var"] {
            let pairs = parameter(&model, path).into_iter().zip(parameter(&expected, path));
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-4), "{path} after step {seed}");
        }
    }
    assert_ne!(parameter(&model, "layers.1.running_mean"), [0.0; 8]);
    assert_eq!(parameter(&model, "layers.1.weight"), [1.0; 8]);
}

#[test]
fn a_failure_after_the_statistics_leaves_all_parameters_as_they_were() {
    let (mut model, parameters) = normalized();
    let before: Vec<_> = model.parameters().flatten().into_iter().map(|(path, a)| (path, numbers(a))).collect();
    let x = normal(1, &[16, 64]);
    let failed = with_parameters(&mut model, &parameters, |model| {
        model.forward(&x)?;
        Err::<Array, _>(Error::invalid("after all", "none"))
    });
    assert_eq!(error(failed).to_string(), "after all\nhelp: none");
    let evaluated = with_parameters(&mut model, &parameters, |model| {
        model.forward(&x)?.eval()?;
        model.forward(&x)
    });
    assert!(matches!(error(evaluated), Error::EvalInTrace));
    let panicked = with_parameters(&mut model, &parameters, |model| -> Result<Array> {
        model.forward(&x)?;
        panic!("on purpose")
    });
    assert!(panicked.is_err());
    // Refused while the trace is interpreted, long after the function returned.
    let _deny = Policy::Deny.scope();
    let refused =
        with_parameters(&mut model, &one("layers.1.weight", Hidden::of(vector(&[1.0; 8]))), |model| model.forward(&x));
    assert!(error(refused).to_string().contains("Hidden(f32[8])"));
    let explained = explain_with_parameters(&mut model, &parameters, |model| model.forward(&x)).expect("runs");
    assert!(explained.counters.handled > 0);
    for (path, values) in before {
        assert_eq!(parameter(&model, &path), values, "{path}");
    }
    model.forward(&x).expect("runs").eval().expect("nothing of a trace is left");
}

#[test]
fn a_parameter_that_appears_stays_where_the_function_runs_through() {
    let mut linear = nn::LinearBuilder::new(2, 3).bias(false).build().expect("builds");
    linear.weight.value = matrix(3, 2);
    let _allow = Policy::Allow.scope();
    let y = with_parameters(&mut linear, &one("weight", other_weight()), |linear| {
        linear.bias.value = Some(linear.weight.sum_axis(1, false)?);
        linear.forward(&vector(&[1.0, 1.0]))
    });
    assert_eq!(dense(&y.expect("runs")), [-6.0, -14.0, -22.0]);
    assert_eq!(numbers(linear.bias.value.as_ref().expect("appeared")), [-3.0, -7.0, -11.0]);
    assert!(has_its_own(&linear));
}
