extern crate tacit_core as tacit;

use tacit::primitives::Negative;
use tacit::{ImplicitArray, Result, Value, handler};

#[handler]
fn double<T: ImplicitArray>(_op: &Negative, x: &T) -> Result<Value> {
    Err(tacit::Error::decline("never"))
}

fn main() {}
