//! The oracle on types that are right and on types that are wrong.

use mlx_rs::{Array, ops};
use tacit_core::{ImplicitArray, Materialize, Result, Value};

use super::{Oracle, Reached};

/// A child times a number.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Times")]
struct Times {
    child: Array,
    #[implicit(aux)]
    factor: i32,
}

impl Materialize for Times {
    fn materialize(&self) -> Result<Value> {
        Ok(self.child.multiply(Array::from_f32(self.factor as f32))?.into())
    }
}

/// Says one thing to its only handler and builds another.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Liar")]
struct Liar {
    child: Array,
}

impl Materialize for Liar {
    fn materialize(&self) -> Result<Value> {
        Ok(self.child.clone().into())
    }
}

#[tacit_core::handler]
fn liar_negative(_op: &tacit_core::primitives::Negative, liar: &Liar) -> Result<Array> {
    Ok(liar.child.multiply(Array::from_f32(-1.5))?)
}

/// The value is right and the gradient is not.
#[tacit_core::handler]
fn liar_square(_op: &tacit_core::primitives::Square, liar: &Liar) -> Result<Array> {
    Ok(mlx_rs::stop_gradient(liar.child.square()?)?)
}

fn numbers() -> Array {
    Array::from_slice(&[1f32, -2.0, 3.0, -4.0], &[2, 2])
}

fn times() -> Value {
    Times { child: numbers(), factor: 3 }.into()
}

fn liar() -> Value {
    Liar { child: numbers() }.into()
}

fn message(result: Result<Reached, super::Mismatch>) -> String {
    result.expect_err("differs").to_string()
}

#[test]
fn a_fallback_equals_the_dense_function_where_it_is_allowed() {
    let reached =
        Oracle::new(1e-6).allowing().check("x y", &[times(), numbers().into()], |a| Ok(vec![a[0].matmul(&a[1])?]));
    assert!(reached.value <= 1e-6 && reached.gradient <= 1e-6);
}

#[test]
fn a_fallback_is_an_error_where_it_is_not() {
    let result = Oracle::new(1e-6).compare("x y", &[times(), numbers().into()], |a| Ok(vec![a[0].matmul(&a[1])?]));
    expect_test::expect![[r#"
        x y on Times(f32[2,2]), f32[2,2]: the intercepted side failed: matmul of Times(f32[2,2]), f32[2,2] needs Times materialized, which the policy forbids
        help: write a handler for this primitive and these types, or allow it here with `Policy::Allow.scope()`"#]].assert_eq(&message(result));
}

#[test]
fn a_wrong_value_is_found() {
    let result = Oracle::new(1e-6).compare("negative", &[liar()], |a| Ok(vec![a[0].negative()?]));
    expect_test::expect!["negative on Liar(f32[2,2]): output 0 has the relative error 5.000e-1, above 1.0e-6: at [1, 1] it is 6.0, expected 4.0"]
        .assert_eq(&message(result));
}

#[test]
fn a_wrong_gradient_is_found() {
    let result = Oracle::new(1e-6).compare("square", &[liar()], |a| Ok(vec![a[0].square()?]));
    expect_test::expect!["square on Liar(f32[2,2]): gradient 0 has the relative error 1.000e0, above 1.0e-6: at [1, 1] it is 0.0, expected -8.0"]
        .assert_eq(&message(result));
}

#[test]
fn what_cancels_is_granted_the_error_of_its_terms() {
    let negative = |a: Vec<Array>| Ok(vec![a[0].negative()?]);
    let errors = [4.0, 16.0].map(|least| {
        let reached = Oracle::new(1.0).values_only().least(least).compare("negative", &[liar()], negative);
        reached.expect("within").value.to_string()
    });
    // It is off by 2 where the largest number is 4.
    assert_eq!(errors, ["0.5", "0.125"]);
}

#[test]
fn equal_nans_and_infinities_agree() {
    let special = Array::from_slice(&[f32::NAN, f32::INFINITY, 1.0], &[3]);
    assert!(super::relative_error(&special, &special).expect("floats") == 0.0);
    let zeros = ops::zeros::<f32>(&[3]).expect("zeros");
    assert!(super::relative_error(&special, &zeros).expect("floats").is_infinite());
}
