extern crate tacit_core as tacit;

use std::fmt::Debug;

use tacit::primitives::Negative;
use tacit::{Result, Value, handler};

#[handler]
fn double(_op: &Negative, x: &dyn Debug) -> Result<Value> {
    Err(tacit::Error::decline(format!("{x:?}")))
}

fn main() {}
