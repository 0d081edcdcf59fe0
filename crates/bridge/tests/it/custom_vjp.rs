//! Functions with a gradient of their own, and what is checked of them.

use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::transforms::{fallible_vjp, grad};
use mlx_rs::{Array, Dtype};
use tacit_bridge::{BoxError, Differentiable, GradientError, PanicError, custom_vjp, recover};

use crate::arrays::{numbers, vector};

type Forward = fn(&[Array]) -> Result<Vec<Array>, BoxError>;
type Backward = fn(&[Array], &[Array], &[Array]) -> Result<Vec<Array>, BoxError>;

/// A function made of two others, and something that is dropped with it.
struct Made(Forward, Backward, #[allow(dead_code, reason = "only its drop is seen")] Arc<()>);

impl Differentiable for Made {
    fn name(&self) -> &'static str {
        "made"
    }

    fn forward(&self, args: &[Array]) -> Result<Vec<Array>, BoxError> {
        self.0(args)
    }

    fn backward(&self, primals: &[Array], cotangents: &[Array], outputs: &[Array]) -> Result<Vec<Array>, BoxError> {
        self.1(primals, cotangents, outputs)
    }
}

fn sum(args: &[Array]) -> Result<Vec<Array>, BoxError> {
    Ok(vec![args[0].add(&args[1])?])
}

fn custom(forward: Forward, backward: Backward) -> Made {
    Made(forward, backward, Arc::new(()))
}

/// The gradients of a sum of two vectors with this vjp.
fn gradients(backward: Backward) -> Result<Vec<Array>, Exception> {
    let f =
        |args: &[Array]| custom_vjp(custom(sum, backward), args).map_err(|error| Exception::custom(error.to_string()));
    fallible_vjp(f, &[vector(&[1.0, 2.0]), vector(&[3.0, 4.0])], &[vector(&[10.0, 20.0])])
        .map(|(_, gradients)| gradients)
}

#[test]
fn it_gets_primals_cotangents_and_outputs() {
    let result =
        gradients(|primals, cotangents, outputs| Ok(vec![primals[0].multiply(&cotangents[0])?, outputs[0].clone()]));
    assert_eq!(result.expect("fits").iter().map(numbers).collect::<Vec<_>>(), [[10.0, 40.0], [4.0, 6.0]]);
}

#[test]
fn several_outputs() {
    let forward: Forward = |args| Ok(vec![args[0].clone(), args[0].square()?]);
    let backward: Backward = |primals, cotangents, outputs| {
        assert_eq!((primals.len(), cotangents.len(), outputs.len()), (1, 2, 2));
        Ok(vec![cotangents[0].add(&cotangents[1])?])
    };
    let f = move |x: &Array| {
        let out = custom_vjp(custom(forward, backward), std::slice::from_ref(x))
            .map_err(|error| Exception::custom(error.to_string()))?;
        out[1].multiply(Array::from_f32(3.0))?.add(&out[0])?.sum(None)
    };
    assert_eq!(numbers(&grad(f)(&vector(&[5.0, 6.0])).expect("fits")), [4.0, 4.0]);
}

#[test]
fn number_shape_and_dtype_of_the_gradients_are_checked() {
    let cases: [(Backward, &str); 4] = [
        (|_, _, _| Ok(vec![]), "the vjp of made gave 0 gradients for 2 arguments"),
        (|primals, _, _| Ok(primals[..1].to_vec()), "the vjp of made gave 1 gradients for 2 arguments"),
        (
            |primals, _, _| Ok(vec![primals[0].clone(), primals[1].sum(None)?]),
            "the vjp of made gave f32[] as the gradient of argument 1, which is f32[2]",
        ),
        (
            |primals, _, _| Ok(vec![primals[0].as_dtype(Dtype::Float16)?, primals[1].clone()]),
            "the vjp of made gave f16[2] as the gradient of argument 0, which is f32[2]",
        ),
    ];
    for (backward, message) in cases {
        let error = gradients(backward).expect_err("does not fit");
        assert!(error.what().contains(message), "{error}");
        assert!(recover(error.what()).expect("kept").is::<GradientError>());
    }
}

#[test]
fn errors_and_panics_come_out_as_errors() {
    let error = gradients(|_, _, _| Err("the vjp's own words".into())).expect_err("fails");
    assert!(error.what().contains("the vjp's own words"), "{error}");
    let error = gradients(|_, _, _| panic!("the vjp's own panic")).expect_err("panics");
    assert!(error.what().contains("panicked: the vjp's own panic"), "{error}");
    assert!(recover(error.what()).expect("kept").is::<PanicError>());
    let args = [vector(&[1.0]), vector(&[2.0])];
    let none: Backward = |_, _, _| Ok(vec![]);
    let error = custom_vjp(custom(|_| Err("the function's own words".into()), none), &args).expect_err("fails");
    assert_eq!(error.to_string(), "the function's own words");
    let error = custom_vjp(custom(|_| panic!("the function's own panic"), none), &args).expect_err("panics");
    assert_eq!(error.to_string(), "panicked: the function's own panic");
}

#[test]
fn a_function_without_results_is_an_error() {
    let error = custom_vjp(custom(|_| Ok(vec![]), |_, _, _| Ok(vec![])), &[vector(&[1.0])]).expect_err("no result");
    assert_eq!(error.to_string(), "made gave no result");
}

#[test]
fn it_lives_as_long_as_its_graph() {
    let count = Arc::new(());
    let function = Made(sum, |_, _, _| Ok(vec![]), Arc::clone(&count));
    let result = custom_vjp(function, &[vector(&[1.0]), vector(&[2.0])]).expect("runs");
    assert_eq!(Arc::strong_count(&count), 2);
    drop(result);
    assert_eq!(Arc::strong_count(&count), 1);
}
