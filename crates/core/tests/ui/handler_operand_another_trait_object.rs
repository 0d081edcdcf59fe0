extern crate tacit_core as tacit;

use tacit::op::Negative;
use tacit::{Materialize, Result, Value, handler};

#[handler]
fn double(_op: &Negative, x: &dyn Materialize) -> Result<Value> {
    x.materialize()
}

fn main() {}
