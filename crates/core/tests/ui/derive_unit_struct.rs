extern crate tacit_core as tacit;

use tacit::ImplicitArray;

#[derive(ImplicitArray, Clone, Debug)]
#[implicit(name = "ui.Weight")]
struct Weight;

fn main() {}
