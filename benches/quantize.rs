//! How fast NF4 is coded and decoded, beside a copy of as many floats and MLX's affine format.

mod figures;

use std::hint::black_box;

use figures::{Figure, median};
use mlx_rs::{Array, ops, random, transforms};
use tacit::prelude::*;
use tacit::tree::{self, Open};

const WIDTH: i32 = 4096;
const BLOCK: usize = 64;
const ROUNDS: usize = 21;

fn main() -> Result<()> {
    let x = random::normal::<f32>(&[WIDTH, WIDTH], None, None, &random::key(0)?)?;
    x.eval()?;
    let bytes = x.nbytes() as f64;
    let rate = |f: &mut dyn FnMut()| bytes / median(ROUNDS, 1, f).as_secs_f64() / 1e9;

    let from = vec![1.0_f32; x.size()];
    let mut to = vec![0.0_f32; x.size()];
    let copy = rate(&mut || black_box(&mut to).copy_from_slice(black_box(&from)));

    let coded = rate(&mut || {
        evaluated(&Nf4Array::quantize(&x, BLOCK).expect("the array can be quantized").into());
    });
    let mlx_coded = rate(&mut || {
        let (packed, scales, biases) = ops::quantize(&x, BLOCK as i32, 4).expect("the array can be quantized");
        transforms::eval([&packed, &scales, &biases]).expect("the codes are there");
    });
    record("nf4/quantize", coded, copy, mlx_coded, "MLX's affine 4-bit quantize");

    let stored = Value::from(Nf4Array::quantize(&x, BLOCK)?);
    evaluated(&stored);
    let decoded = rate(&mut || stored.dense().and_then(|x| Ok(x.eval()?)).expect("the values are there"));
    let (packed, scales, biases) = ops::quantize(&x, BLOCK as i32, 4)?;
    transforms::eval([&packed, &scales, &biases])?;
    let mlx_decoded = rate(&mut || {
        let values: Array = ops::dequantize(&packed, &scales, &biases, BLOCK as i32, 4).expect("the codes are MLX's");
        values.eval().expect("the values are there");
    });
    record("nf4/dequantize", decoded, copy, mlx_decoded, "MLX's affine 4-bit dequantize");
    Ok(())
}

fn evaluated(value: &Value) {
    let leaves = tree::leaves(value, Open::Fully).expect("the parts are arrays");
    transforms::eval(leaves.iter().filter_map(Value::as_dense)).expect("the parts can be evaluated");
}

/// Rates in bytes of floats; a ratio above 1 is faster than the baseline.
fn record(case: &str, ours: f64, copy: f64, mlx: f64, name: &str) {
    for (baseline, theirs) in [("a copy of as many floats on one thread", copy), (name, mlx)] {
        Figure { bench: "quantize", case, value: ours, unit: "GB/s", baseline, ratio: ours / theirs }.record();
    }
}
