extern crate tacit_core as tacit;

use tacit::{Result, Value, handler};

#[handler]
fn double(_op: &dyn Fn(), x: &Value) -> Result<Value> {
    Ok(x.clone())
}

fn main() {}
