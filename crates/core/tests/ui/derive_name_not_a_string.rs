extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::ImplicitArray;

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = Weight)]
struct Weight {
    array: Array,
}

fn main() {}
