//! Types of other crates: registered nodes.

#![allow(clippy::float_cmp, reason = "the numbers are exact")]

use expect_test::expect;
use mlx_rs::Array;
use tacit::tree::{self, Foreign, Open};
use tacit::{Value, implicit, register_node};

use crate::trees::{a, def, difference, number};
use crate::types::{dense, vector, without_handlers};

/// Stands for a type of another crate.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    pub(crate) by: Array,
    pub(crate) bits: u8,
}

impl Scale {
    pub(crate) fn of(by: f32, bits: u8) -> Self {
        Self { by: vector(&[by]), bits }
    }
}

register_node!(Scale, |scale: &Scale| (vec![Value::from(&scale.by)], scale.bits), |leaves: Vec<Value>, bits| Ok(
    Scale { by: leaves[0].dense()?, bits }
),);

#[test]
fn a_registered_type_is_a_node() {
    let scale = Foreign(Scale::of(2.0, 3));
    let (leaves, own) = tree::flatten(&(a(), scale.clone()), Open::Closed).expect("flattens");
    expect!["(*, Scale(*, aux=3))"].assert_eq(&own.to_string());
    let (_, back): (Array, Foreign<Scale>) = tree::unflatten(&own, leaves).expect("fits");
    assert_eq!((number(&back.by), back.bits), (2.0, 3));
    assert_eq!(difference(&scale, &Foreign(Scale::of(2.0, 4))), "static aux 3 -> 4 at the root");
    let mut other = Foreign(Scale::of(5.0, 6));
    tree::assign(&mut other, &def(&scale), crate::trees::leaves(&[7.0])).expect("fits");
    assert_eq!((number(&other.by), other.bits), (7.0, 3));
}

#[test]
fn a_traced_function_takes_a_registered_type() {
    let _scopes = without_handlers();
    let args = (vector(&[3.0]), Foreign(Scale::of(2.0, 0)));
    let scaled = implicit(args, |(x, scale)| x.multiply(&scale.by)).expect("runs");
    assert_eq!(dense(&scaled), [6.0]);
}
