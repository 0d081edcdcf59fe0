extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::Tree;

#[derive(Tree)]
struct Params {
    weight: Array,
    heads: usize,
}

fn main() {}
