extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::ImplicitArray;

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "ui.Weight")]
struct Weight<'a> {
    array: &'a Array,
}

fn main() {}
