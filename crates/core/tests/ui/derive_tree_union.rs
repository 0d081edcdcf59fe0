extern crate tacit_core as tacit;

use tacit::Tree;

#[derive(Tree)]
union Either {
    bits: u32,
    float: f32,
}

fn main() {}
