extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::{ImplicitArray, Materialize, Result, Value};

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "ui.Weight")]
struct Weight {
    array: Array,
    #[implicit(aux)]
    scale: Array,
}

impl Materialize for Weight {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

fn main() {}
