//! Handlers that dispatch again, and traces within traces.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use tacit::primitives::{Add, Negative};
use tacit::{Counters, Error, Policy, Primitive, Registry, Result, Value, handler, implicit, transform};

use crate::types::{Left, Outer, Right, dense, error, numbers, vector, with_handlers};

/// Any primitive on a layer is the primitive on what is inside.
#[handler]
fn through(op: &Primitive, x: &Outer, rest: &[&Value]) -> Result<Vec<Value>> {
    let operands: Vec<&Value> = std::iter::once(&x.inner).chain(rest.iter().copied()).collect();
    op.apply(&operands)
}

#[handler]
fn negate_left(_: &Negative, x: &Left) -> Result<Value> {
    Ok(Left::of(&x.array.negative()?))
}

/// Opens the next layer of interception.
#[handler]
fn add_right(_: &Add, x: &Right, y: &Value) -> Result<Value> {
    implicit((Left::of(&x.array), y), |(x, y)| x.negative()?.add(y)?.negative())
}

fn left() -> Value {
    Left::of(&vector(&[1.0, 2.0]))
}

#[test]
fn a_primitive_applied_by_a_handler_goes_to_the_handler_of_the_inner_type() {
    let _scopes = with_handlers(Registry::new().with::<through>().with::<negate_left>());
    let _policy = Policy::Deny.scope();
    let (value, counters) =
        Counters::during(|| implicit(Outer::of(Outer::of(left())), |x| x.negative()).expect("runs"));
    assert_eq!(numbers(&value.downcast::<Left>().expect("implicit").array), [-1.0, -2.0]);
    assert_eq!((counters.seen, counters.handled, counters.materialized), (3, 3, 0));
}

#[test]
fn a_primitive_applied_to_what_nobody_takes_is_materialized_by_the_same_rules() {
    let _scopes = with_handlers(Registry::new().with::<through>());
    let run = |policy: Policy| {
        let _policy = policy.scope();
        implicit((Outer::of(left()), Right::of(&vector(&[10.0, 20.0]))), |(x, y)| x.add(y))
    };
    assert_eq!(dense(&run(Policy::Allow).expect("runs")), [11.0, 22.0]);
    assert!(matches!(error(run(Policy::Deny)), Error::MaterializationDenied { .. }));
}

#[test]
fn a_handler_opens_the_next_layer() {
    let _scopes = with_handlers(Registry::new().with::<add_right>().with::<negate_left>());
    let value = implicit((Right::of(&vector(&[1.0, 2.0])), left()), |(x, y)| x.add(y)).expect("runs");
    assert_eq!(dense(&value), [0.0, 0.0]);
}

#[test]
fn implicit_inside_implicit_sees_the_arrays_of_the_outer_one() {
    let _scopes = with_handlers(Registry::new().with::<negate_left>());
    let value = implicit(Left::of(&vector(&[10.0, 20.0])), |x| -> Result<Array> {
        let inner = implicit((&x, left()), |(x, y)| x.add(y.negative()?))?;
        Ok(inner.dense()?.negative()?)
    })
    .expect("runs");
    assert_eq!(dense(&value), [-9.0, -18.0]);
}

#[test]
fn an_implicit_result_of_the_inner_one_may_be_used_in_the_outer_one() {
    let _scopes = with_handlers(Registry::new().with::<negate_left>());
    let value = implicit(Left::of(&vector(&[0.0])), |x| -> Result<Array> {
        let negated = implicit(Left::of(&x.exp()?), |y| y.negative())?;
        assert!(negated.is_implicit());
        implicit(negated, |y| y.abs())?.dense()
    });
    assert_eq!(dense(&value.expect("runs")), [1.0]);
}

#[test]
fn a_list_of_values_is_intercepted_for_a_handler() {
    let _scopes = with_handlers(Registry::new().with::<negate_left>());
    let results = transform::intercept(&[left(), vector(&[3.0]).into()], |arrays| {
        Ok(arrays.iter().map(Array::negative).collect::<Result<Vec<_>, Exception>>()?)
    });
    let results = results.expect("runs");
    assert_eq!(numbers(&results[0].downcast::<Left>().expect("implicit").array), [-1.0, -2.0]);
    assert_eq!(dense(&results[1]), [-3.0]);
}
