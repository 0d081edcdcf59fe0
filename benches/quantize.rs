//! How fast NF4 is coded and decoded, beside a copy of as many floats and MLX's affine format.
//!
//! `nf4/quantize` and `nf4/dequantize` are the kernels, which write to memory that was written before. The cases that end
//! in `eval` are arrays in MLX's graph, whose results lie in fresh memory: the system takes longer to hand that over than
//! the kernels to fill it.

use std::hint::black_box;
use std::time::Instant;

use mlx_rs::{Array, ops, random, transforms};
use tacit::prelude::*;
use tacit::tree;
use tacit_figures::Unit;
use tacit_kernels::{BlockScales, Codes, Matrix, Order, Scales, nf4};

const WIDTH: i32 = 4096;
const BLOCK: usize = 64;

const COPY: &str = "a copy of as many floats on one thread";
const MLX_CODED: &str = "MLX's affine 4-bit quantize";
const MLX_DECODED: &str = "MLX's affine 4-bit dequantize";

fn main() -> Result<()> {
    let bench = tacit_figures::bench!("quantize");
    let x = random::normal::<f32>(&[WIDTH, WIDTH], None, None, &random::key(0)?)?;
    x.eval()?;
    let floats = x.try_as_slice::<f32>().map_err(|error| Error::Function(Box::new(error)))?;
    // A ratio above 1 is faster than the baseline.
    let rate = Unit::rate("GB/s", x.nbytes() as f64 / 1e9);
    let time = |f: &mut dyn FnMut() -> Result<()>| {
        let start = Instant::now();
        f()?;
        Ok::<_, Error>(start.elapsed().as_secs_f64())
    };

    let mut warm = vec![0.0_f32; x.size()];
    let (mut codes, mut absmax) = (vec![0; floats.len() / 2], vec![0.0; floats.len() / BLOCK]);
    let rounds = bench
        .turns()
        .run("nf4/quantize", || {
            nf4::encoder(BLOCK).quantize(floats, &mut codes, BlockScales::Floats(&mut absmax)).map_err(failed)
        })
        .run("nf4/quantize/eval", || tree::eval(&Nf4Array::quantize(&x, BLOCK)?))
        .run(COPY, || {
            black_box(&mut warm).copy_from_slice(black_box(floats));
            Ok(())
        })
        .seldom(MLX_CODED, || {
            time(&mut || {
                let (packed, scales, biases) = ops::quantize(&x, BLOCK as i32, 4)?;
                Ok(transforms::eval([&packed, &scales, &biases])?)
            })
        })
        .take()?;
    for case in ["nf4/quantize", "nf4/quantize/eval"] {
        rounds.record_of(case, case, COPY, rate);
        rounds.record_of(case, case, MLX_CODED, rate);
    }
    drop(rounds);

    let codes = Codes::Table { bytes: &codes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK };
    let (n, k) = (WIDTH as usize, WIDTH as usize);
    let matrix = Matrix { n, k, codes, scales: Scales::F32(&absmax), biases: None, block: BLOCK };
    let stored = Value::from(Nf4Array::quantize(&x, BLOCK)?);
    tree::eval(&stored)?;
    let (packed, scales, biases) = ops::quantize(&x, BLOCK as i32, 4)?;
    transforms::eval([&packed, &scales, &biases])?;
    let mut decoded = vec![0.0_f32; x.size()];
    let rounds = bench
        .turns()
        .run("nf4/dequantize", || tacit_kernels::dequantize(&matrix, &mut decoded[..]).map_err(failed))
        .run("nf4/dequantize/eval", || Ok(stored.dense()?.eval()?))
        .run(COPY, || {
            black_box(&mut warm).copy_from_slice(black_box(floats));
            Ok(())
        })
        .seldom(MLX_DECODED, || {
            time(&mut || {
                let values: Array = ops::dequantize(&packed, &scales, &biases, BLOCK as i32, 4)?;
                Ok(values.eval()?)
            })
        })
        .take()?;
    for case in ["nf4/dequantize", "nf4/dequantize/eval"] {
        rounds.record_of(case, case, COPY, rate);
        rounds.record_of(case, case, MLX_DECODED, rate);
    }
    Ok(())
}

fn failed(error: tacit_kernels::KernelError) -> Error {
    Error::Function(Box::new(error))
}
