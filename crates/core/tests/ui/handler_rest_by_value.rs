extern crate tacit_core as tacit;

use tacit::primitives::Concatenate;
use tacit::{Result, Value, handler};

#[handler]
fn first(_op: &Concatenate, xs: &[Value]) -> Result<Value> {
    Ok(xs[0].clone())
}

fn main() {}
