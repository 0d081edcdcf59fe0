extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::Tree;

#[derive(Tree)]
struct Params {
    weight: Array,
    #[tree(static, static)]
    heads: usize,
}

fn main() {}
