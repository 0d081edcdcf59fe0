extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::{ImplicitArray, Primitive, Result, Value};

fn take(_: &Primitive, _: &[&Value]) -> Result<Vec<Value>> {
    Ok(Vec::new())
}

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "ui.Weight", default = take, default = take)]
struct Weight {
    array: Array,
}

fn main() {}
