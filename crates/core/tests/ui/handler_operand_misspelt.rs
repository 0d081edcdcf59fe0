extern crate tacit_core as tacit;

use tacit::primitives::Negative;
use tacit::{Result, Value, handler};

#[handler]
fn double(_op: &Negative, x: &Arra) -> Result<Value> {
    Ok(x.clone().into())
}

fn main() {}
