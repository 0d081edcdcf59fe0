extern crate tacit_core as tacit;

use tacit::primitives::Negative;
use tacit::{ImplicitArray, Result, Value, handler};

#[handler]
fn double(_op: &Negative, x: &impl ImplicitArray) -> Result<Value> {
    Err(tacit::Error::decline("never"))
}

fn main() {}
