extern crate tacit_core as tacit;

use tacit::handler;

#[handler]
struct Double;

fn main() {}
