extern crate tacit_core as tacit;

use tacit::{Result, Value, handler};

struct Negative;

#[handler]
fn double(_op: &Negative, x: &Value) -> Result<Value> {
    Ok(x.clone())
}

fn main() {}
