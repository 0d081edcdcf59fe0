extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::Tree;

#[derive(Tree)]
struct Params<'a> {
    weight: &'a Array,
}

fn main() {}
