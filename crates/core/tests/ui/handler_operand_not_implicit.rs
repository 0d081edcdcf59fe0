extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::primitives::Negative;
use tacit::{Result, handler};

struct Weight {
    array: Array,
}

#[handler]
fn double(_op: &Negative, x: &Weight) -> Result<Array> {
    Ok(x.array.clone())
}

fn main() {}
