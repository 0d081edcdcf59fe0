extern crate tacit_core as tacit;

use tacit::Tree;

#[derive(Tree)]
struct Params<L, M> {
    weight: L,
    bias: M,
}

fn main() {}
