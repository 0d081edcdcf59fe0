extern crate tacit_core as tacit;

use tacit::primitives::Negative;
use tacit::{Result, Value, handler};

#[handler]
async fn double(_op: &Negative, x: &Value) -> Result<Value> {
    Ok(x.clone())
}

fn main() {}
