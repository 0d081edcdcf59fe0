//! Calls of a model that fail after the function ran through.

use mlx_rs::macros::ModuleParameters;
use mlx_rs::module::{Module as _, Param};
use mlx_rs::{Array, nn, ops};
use tacit_core::{Error, Policy, Result, Value};
use tacit_nn::{Model, Module, ParameterFilter};

use crate::types::{dense, error, normal, numbers};

#[derive(Clone, Debug, ModuleParameters)]
#[module(root = mlx_rs)]
struct Two {
    #[param]
    a: Param<Array>,
    #[param]
    b: Param<Array>,
}

/// A result that the policy forbids to build: the bias and the state were changed all the same, and a second try counts twice.
#[test]
fn a_result_that_cannot_be_built_leaves_parameters_and_state() -> Result<()> {
    let mut model = Model::new(nn::Linear::new(64, 4)?)?.quantize("weight", "nf4:64")?;
    let bias = numbers(&model.get("bias")?.dense()?);
    let mut count = Value::from(ops::zeros::<f32>(&[1])?);
    let _deny = Policy::Deny.scope();
    let made = model.run_with(&mut count, |linear, count| {
        *count = count.dense()?.add(Array::from_f32(1.0))?.into();
        linear.bias.value = Some(ops::ones::<f32>(&[4])?);
        Ok::<_, Error>(linear.weight.value.clone())
    });
    assert!(matches!(error(made), Error::MaterializationDenied { .. }));
    assert_eq!(dense(&count), [0.0]);
    assert_eq!(numbers(&model.get("bias")?.dense()?), bias);
    Ok(())
}

/// What is no leaf of a state, too: later calls dropped nothing.
#[test]
fn a_result_that_cannot_be_built_leaves_the_mode_of_a_state() -> Result<()> {
    let mut model = Model::new(nn::Linear::new(64, 4)?)?.quantize("weight", "nf4:64")?;
    let mut dropout = Module::new(nn::Dropout::new());
    let _deny = Policy::Deny.scope();
    let made = model.run_with(&mut dropout, |linear, dropout| {
        dropout.training_mode(false);
        Ok::<_, Error>(linear.weight.value.clone())
    });
    assert!(matches!(error(made), Error::MaterializationDenied { .. }));
    assert!(numbers(&dropout.forward(&ops::ones::<f32>(&[1, 64])?)?).contains(&0.0));
    Ok(())
}

/// A module that cannot be copied, and has lost its bias, cannot be what it was: what failed is said all the same.
#[test]
fn a_result_that_cannot_be_built_says_what_a_state_has_lost() -> Result<()> {
    let mut model = Model::new(nn::Linear::new(64, 4)?)?.quantize("weight", "nf4:64")?;
    let mut other = Module::in_place(nn::Linear::new(64, 4)?);
    let _deny = Policy::Deny.scope();
    let made = model.run_with(&mut other, |linear, other| {
        other.bias.value = None;
        Ok::<_, Error>(linear.weight.value.clone())
    });
    let error = made.expect_err("it is not built");
    let Error::NotGivenBack { error, .. } = error else { panic!("{error}") };
    assert!(matches!(*error, Error::MaterializationDenied { .. }), "{error}");
    Ok(())
}

/// What is assigned to two paths of a tie is refused: parameters are what they were, and the state has to be.
#[test]
fn different_arrays_for_a_tie_leave_the_state() -> Result<()> {
    let of = |seed| Param::new(normal(seed, &[4]));
    let mut model = Model::new(Two { a: of(1), b: of(2) })?.tie("b", "a")?;
    let before = numbers(&model.get("a")?.dense()?);
    let mut count = Value::from(ops::zeros::<f32>(&[1])?);
    let made = model.run_with(&mut count, |two, count| {
        *count = count.dense()?.add(Array::from_f32(1.0))?.into();
        (two.a.value, two.b.value) = (normal(3, &[4]), normal(4, &[4]));
        Ok::<_, Error>(())
    });
    assert!(error(made).to_string().contains("which are tied, different arrays"));
    assert_eq!(numbers(&model.get("a")?.dense()?), before);
    assert_eq!(dense(&count), [0.0]);
    Ok(())
}

/// A module that cannot be copied is no result: what the function assigned goes with it.
#[test]
fn a_gradient_whose_results_cannot_be_made_leaves_the_model() -> Result<()> {
    let (mut model, other) = (Model::new(nn::Linear::new(4, 4)?)?, nn::Linear::new(2, 2)?);
    let bias = numbers(&model.get("bias")?.dense()?);
    let made = model.value_and_grad(ParameterFilter::default(), normal(1, &[2, 4]), |model, x| {
        model.set("bias", ops::ones::<f32>(&[4])?)?;
        let loss = model.forward(&x)?.square()?.mean(None)?;
        Ok::<_, Error>((loss, Module::in_place(other)))
    });
    assert!(made.is_err());
    assert_eq!(numbers(&model.get("bias")?.dense()?), bias);
    Ok(())
}
