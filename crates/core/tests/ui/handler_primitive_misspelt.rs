extern crate tacit_core as tacit;

use tacit::{Result, Value, handler};

#[handler]
fn double(_op: &tacit::primitives::Negativ, x: &Value) -> Result<Value> {
    Ok(x.clone())
}

fn main() {}
