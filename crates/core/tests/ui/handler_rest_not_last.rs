extern crate tacit_core as tacit;

use tacit::primitives::Concatenate;
use tacit::{Result, Value, handler};

#[handler]
fn first(_op: &Concatenate, xs: &[&Value], x: &Value) -> Result<Value> {
    Ok(xs.first().copied().unwrap_or(x).clone())
}

fn main() {}
