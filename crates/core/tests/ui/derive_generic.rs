extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::ImplicitArray;

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "ui.Weight")]
struct Weight<T> {
    array: Array,
    #[implicit(aux)]
    tag: T,
}

fn main() {}
