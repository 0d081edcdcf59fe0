extern crate tacit_core as tacit;

use tacit::ImplicitArray;

#[derive(ImplicitArray)]
#[implicit(name = "ui.Weight")]
union Weight {
    bits: u32,
}

fn main() {}
