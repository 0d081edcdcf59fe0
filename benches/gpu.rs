//! Products with packed weights on a GPU, beside a copy of as many bytes and a dense product of half floats.
//!
//! Without a GPU it says so and measures nothing. A case evaluates several independent products at once; its time is that of
//! one, without that of making the graph. The weights take turns, so that no cache holds them. Arguments select the cases whose
//! names contain one of them: `cargo bench --bench gpu -- nf4 m1`.

use std::time::Instant;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, random, transforms};
use tacit::dispatch::DeviceFallback;
use tacit::kernel::GpuBackend;
use tacit::prelude::*;
use tacit::tree;
use tacit_figures::Unit;

/// Rows and columns of the weights.
const WIDTH: i32 = 16384;

/// Products in one eval.
const PRODUCTS: usize = 16;

/// Bytes that no cache of a GPU holds, over which the weights of a case are spread.
const COLD: usize = 400 << 20;

fn main() -> Result<()> {
    let run = tacit_figures::bench!("gpu");
    if GpuBackend::available().is_none() {
        println!("no GPU is here, and nothing is measured");
        return Ok(());
    }
    let _deny = Policy::Deny.scope();
    let bench = Bench { run, dense: half(&[WIDTH, WIDTH], 1)? };
    for format in ["nf4:64", "nf4:64:double", "affine:4:64", "int8", "mxfp4", "k:4", "k:6"] {
        for m in [1, 8, 512] {
            let case = format!("{format}/{WIDTH}x{WIDTH}/m{m}");
            if bench.run.wants(&case) {
                bench.product(&case, format, m)?;
            }
        }
    }
    Ok(())
}

struct Bench {
    run: tacit_figures::Bench,
    dense: Array,
}

impl Bench {
    fn product(&self, case: &str, format: &str, m: i32) -> Result<()> {
        let format: AnyFormat = format.parse()?;
        let quantized = || -> Result<Value> {
            // The plain ops of an encoder hold many times the dense matrix.
            let _on_cpu = DeviceFallback::Cpu.scope();
            let weight = format.quantize(&self.dense)?;
            tree::eval(&weight)?;
            Ok(weight)
        };
        let mut weights = vec![quantized()?];
        let bytes = weights[0].nbytes();
        while weights.len() * bytes < COLD {
            weights.push(quantized()?);
        }
        let x = half(&[m, WIDTH], 2)?;
        let copied = half(&[i32::try_from(bytes / 4).unwrap_or(i32::MAX)], 3)?;
        let ours = || {
            timed(|at| implicit((&x, &weights[at % weights.len()]), |(x, w): (Array, Array)| x.matmul(w.t()))?.dense())
        };
        // As many bytes in all: a half is read, and a half written.
        let copy = || timed(|at| Ok(copied.add(Array::from_f32(at as f32).as_dtype(Dtype::Bfloat16)?)?));
        let dense = || timed(|_| Ok(x.matmul(self.dense.t())?));
        let turns = self.run.turns().measure(OURS, ours).measure(COPY, copy).measure(DENSE, dense);
        turns.take()?.record(case, Unit::time("us"));
        Ok(())
    }
}

const OURS: &str = "ours";
const COPY: &str = "a copy that moves as many bytes";
const DENSE: &str = "a dense product of half floats";

fn half(shape: &[i32], seed: u64) -> Result<Array, Exception> {
    let scale = 1.0 / f32::sqrt(WIDTH as f32);
    let values = random::normal::<f32>(shape, None, scale, &random::key(seed)?)?.as_dtype(Dtype::Bfloat16)?;
    values.eval()?;
    Ok(values)
}

/// The seconds of one of several results that are evaluated at once.
fn timed(one: impl Fn(usize) -> Result<Array>) -> Result<f64> {
    let made = (0..PRODUCTS).map(one).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    transforms::eval(&made)?;
    Ok(start.elapsed().as_secs_f64() / PRODUCTS as f64)
}
