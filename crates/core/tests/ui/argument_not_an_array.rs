extern crate tacit_core as tacit;

use mlx_rs::Array;
use tacit::implicit;

fn main() {
    let x = Array::from_f32(1.0);
    let _ = implicit((&x, 2.0), |(x, y)| x.add(y));
}
