//! Products with packed weights beside the limits of the machine, MLX's own packed product and a dense one.
//!
//! A case is a chain of dependent products in one eval, through the array types; its time is that of one product. Its
//! ratios are its time over the limit of the machine, and its time over that of each baseline. Arguments select the
//! cases whose names contain one of them: `cargo bench --bench matmul -- m1`.

mod figures;

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::time::Instant;

use figures::Figure;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, random, transforms};
use tacit::format::{Affine, AnyFormat};
use tacit::prelude::*;
use tacit::tree::{self, Open};
use tacit_kernels::machine;

/// Rows and columns of the weights.
const WIDTH: i32 = 4096;

/// Products in a chain.
const CHAIN: usize = 16;

/// Bytes that no cache holds, over which the cold weights are spread.
const COLD: usize = 600 << 20;

/// Elements that share a scale.
const GROUP: i32 = 64;

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let selected = |case: &str| wanted.is_empty() || wanted.iter().any(|part| case.contains(part.as_str()));
    let bench = Bench::new()?;
    for format in ["nf4", "affine4", "affine8"] {
        for m in [1, 4, 32, 128, 512] {
            for backward in [false, true] {
                let suffix = if backward { "/backward" } else { "" };
                let case = format!("{format}/{WIDTH}x{WIDTH}/m{m}{suffix}");
                if selected(&case) && (format == "nf4" || !backward) {
                    bench.product(&case, &bench.packed(format)?, m, backward)?;
                }
            }
        }
        let case = format!("{format}/{WIDTH}x{WIDTH}/m1/cold");
        if selected(&case) {
            bench.cold(&case, format)?;
        }
    }
    for (format, dtype) in [("f16", Dtype::Float16), ("bf16", Dtype::Bfloat16)] {
        for m in [1, 8, 32, 128] {
            let case = format!("{format}/{WIDTH}x{WIDTH}/m{m}");
            if selected(&case) {
                bench.halves(&case, &format.parse()?, dtype, m)?;
            }
        }
    }
    let case = format!("nf4/{WIDTH}x{WIDTH}/m512/int8");
    if selected(&case) {
        bench.int8(&case, 512)?;
    }
    if selected("eval_latency") {
        eval_latency()?;
    }
    Ok(())
}

/// The weight, and what is measured once and compared with by several cases.
struct Bench {
    w: Array,
    fma_peak: OnceCell<f64>,
    /// Seconds of the baselines by their names and rows.
    baselines: RefCell<HashMap<(&'static str, i32), f64>>,
}

impl Bench {
    fn new() -> Result<Self> {
        // Chains of products with such a matrix neither grow nor vanish.
        let scale = 1.0 / f32::sqrt(WIDTH as f32);
        let w = random::normal::<f32>(&[WIDTH, WIDTH], None, scale, &random::key(1)?)?;
        w.eval()?;
        Ok(Self { w, fma_peak: OnceCell::new(), baselines: RefCell::default() })
    }

    fn packed(&self, format: &str) -> Result<Value> {
        let value: Value = match format {
            "nf4" => Nf4Array::quantize(&self.w, GROUP as usize)?.into(),
            "affine4" => AffineArray::quantize(&self.w, Affine { bits: 4, group: GROUP as usize })?.into(),
            _ => AffineArray::quantize(&self.w, Affine { bits: 8, group: GROUP as usize })?.into(),
        };
        transforms::eval(tree::leaves(&value, Open::Fully)?.iter().filter_map(Value::as_dense))?;
        Ok(value)
    }

    /// The seconds in which the machine can read a weight, or multiply, whichever takes longer.
    fn limit(&self, weight: &Value, m: i32, bandwidth: f64) -> f64 {
        let operations = 2.0 * f64::from(m) * f64::from(WIDTH) * f64::from(WIDTH);
        (weight.nbytes() as f64 / bandwidth).max(operations / *self.fma_peak.get_or_init(machine::fma_peak))
    }

    fn product(&self, case: &str, weight: &Value, m: i32, backward: bool) -> Result<()> {
        let x = activations(m)?;
        let seconds = per_product(|length| {
            let y = implicit((&x, vec![weight; length]), if backward { backwards } else { forwards });
            y.and_then(|y| Ok(y.dense()?.eval()?)).expect("the products are there");
        });
        let limit = self.limit(weight, m, machine::read_bandwidth(weight.nbytes()));
        record(case, seconds, "the limit of reading or multiplying", limit);
        record(case, seconds, MLX, self.baseline(MLX, m)?);
        record(case, seconds, DENSE, self.baseline(DENSE, m)?);
        Ok(())
    }

    fn cold(&self, case: &str, format: &str) -> Result<()> {
        let first = self.packed(format)?;
        let mut weights = vec![first];
        while weights.len() * weights[0].nbytes() < COLD {
            weights.push(self.packed(format)?);
        }
        let x = activations(1)?;
        let mut next = 0;
        let seconds = per_product(|length| {
            let these: Vec<&Value> = (next..next + length).map(|i| &weights[i % weights.len()]).collect();
            next += length;
            let y = implicit((&x, these), forwards);
            y.and_then(|y| Ok(y.dense()?.eval()?)).expect("the products are there");
        });
        let limit = self.limit(&weights[0], 1, machine::read_bandwidth(COLD));
        record(case, seconds, "the limit of reading or multiplying", limit);
        Ok(())
    }

