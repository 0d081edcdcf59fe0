extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::{ImplicitArray, Materialize, Result, Value};

fn take(_: &[&Value]) -> Result<Vec<Value>> {
    Ok(Vec::new())
}

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "ui.Weight", default = take)]
struct Weight {
    array: Array,
}

impl Materialize for Weight {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

fn main() {}
