//! Arrays that are used as other values.

use std::cell::Cell;

use expect_test::expect;
use tacit::primitives::Negative;
use tacit::{
    Aval, Counters, ImplicitArray, Materialize, Policy, Primitive, Registry, Result, Value, explain, handler, implicit,
};

use crate::types::{Left, Outer, dense, error, numbers, vector, with_handlers};

/// A recipe for another value.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Recipe")]
struct Recipe {
    value: Value,
    #[implicit(aux)]
    aval: Aval,
}

thread_local! {
    static MADE: Cell<usize> = const { Cell::new(0) };
}

impl Recipe {
    fn of(value: impl Into<Value>) -> Value {
        let value = value.into();
        Self { aval: value.aval().expect("has one"), value }.into()
    }
}

impl Materialize for Recipe {
    fn materialize(&self) -> Result<Value> {
        self.value.opened()
    }

    fn used_as(&self) -> Result<Option<Value>> {
        MADE.set(MADE.get() + 1);
        Ok(Some(self.value.clone()))
    }
}

#[handler]
fn negate_left(_: &Negative, x: &Left) -> Result<Value> {
    Ok(Left::of(&x.array.negative()?))
}

/// Any primitive on a layer is the primitive on what is inside.
#[handler]
fn through(op: &Primitive, x: &Outer) -> Result<Vec<Value>> {
    op.apply(&[&x.inner])
}

fn left() -> Value {
    Left::of(&vector(&[1.0, 2.0]))
}

#[test]
fn handlers_see_what_it_is_used_as_which_is_made_once() {
    let _scopes = with_handlers(Registry::new().with::<negate_left>());
    let _deny = Policy::Deny.scope();
    let before = MADE.get();
    let recipe = Recipe::of(Recipe::of(left()));
    let (result, counters) =
        Counters::during(|| implicit(&recipe, |x| Ok::<_, tacit::Error>([x.negative()?, x.negative()?, x])));
    let [first, second, itself] = result.expect("runs");
    for value in [first, second] {
        assert_eq!(numbers(&value.downcast::<Left>().expect("implicit").array), [-1.0, -2.0]);
    }
    assert!(itself.downcast::<Recipe>().is_some(), "what nothing uses is itself");
    assert_eq!(MADE.get() - before, 2, "one for each of the two layers");
    assert_eq!((counters.seen, counters.handled, counters.materialized), (2, 2, 0));
}

#[test]
fn it_may_be_used_as_a_dense_array() {
    let _deny = Policy::Deny.scope();
    let value = implicit(Recipe::of(vector(&[1.0, 2.0])), |x| x.negative()).expect("runs");
    assert_eq!(dense(&value), [-1.0, -2.0]);
}

#[test]
fn an_explanation_shows_it_and_who_took_what_it_is_used_as() {
    let _scopes = with_handlers(Registry::new().with::<negate_left>());
    let told = explain(Recipe::of(left()), |x| x.negative()).expect("runs").to_string();
    assert!(told.contains("Recipe(f32[2])") && told.contains("negate_left"), "{told}");
    assert!(told.contains("0 materialized"), "{told}");
}

#[test]
fn a_primitive_that_a_handler_applies_sees_it_as_well() {
    let _scopes = with_handlers(Registry::new().with::<through>().with::<negate_left>());
    let _deny = Policy::Deny.scope();
    let value = implicit(Outer::of(Recipe::of(left())), |x| x.negative()).expect("runs");
    assert_eq!(numbers(&value.downcast::<Left>().expect("implicit").array), [-1.0, -2.0]);
}

#[test]
fn what_it_is_used_as_is_of_its_own_aval() {
    let wrong = Value::from(Recipe { value: left(), aval: Aval::new(&[3], mlx_rs::Dtype::Float32) });
    expect![[r#"
        test.Recipe says that it is f32[3] and materializes to f32[2]
        help: return an array of this shape and dtype, or give the type the `aval` of what it returns"#]]
    .assert_eq(&error(implicit(wrong, |x| x.negative())).to_string());
}
