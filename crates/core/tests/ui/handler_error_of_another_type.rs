extern crate tacit_core as tacit;

use tacit::primitives::Negative;
use tacit::{Value, handler};

#[handler]
fn double(_op: &Negative, x: &Value) -> std::result::Result<Value, String> {
    Ok(x.clone())
}

fn main() {}
