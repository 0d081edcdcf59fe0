extern crate tacit_core as tacit;

use std::marker::PhantomData;

use tacit::Tree;

#[derive(Tree)]
struct Params<L> {
    weight: L,
    #[tree(static)]
    tag: PhantomData<L>,
}

fn main() {}
