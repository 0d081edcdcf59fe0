//! What the tests of transforms share.

use expect_test::Expect;
use mlx_rs::Array;
use tacit::primitives::Multiply;
use tacit::{Registry, Result, Value, handler};

use crate::types::{Left, error, message};

#[handler]
fn multiply_left(_: &Multiply, x: &Left, y: &Array) -> Result<Value> {
    Ok(x.array.multiply(y)?.into())
}

/// Products with a `Left`.
pub(crate) fn registry() -> Registry {
    Registry::new().with::<multiply_left>()
}

pub(crate) fn product((w, x): (Array, Array)) -> Result<Array> {
    Ok(w.multiply(x)?)
}

pub(crate) fn check(expected: &Expect, outcome: Result<impl Sized>) {
    expected.assert_eq(&message(&error(outcome)));
}
