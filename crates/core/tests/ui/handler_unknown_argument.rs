extern crate tacit_core as tacit;

use tacit::op::Negative;
use tacit::{Result, Value, handler};

#[handler(priority = 1)]
fn double(_op: &Negative, x: &Value) -> Result<Value> {
    Ok(x.clone())
}

fn main() {}
