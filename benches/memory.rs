//! The memory that a forward and a backward pass through one large NF4 layer take beside its packed weight.

use mlx_rs::{Array, memory, ops, random, transforms};
use tacit::format::Parts;
use tacit::prelude::*;
use tacit::{Aval, implicit};
use tacit_figures::resident;

const SIDE: i32 = 16_384;
const BATCH: i32 = 128;
const BLOCK: i32 = 64;

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let bench = tacit_figures::bench!("memory");
    // Codes drawn as such: quantizing would need the dense weight first.
    let bytes = random::randint::<_, u32>(0, 256, &[SIDE * (SIDE / 2)], Some(&random::key(0)?))?;
    let packed = bytes.as_type::<u8>()?;
    let absmax = ops::full::<f32>(&[SIDE * (SIDE / BLOCK)], Array::from_f32(0.02))?;
    let x = random::normal::<f32>(&[BATCH, SIDE], None, None, &random::key(1)?)?;
    transforms::eval([&packed, &absmax, &x])?;
    drop(bytes);
    let weight = Nf4Array::from_parts(
        Parts::new(packed, absmax),
        BLOCK as usize,
        Aval::new(&[SIDE, SIDE], mlx_rs::Dtype::Float32),
    )?;

    memory::clear_cache()?;
    resident::reset_peak();
    let before = resident::now();
    let function = move |x: &[Array]| {
        let y = implicit((&x[0], &weight), |(x, w)| x.matmul(w.t())).and_then(|y| y.dense());
        y.map(|y| vec![y]).map_err(|error| mlx_rs::error::Exception::custom(error.to_string()))
    };
    let cotangent = ops::ones::<f32>(&[BATCH, SIDE])?;
    let (outputs, gradients) = transforms::fallible_vjp(function, &[x], &[cotangent])?;
    transforms::eval(outputs.iter().chain(&gradients))?;
    let taken = resident::peak() - before;

    let dense = f64::from(SIDE) * f64::from(SIDE) * 4.0;
    bench.amount("nf4/16384x16384", taken / 1e6, "MB", "the dense f32 weight", dense / 1e6);
    assert!(taken < 0.2 * dense, "the limit is 0.2 of the dense weight");
    Ok(())
}
