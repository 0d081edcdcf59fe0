extern crate tacit_core as tacit;

use tacit::primitives::Negative;
use tacit::{Result, Value, handler};

#[handler]
fn double(_op: &Negative, x: &(Value, Value)) -> Result<Value> {
    Ok(x.0.clone())
}

fn main() {}
