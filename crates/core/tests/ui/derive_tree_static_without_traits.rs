extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::Tree;

#[derive(Clone, Debug)]
struct Format;

#[derive(Tree)]
struct Params {
    weight: Array,
    #[tree(static)]
    format: Format,
}

fn main() {}
