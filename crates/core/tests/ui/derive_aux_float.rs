extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::{ImplicitArray, Materialize, Result, Value};

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "ui.Weight")]
struct Weight {
    array: Array,
    #[implicit(aux)]
    epsilon: f32,
}

impl Materialize for Weight {
    fn materialize(&self) -> Result<Value> {
        Ok(self.array.clone().into())
    }
}

fn main() {}
