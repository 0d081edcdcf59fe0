//! Results of ops that have not run yet.

use std::cell::RefCell;

use expect_test::expect;
use mlx_rs::Array;
use tacit::primitives::{Add, Multiply, Negative};
use tacit::{
    Aval, Counters, Error, ImplicitArray, Materialize, Policy, Primitive, Registry, Result, Value, compile, explain,
    handler, implicit,
};

use crate::types::{Left, Outer, Right, dense, error, numbers, vector, with_handlers};

/// The sum of a `Left` and a dense array.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Sum")]
struct Sum {
    left: Value,
    right: Array,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Sum {
    const DEFERRED: bool = true;

    fn materialize(&self) -> Result<Value> {
        let left = self.left.downcast::<Left>().ok_or_else(|| Error::refuse("nothing that could be added"))?;
        Ok(left.array.add(&self.right)?.into())
    }
}

#[handler]
fn defer(_: &Add, left: &Left, right: &Array) -> Result<Value> {
    Ok(Sum { left: left.clone().into(), right: right.clone(), aval: left.aval()? }.into())
}

/// A handler that knows of the sum.
#[handler]
fn scaled(_: &Multiply, sum: &Sum, factor: &Array) -> Result<Value> {
    let left = sum.left.downcast::<Left>().ok_or_else(|| Error::decline("another sum"))?;
    let left = Left::of(&left.array.multiply(factor)?);
    Ok(Sum { left, right: sum.right.multiply(factor)?, aval: sum.aval.clone() }.into())
}

#[handler]
fn never(_: &Negative, _: &Sum) -> Result<Value> {
    Err(Error::decline("it cannot"))
}

/// Any primitive on a layer is the primitive on what is inside, as plain code.
#[handler]
fn inside(_: &Add, outer: &Outer, right: &Array) -> Result<Value> {
    implicit((&outer.inner, right), |(inner, right)| inner.add(right))
}

thread_local! {
    static ADD: RefCell<Option<Primitive>> = const { RefCell::new(None) };
}

/// Keeps the primitive for a call outside a trace.
#[handler]
fn keep(op: &Primitive, _: &Outer, _: &Array) -> Result<Value> {
    ADD.set(Some(op.clone()));
    Err(Error::decline("it only looks"))
}

fn left() -> Value {
    Left::of(&vector(&[1.0, 2.0]))
}

fn all() -> Registry {
    Registry::new().with::<defer>().with::<scaled>().with::<never>().with::<inside>()
}

#[test]
fn handlers_are_offered_it_and_results_are_computed() {
    let _scopes = with_handlers(all());
    let _deny = Policy::Deny.scope();
    let one = vector(&[10.0, 10.0]);
    let (result, counters) = Counters::during(|| implicit((left(), &one), |(x, one)| x.add(&one)?.multiply(one)));
    assert_eq!(dense(&result.expect("runs")), [110.0, 120.0]);
    assert_eq!((counters.seen, counters.handled, counters.materialized), (2, 2, 0));
}

#[test]
fn where_no_handler_takes_it_the_op_runs_once_and_the_policy_is_not_asked() {
    let _scopes = with_handlers(all());
    let _deny = Policy::Deny.scope();
    let one = vector(&[10.0, 10.0]);
    let f = |(x, one): (Array, Array)| {
        let sum = x.add(&one)?;
        Ok::<_, Error>([sum.negative()?, sum.exp()?.log()?, sum])
    };
    let (result, counters) = Counters::during(|| implicit((left(), &one), f));
    let [first, second, itself] = result.expect("runs");
    assert_eq!((dense(&first), dense(&itself)), (vec![-11.0, -12.0], vec![11.0, 12.0]));
    assert!((dense(&second)[0] - 11.0).abs() < 1e-4);
    assert_eq!((counters.declined, counters.materialized), (1, 0));
    // What reads it where nothing takes it reads what was computed once.
    let told = explain((left(), &one), f).expect("runs").to_string();
    let told = told.replace(concat!(file!(), ":"), "");
    let told: String = told.lines().map(|line| line.trim_end_matches(char::is_numeric).to_owned() + "\n").collect();
    expect![[r#"
        { lambda a:Left(f32[2]) b:f32[2] .
            c:Sum(f32[2]) = add a b      defer   
            d:f32[2]      = negative c   computed
                declined: never: it cannot
            e:f32[2]      = exp c        computed
            f:f32[2]      = log e
            in (d f c) }   4 ops, 1 handled, 0 materialized (0 B)
    "#]]
    .assert_eq(&told);
}

/// Two operands that nobody takes: what is deferred is computed, and then the other one is asked for.
#[test]
fn the_other_operands_are_materialized_as_ever() {
    let _scopes = with_handlers(all());
    let one = vector(&[10.0, 10.0]);
    let f = |(x, y, one): (Array, Array, Array)| x.add(one)?.multiply(y);
    let _deny = Policy::Deny.scope();
    let Error::MaterializationDenied { call, ty, .. } =
        error(implicit((left(), Right::of(&vector(&[3.0, 4.0])), &one), f))
    else {
        panic!("the policy is asked")
    };
    assert_eq!((call.as_str(), ty), ("multiply of f32[2], Right(f32[2])", "Right"));
    let _allow = Policy::Allow.scope();
    let (result, counters) = Counters::during(|| implicit((left(), Right::of(&vector(&[3.0, 4.0])), &one), f));
    assert_eq!(dense(&result.expect("runs")), [33.0, 48.0]);
    assert_eq!(counters.materialized, 1);
}

#[test]
fn inside_a_handler_it_stays_what_it_is() {
    let _scopes = with_handlers(all());
    let _deny = Policy::Deny.scope();
    let one = vector(&[10.0, 10.0]);
    let (result, counters) =
        Counters::during(|| implicit((Outer::of(left()), &one), |(x, one)| x.add(&one)?.multiply(one)));
    assert_eq!(dense(&result.expect("runs")), [110.0, 120.0]);
    // The sum inside the handler, the handler, and the product with its result.
    assert_eq!((counters.handled, counters.materialized), (3, 0));
}

#[test]
fn outside_a_trace_it_is_computed_too() {
    let _scopes = with_handlers(Registry::new().with::<defer>().with::<keep>());
    let _deny = Policy::Deny.scope();
    let one = vector(&[10.0, 10.0]);
    let kept = error(implicit((Outer::of(Right::of(&one)), &one), |(x, one)| x.add(one)));
    assert!(matches!(kept, Error::MaterializationDenied { .. }), "{kept}");
    let add = ADD.take().expect("was kept");
    let results = add.apply(&[&left(), &Value::from(&one)]).expect("runs");
    assert_eq!(numbers(results[0].as_dense().expect("computed")), [11.0, 12.0]);
    let deferred = Value::from(Sum { left: left(), right: one, aval: left().aval().expect("has one") });
    assert_eq!(numbers(&deferred.dense().expect("is not asked for")), [11.0, 12.0]);
    let mut compiled = compile(|x: Array| x.multiply(Array::from_f32(2.0)));
    assert_eq!(dense(&compiled.call(&deferred).expect("runs")), [22.0, 24.0]);
}

/// What computing it materializes is materialized, wherever it stands.
#[test]
fn what_it_is_made_of_is_asked_for() {
    #[derive(ImplicitArray, Clone, Debug)]
    #[implicit(name = "test.Careless")]
    struct Careless {
        inner: Value,
        #[implicit(aux)]
        aval: Aval,
    }

    impl Materialize for Careless {
        const DEFERRED: bool = true;

        fn materialize(&self) -> Result<Value> {
            self.inner.opened()
        }
    }

    let _scopes = with_handlers(Registry::new());
    let _deny = Policy::Deny.scope();
    let careless = Value::from(Careless { inner: left(), aval: left().aval().expect("has one") });
    assert!(matches!(error(careless.dense()), Error::MaterializationDenied { ty: "Left", .. }));
    assert!(matches!(error(implicit(&careless, |x| x.negative())), Error::MaterializationDenied { ty: "Left", .. }));
}
