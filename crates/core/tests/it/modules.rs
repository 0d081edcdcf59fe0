//! mlx-rs modules with implicit parameters.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_rs::module::{Module, ModuleParameters};
use mlx_rs::{Array, nn};
use tacit::{Error, Parameters, Result, Value, explain_with_parameters, with_parameters};

use crate::types::{Left, Outer, dense, error, matrix, numbers, taker, vector, without_handlers};

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
    Outer::of(Left::of(&matrix(3, 2).negative().expect("builds")))
}

fn has_its_own(linear: &nn::Linear) -> bool {
    numbers(&linear.weight) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
}

#[test]
fn a_parameter_is_replaced_during_the_call_only() {
    let _scopes = without_handlers();
    let (mut linear, x) = (linear(), vector(&[1.0, 1.0]).reshape(&[1, 2]).expect("builds"));
    let value = with_parameters(&mut linear, &one("weight", other_weight()), |linear| linear.forward(&x));
    assert_eq!(dense(&value.expect("runs")), [-2.5, -6.5, -10.5]);
    assert!(has_its_own(&linear));
    assert_eq!(numbers(&linear.forward(&x).expect("runs")), [3.5, 7.5, 11.5]);
}

#[test]
fn dense_parameters_and_several_at_once_work_alike() {
    let _scopes = without_handlers();
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
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        with_parameters(&mut linear, &one("weight", other_weight()), |_| -> Result<Array> { panic!("on purpose") })
    }));
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
    let failed = with_parameters(&mut linear(), &one("weight", Left::of(&matrix(2, 3))), |linear| {
        linear.forward(&vector(&[1.0, 1.0]))
    });
    expect_test::expect![[r"
        the parameter weight is f32[3,2] and was given Left(f32[2,3])
        help: give a value of the parameter's own shape and dtype"]]
    .assert_eq(&error(failed).to_string());
}

#[test]
fn nested_modules_have_paths() {
    let _scopes = without_handlers();
    let mut model =
        nn::Sequential::new().append(linear()).append(nn::Relu).append(nn::Linear::new(3, 2).expect("builds"));
    let path = model.parameters().flatten().into_keys().find(|path| path.ends_with("0.weight")).expect("has one");
    let x = vector(&[1.0, 1.0]);
    let parameters = one(&path, other_weight());
    let explanation = explain_with_parameters(&mut model, &parameters, |model| model.forward(&x)).expect("runs");
    assert_eq!(explanation.equations.iter().filter(|equation| taker(equation) == "materialized").count(), 1);
    let value = with_parameters(&mut model, &parameters, |model| model.forward(&x)).expect("runs");
    let bias =
        model.parameters().flatten().into_iter().find(|(path, _)| path.ends_with("2.bias")).expect("has one").1.clone();
    assert_eq!(dense(&value), numbers(&bias), "negative activations leave only the last bias");
}
