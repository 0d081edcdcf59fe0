//! What `#[handler]` makes of a function.

extern crate tacit_core as tacit;

use std::sync::Arc;

use mlx_rs::Array;
use mlx_rs::error::Exception;
use tacit::primitives::{Matmul, Negative};
use tacit::{Handler, HandlerDef, ImplicitArray, Materialize, Primitive, Registry, Result, Value, handler};

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "test.Boxed")]
struct Boxed {
    array: Array,
}

impl Materialize for Boxed {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

#[handler]
fn dense_and_typed(_op: &Matmul, x: &Array, w: &Boxed) -> Result<Value> {
    Ok(x.matmul(&w.array)?.into())
}

#[handler(precedence = -3)]
fn any_of_everything(_: &Primitive, _first: &dyn ImplicitArray, second: &Value, rest: &[&Value]) -> Result<Vec<Value>> {
    Ok(std::iter::once(second).chain(rest.iter().copied()).cloned().collect())
}

/// Ends in an array and in mlx-rs's own error.
#[handler]
fn negate(_op: &Negative, x: &Boxed) -> std::result::Result<Array, Exception> {
    x.array.negative()
}

mod elsewhere {
    use super::{Boxed, Negative, Result, Value, handler};

    #[handler(precedence = 7)]
    pub(super) fn r#use(op: &Negative, boxed: &Boxed) -> Result<Value> {
        let _ = op;
        Ok(boxed.clone().into())
    }
}

fn line(handler: &Handler) -> String {
    format!("{} {} {}", handler.site.name, handler.signature, handler.precedence)
}

#[test]
fn the_signature_is_the_registration() {
    expect_test::expect![[r"
        dense_and_typed matmul of dense, Boxed 0
        any_of_everything any primitive of any implicit, any, .. -3
        negate negative of Boxed 0
        use negative of Boxed 7"]]
    .assert_eq(
        &[dense_and_typed::HANDLER, any_of_everything::HANDLER, negate::HANDLER, elsewhere::r#use::HANDLER]
            .map(|handler| line(&handler))
            .join("\n"),
    );
}

#[test]
fn the_site_is_where_the_name_of_the_function_stands() {
    let source = include_str!("handler.rs");
    let expected = 1 + source.lines().position(|text| text.starts_with("fn dense_and_typed")).expect("in this file");
    let site = dense_and_typed::HANDLER.site;
    assert!(site.file.ends_with("handler.rs"), "{site}");
    assert_eq!(site.line as usize, expected);
}

#[test]
fn every_handler_is_registered() {
    let registry = Registry::global();
    let registered: Vec<&str> = registry.handlers().iter().map(|handler| handler.site.name).collect();
    for name in ["any_of_everything", "dense_and_typed", "negate", "use"] {
        assert!(registered.contains(&name), "{name} is not among {registered:?}");
    }
}

#[test]
fn a_registry_built_by_hand_takes_the_type_of_the_same_name() {
    let registry = Arc::new(Registry::new().with::<negate>());
    let _scope = registry.scope();
    let boxed = Boxed { array: Array::from_slice(&[1f32], &[1]) };
    let value = tacit::implicit(boxed, |x| x.negative()).expect("a handler takes it");
    let array = value.dense().expect("dense");
    array.eval().expect("evaluates");
    assert_eq!(array.as_slice::<f32>(), [-1.0]);
}
