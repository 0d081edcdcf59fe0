extern crate tacit_core as tacit;

use tacit::primitives::Negative;
use tacit::{Result, Value, handler};

#[handler]
const fn double(_op: &Negative, x: &Value) -> Result<Value> {
    let _ = x;
    panic!()
}

fn main() {}
