extern crate tacit_core as tacit;

use tacit::primitives::Negative;
use tacit::{Value, handler};

#[handler]
fn double(_op: &Negative, _x: &Value) {}

fn main() {}
