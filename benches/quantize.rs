//! How fast NF4 is coded and decoded, beside a copy of as many floats and MLX's affine format.
//!
//! `nf4/quantize` and `nf4/dequantize` are the kernels, which write to memory that was written before. The cases that end
//! in `eval` are arrays in MLX's graph, whose results lie in fresh memory: the system takes longer to hand that over than
//! the kernels to fill it.

mod figures;

use std::hint::black_box;

use figures::{Figure, median};
use mlx_rs::{Array, ops, random, transforms};
use tacit::prelude::*;
use tacit::tree::{self, Open};
use tacit_kernels::{Codes, Matrix, Order, Scales, nf4};

const WIDTH: i32 = 4096;
const BLOCK: usize = 64;
const ROUNDS: usize = 21;

fn main() -> Result<()> {
    let x = random::normal::<f32>(&[WIDTH, WIDTH], None, None, &random::key(0)?)?;
    x.eval()?;
    let floats = x.try_as_slice::<f32>().map_err(|error| Error::Function(Box::new(error)))?;
    let bytes = x.nbytes() as f64;
    let rate = |f: &mut dyn FnMut()| bytes / median(ROUNDS, 1, f).as_secs_f64() / 1e9;

    let mut warm = vec![0.0_f32; x.size()];
    let copy = rate(&mut || black_box(&mut warm).copy_from_slice(black_box(floats)));
    let mlx_coded = rate(&mut || {
        let (packed, scales, biases) = ops::quantize(&x, BLOCK as i32, 4).expect("the array can be quantized");
        transforms::eval([&packed, &scales, &biases]).expect("the codes are there");
    });
    let (packed, scales, biases) = ops::quantize(&x, BLOCK as i32, 4)?;
    transforms::eval([&packed, &scales, &biases])?;
    let mlx_decoded = rate(&mut || {
        let values: Array = ops::dequantize(&packed, &scales, &biases, BLOCK as i32, 4).expect("the codes are MLX's");
        values.eval().expect("the values are there");
    });

    let (mut codes, mut absmax) = (vec![0; floats.len() / 2], vec![0.0; floats.len() / BLOCK]);
    let coded = rate(&mut || {
        nf4::quantize(floats, BLOCK, &mut codes, &mut absmax).expect("the floats can be quantized");
    });
    record("nf4/quantize", coded, copy, mlx_coded, "MLX's affine 4-bit quantize");
    let evaluated_codes = rate(&mut || {
        evaluated(&Nf4Array::quantize(&x, BLOCK).expect("the array can be quantized").into());
    });
    record("nf4/quantize/eval", evaluated_codes, copy, mlx_coded, "MLX's affine 4-bit quantize");

    let codes = Codes::Table { bytes: &codes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
    let (n, k) = (WIDTH as usize, WIDTH as usize);
    let matrix = Matrix { n, k, codes, scales: Scales::F32(&absmax), biases: None, block: BLOCK };
    let decoded = rate(&mut || tacit_kernels::dequantize(&matrix, &mut warm[..]).expect("the codes are a matrix"));
    record("nf4/dequantize", decoded, copy, mlx_decoded, "MLX's affine 4-bit dequantize");
    let stored = Value::from(Nf4Array::quantize(&x, BLOCK)?);
    evaluated(&stored);
    let evaluated_values = rate(&mut || stored.dense().and_then(|x| Ok(x.eval()?)).expect("the values are there"));
    record("nf4/dequantize/eval", evaluated_values, copy, mlx_decoded, "MLX's affine 4-bit dequantize");
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
