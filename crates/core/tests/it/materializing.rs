//! Layers of materialization, one at a time and through.

use expect_test::expect;
use mlx_rs::Array;
use tacit::{Aval, Counters, Error, ImplicitArray, Materialize, Policy, Result, Value, implicit, materialize};

use crate::types::{Left, Liar, Outer, Refusing, aval, dense, error, matrix, numbers, vector, without_handlers};

fn nested() -> Value {
    Outer::of(Outer::of(Left::of(&matrix(2, 3))))
}

#[test]
fn a_value_is_materialized_by_one_layer_or_through() {
    let _scopes = without_handlers();
    let once = nested().materialize().expect("allowed");
    assert_eq!(once.to_string(), "Outer(f32[2,3])");
    let twice = once.materialize().expect("allowed");
    assert_eq!(twice.to_string(), "Left(f32[2,3])");
    assert_eq!(dense(&twice.materialize().expect("allowed")), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(numbers(&nested().dense().expect("allowed")), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn a_dense_value_is_itself() {
    let _policy = Policy::Deny.scope();
    let value = Value::from(vector(&[1.0]));
    let (through, counters) = Counters::during(|| value.materialize().and_then(|value| value.dense()));
    assert_eq!(numbers(&through.expect("dense")), [1.0]);
    assert_eq!(counters, Counters::default());
}

#[test]
fn every_layer_is_counted_with_the_bytes_that_it_stands_for() {
    let _scopes = without_handlers();
    let (_, counters) = Counters::during(|| nested().dense());
    assert_eq!((counters.materialized, counters.materialized_bytes), (3, 3 * 24));
}

#[test]
fn the_policy_holds_outside_a_trace_too() {
    let _policy = Policy::Deny.scope();
    assert!(matches!(error(nested().dense()), Error::MaterializationDenied { .. }));
    let Value::Implicit(array) = nested() else { panic!("it is implicit") };
    assert!(matches!(error(materialize(&*array)), Error::MaterializationDenied { .. }));
}

#[test]
fn a_type_may_refuse_and_may_not_lie() {
    let _scopes = without_handlers();
    let refusing = Value::from(Refusing { aval: aval(&[2]) });
    assert!(matches!(error(refusing.dense()), Error::Refused { ty: "test.Refusing", call: None, .. }));
    assert!(matches!(error(Outer::of(refusing).dense()), Error::Refused { ty: "test.Refusing", .. }));
    let liar = Value::from(Liar { aval: aval(&[2]) });
    assert!(matches!(error(liar.dense()), Error::MaterializedAval { ty: "test.Liar", .. }));
    assert!(matches!(error(implicit(liar, |x| x.negative())), Error::MaterializedAval { .. }));
}

/// Gives itself where another value is asked for.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Circular")]
struct Circular {
    inner: Value,
    #[implicit(aux)]
    is_used: bool,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Circular {
    fn materialize(&self) -> Result<Value> {
        Ok(self.clone().into())
    }

    fn used_as(&self) -> Result<Option<Value>> {
        Ok(self.is_used.then(|| self.clone().into()))
    }
}

/// The same, and its aval would be that of what it is built as.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Bottomless")]
struct Bottomless {
    array: Array,
}

impl Materialize for Bottomless {
    fn materialize(&self) -> Result<Value> {
        Ok(self.clone().into())
    }
}

/// Built as one of its own type, whose same child has another place.
#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Staged")]
struct Staged {
    before: Option<Array>,
    after: Option<Array>,
    #[implicit(aux)]
    aval: Aval,
}

impl Materialize for Staged {
    fn materialize(&self) -> Result<Value> {
        Ok(match &self.after {
            Some(array) => array.clone().into(),
            None => Self { before: None, after: self.before.clone(), aval: self.aval.clone() }.into(),
        })
    }
}

#[test]
fn a_child_in_another_place_makes_another_array() {
    let _scopes = without_handlers();
    let staged = Value::from(Staged { before: Some(vector(&[1.0, 2.0])), after: None, aval: aval(&[2]) });
    assert_eq!(numbers(&staged.dense().expect("another, and then dense")), [1.0, 2.0]);
}

#[test]
fn an_array_that_is_built_as_itself_is_an_error() {
    let _scopes = without_handlers();
    let circular = |is_used| Value::from(Circular { inner: nested(), is_used, aval: aval(&[2, 3]) });
    expect![[r#"
        test.Circular is materialized to itself, and so without end
        help: return a more concrete form from `Materialize::materialize`"#]]
    .assert_eq(&error(circular(false).dense()).to_string());
    let said = error(implicit(circular(false), |x| x.negative())).to_string();
    assert!(said.starts_with("test.Circular is materialized to itself"), "{said}");
    expect![[r#"
        test.Circular is used as itself, and so without end
        help: return `None` from `Materialize::used_as` where primitives are applied to the array itself"#]]
    .assert_eq(&error(implicit(circular(true), |x| x.negative())).to_string());
    let bottomless = Value::from(Bottomless { array: vector(&[1.0]) });
    assert!(matches!(error(bottomless.aval()), Error::NoAval { ty: "test.Bottomless", .. }));
}
