extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::Tree;

#[derive(Tree)]
#[tree(static)]
struct Params {
    weight: Array,
}

fn main() {}
