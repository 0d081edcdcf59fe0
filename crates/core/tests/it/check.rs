//! `Registry::check` finds what dispatch would stumble over, without a call.

use mlx_rs::Array;
use tacit::__private::open;
use tacit::primitives::{Add, Negative};
use tacit::{Error, ImplicitArray, Primitive, Registry, Result, Value, handler};

use crate::types::{Left, Right};

fn given(value: &Value) -> Result<Value> {
    Ok(value.clone())
}

#[handler]
fn left_any(_: &Add, _x: &Left, y: &Value) -> Result<Value> {
    given(y)
}

#[handler]
fn any_right(_: &Add, x: &Value, _y: &Right) -> Result<Value> {
    given(x)
}

#[handler(precedence = 1)]
fn any_right_first(_: &Add, x: &Value, _y: &Right) -> Result<Value> {
    given(x)
}

#[handler]
fn left_right(_: &Add, x: &Left, _y: &Right) -> Result<Value> {
    Ok(x.array.clone().into())
}

#[handler]
fn left_right_again(_: &Add, x: &Left, _y: &Right) -> Result<Value> {
    Ok(x.array.clone().into())
}

#[handler]
fn dense_right(_: &Add, x: &Array, _y: &Right) -> Result<Value> {
    Ok(x.clone().into())
}

#[handler]
fn add_of_implicit(_: &Add, _x: &dyn ImplicitArray, y: &Value) -> Result<Value> {
    given(y)
}

#[handler]
fn anything_on_left(_: &Primitive, x: &Left, _rest: &[&Value]) -> Result<Value> {
    Ok(x.array.clone().into())
}

// These are names within what the macro writes, too, which hide no function.
#[handler]
fn call(_: &Negative, x: &dyn ImplicitArray) -> Result<Value> {
    open(x)
}

#[handler]
fn op(op: &Negative, x: &Right) -> Result<Value> {
    call(op, x)
}

fn found(registry: &Registry) -> Vec<String> {
    let describe = |error: &Error| match error {
        Error::Ambiguous { first, second, .. } => format!("ambiguous {} {}", first.name, second.name),
        Error::Duplicate { first, second, .. } => format!("duplicate {} {}", first.name, second.name),
        other => panic!("{other}"),
    };
    registry.check().err().unwrap_or_default().iter().map(describe).collect()
}

#[test]
fn an_empty_registry_and_one_of_distinct_handlers_are_clean() {
    assert!(Registry::new().check().is_ok());
    let registry = Registry::new().with::<left_any>().with::<dense_right>().with::<left_right>();
    assert_eq!(found(&registry), [""; 0]);
}

#[test]
fn a_pair_that_some_call_cannot_choose_between_is_found() {
    let registry = Registry::new().with::<left_any>().with::<any_right>();
    assert_eq!(found(&registry), ["ambiguous left_any any_right"]);
}

#[test]
fn the_handler_of_just_the_calls_in_question_or_a_precedence_decides_it() {
    let registry = Registry::new().with::<left_any>().with::<any_right>().with::<left_right>();
    assert_eq!(found(&registry), [""; 0]);
    let registry = Registry::new().with::<left_any>().with::<any_right_first>();
    assert_eq!(found(&registry), [""; 0]);
}

#[test]
fn an_exact_type_decides_it_whatever_the_primitive() {
    let registry = Registry::new().with::<add_of_implicit>().with::<anything_on_left>().with::<call>().with::<op>();
    assert_eq!(found(&registry), [""; 0]);
    assert_eq!(found(&registry.with::<left_any>()), [""; 0]);
}

#[test]
fn the_same_signature_twice_is_a_duplicate() {
    let registry = Registry::new().with::<left_right>().with::<left_right_again>().with::<left_right>();
    let pairs = [
        "duplicate left_right left_right_again",
        "duplicate left_right left_right",
        "duplicate left_right_again left_right",
    ];
    assert_eq!(found(&registry), pairs);
}
