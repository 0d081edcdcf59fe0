extern crate tacit_core as tacit;

use tacit::{Result, Value, handler};

#[handler]
fn double(_op: &tacit::op::Negativ, x: &Value) -> Result<Value> {
    Ok(x.clone())
}

fn main() {}