    /// The product of half floats with half floats, beside MLX's own.
    fn halves(&self, case: &str, format: &AnyFormat, dtype: Dtype, m: i32) -> Result<()> {
        let (x, w) = (activations(m)?.as_dtype(dtype)?, self.w.as_dtype(dtype)?);
        let weight = format.quantize(&w)?;
        transforms::eval([&x, &w])?;
        transforms::eval(tree::leaves(&weight, Open::Fully)?.iter().filter_map(Value::as_dense))?;
        let seconds = per_product(|length| {
            let y = implicit((&x, vec![&weight; length]), forwards);
            y.and_then(|y| Ok(y.dense()?.eval()?)).expect("the products are there");
        });
        let limit = self.limit(&weight, m, machine::read_bandwidth(weight.nbytes()));
        record(case, seconds, "the limit of reading or multiplying", limit);
        let own = per_product(|length| {
            let y = (0..length).try_fold(x.clone(), |x, _| x.matmul(w.t()));
            y.and_then(|y| y.eval()).expect("the products are there");
        });
        record(case, seconds, "MLX's product of half floats", own);
        Ok(())
    }

    /// The product with activations in 8 bits.
    fn int8(&self, case: &str, m: i32) -> Result<()> {
        let weight = Value::from(Nf4Array::quantize(&self.w, GROUP as usize)?.with_int8_activations());
        let x = activations(m)?;
        let seconds = per_product(|length| {
            let y = implicit((&x, vec![&weight; length]), forwards);
            y.and_then(|y| Ok(y.dense()?.eval()?)).expect("the products are there");
        });
        let operations = 2.0 * f64::from(m) * f64::from(WIDTH) * f64::from(WIDTH);
        record(case, seconds, "the limit of 8-bit dot products", operations / machine::dot_peak());
        record(case, seconds, MLX, self.baseline(MLX, m)?);
        Ok(())
    }

    /// Seconds of a product of another making.
    fn baseline(&self, name: &'static str, m: i32) -> Result<f64> {
        if let Some(&seconds) = self.baselines.borrow().get(&(name, m)) {
            return Ok(seconds);
        }
        let x = activations(m)?;
        let (packed, scales, biases) = ops::quantize(&self.w, GROUP, 4)?;
        transforms::eval([&packed, &scales, &biases])?;
        let product = |x: &Array| {
            if name == MLX {
                ops::quantized_matmul(x, &packed, &scales, &biases, true, GROUP, 4)
            } else {
                x.matmul(self.w.t())
            }
        };
        let seconds = per_product(|length| {
            let y = (0..length).try_fold(x.clone(), |x, _| product(&x));
            y.and_then(|y| y.eval()).expect("the products are there");
        });
        self.baselines.borrow_mut().insert((name, m), seconds);
        Ok(seconds)
    }
}

fn activations(m: i32) -> Result<Array> {
    let x = random::normal::<f32>(&[m, WIDTH], None, None, &random::key(m as u64)?)?;
    x.eval()?;
    Ok(x)
}

/// An eval of one sum of two numbers.
fn eval_latency() -> Result<()> {
    let one = Array::from_f32(1.0);
    let time = figures::median(201, 20, || {
        one.add(&one).and_then(|two| two.eval()).expect("a sum");
    });
    let graph = figures::median(201, 20, || drop(one.add(&one).expect("a sum")));
    Figure {
        bench: "matmul",
        case: "eval_latency",
        value: time.as_secs_f64() * 1e6,
        unit: "us",
        baseline: "the same without the eval",
        ratio: time.as_secs_f64() / graph.as_secs_f64(),
    }
    .record();
    Ok(())
}

const MLX: &str = "MLX's quantized_matmul, affine 4-bit";
const DENSE: &str = "a dense product through the exported BLAS";

/// Plain code, which does not know what the weights are.
fn forwards((x, weights): (Array, Vec<Array>)) -> Result<Array, Exception> {
    weights.iter().try_fold(x, |x, w| x.matmul(w.t()))
}

fn backwards((x, weights): (Array, Vec<Array>)) -> Result<Array, Exception> {
    weights.iter().try_fold(x, |x, w| x.matmul(w))
}

/// The median seconds of one product of a chain, whose length is given; a single product where one takes long.
fn per_product(mut chain: impl FnMut(usize)) -> f64 {
    let mut time = |length: usize| {
        let start = Instant::now();
        chain(length);
        start.elapsed().as_secs_f64() / length as f64
    };
    let once = time(1).min(time(1));
    let (length, rounds) = if once > 0.1 { (1, 1) } else { (CHAIN, (0.1 / once) as usize) };
    let mut times: Vec<f64> = (0..rounds.clamp(1, 101)).map(|_| time(length)).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn record(case: &str, seconds: f64, baseline: &str, other: f64) {
    Figure { bench: "matmul", case, value: seconds * 1e3, unit: "ms", baseline, ratio: seconds / other }.record();
}
