extern crate tacit_core as tacit;

use tacit::primitives::Negative;
use tacit::{Result, Value, handler};

#[handler]
fn double(_op: &Negative, _x: &Value) -> Result<usize> {
    Ok(1)
}

fn main() {}
