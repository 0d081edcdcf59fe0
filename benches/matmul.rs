//! Products with packed weights beside the limits of the machine, MLX's own packed product and a dense one.
//!
//! A case is a chain of dependent products in one eval, through the array types; its time is that of one product. Its
//! ratios are its time over the limit of the machine, and its time over that of each baseline. Arguments select the
//! cases whose names contain one of them: `cargo bench --bench matmul -- m1`. MLX's own product, which takes seconds, is
//! left out of the longest cases by `--quick`.

use std::hint::black_box;
use std::time::Instant;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops, random, transforms};
use tacit::format::Affine;
use tacit::prelude::*;
use tacit::tree;
use tacit_figures::{Rounds, Unit};
use tacit_kernels::machine;

/// Rows and columns of the weights.
const WIDTH: i32 = 4096;

/// The most products in a chain.
const CHAIN: usize = 16;

/// Seconds of a chain, where one product takes no longer.
const TURN: f64 = 0.02;

/// Bytes that no cache holds, over which the cold weights are spread.
const COLD: usize = 600 << 20;

/// Elements that share a scale.
const GROUP: i32 = 64;

fn main() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let bench = Bench::new()?;
    let selected = |case: &str| bench.run.wants(case);
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
        bench.eval_latency()?;
    }
    Ok(())
}

/// The weight.
struct Bench {
    run: tacit_figures::Bench,
    w: Array,
}

impl Bench {
    fn new() -> Result<Self> {
        // Chains of products with such a matrix neither grow nor vanish.
        let scale = 1.0 / f32::sqrt(WIDTH as f32);
        let w = random::normal::<f32>(&[WIDTH, WIDTH], None, scale, &random::key(1)?)?;
        w.eval()?;
        Ok(Self { run: tacit_figures::bench!("matmul"), w })
    }

    fn packed(&self, format: &str) -> Result<Value> {
        let value: Value = match format {
            "nf4" => Nf4Array::quantize(&self.w, GROUP as usize)?.into(),
            "affine4" => AffineArray::quantize(&self.w, Affine { bits: 4, group: GROUP as usize })?.into(),
            _ => AffineArray::quantize(&self.w, Affine { bits: 8, group: GROUP as usize })?.into(),
        };
        tree::eval(&value)?;
        Ok(value)
    }

    /// Products whose weights take so many bytes beside the limit of reading or multiplying and beside a dense product.
    fn beside_limit<'a>(
        &'a self,
        weight: &'a Value,
        resident: usize,
        m: i32,
        chain: impl FnMut(usize) -> Result<()> + 'a,
    ) -> Turns<'a> {
        let limit = move || {
            let reading = weight.nbytes() as f64 / machine::read_bandwidth(resident);
            Ok(reading.max(operations(m) / machine::fma_peak()))
        };
        self.run.turns().measure(OURS, chained(chain)).seldom(LIMIT, limit)
    }

    /// The same beside what MLX does.
    fn beside_mlx<'a>(&'a self, turns: Turns<'a>, x: &'a Array) -> Result<Turns<'a>> {
        let turns = turns.measure(DENSE, chained(move |length| folded(x, length, |x| x.matmul(self.w.t()))));
        if self.run.is_quick() && x.shape()[0] > 32 {
            return Ok(turns);
        }
        let (packed, scales, biases) = ops::quantize(&self.w, GROUP, 4)?;
        transforms::eval([&packed, &scales, &biases])?;
        Ok(turns.seldom(MLX, move || {
            let start = Instant::now();
            ops::quantized_matmul(x, &packed, &scales, &biases, true, GROUP, 4)?.eval()?;
            Ok(start.elapsed().as_secs_f64())
        }))
    }

    fn product(&self, case: &str, weight: &Value, m: i32, backward: bool) -> Result<()> {
        let x = activations(m)?;
        let plain = if backward { backwards } else { forwards };
        let turns = self.beside_limit(weight, weight.nbytes(), m, |length| {
            Ok(implicit((&x, vec![weight; length]), plain)?.dense()?.eval()?)
        });
        recorded(case, &self.beside_mlx(turns, &x)?.take()?);
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
        let turns = self.beside_limit(&weights[0], COLD, 1, |length| {
            let these: Vec<&Value> = (next..next + length).map(|i| &weights[i % weights.len()]).collect();
            next += length;
            Ok(implicit((&x, these), forwards)?.dense()?.eval()?)
        });
        recorded(case, &turns.take()?);
        Ok(())
    }

    /// The product of half floats with half floats, beside MLX's own.
    fn halves(&self, case: &str, format: &AnyFormat, dtype: Dtype, m: i32) -> Result<()> {
        let (x, w) = (activations(m)?.as_dtype(dtype)?, self.w.as_dtype(dtype)?);
        let weight = format.quantize(&w)?;
        transforms::eval([&x, &w])?;
        tree::eval(&weight)?;
        let turns = self.beside_limit(&weight, weight.nbytes(), m, |length| {
            Ok(implicit((&x, vec![&weight; length]), forwards)?.dense()?.eval()?)
        });
        let own = || {
            let start = Instant::now();
            x.matmul(w.t())?.eval()?;
            Ok(start.elapsed().as_secs_f64())
        };
        recorded(case, &turns.seldom("MLX's product of half floats", own).take()?);
        Ok(())
    }

    /// The product with activations in 8 bits.
    fn int8(&self, case: &str, m: i32) -> Result<()> {
        let weight = Value::from(Nf4Array::quantize(&self.w, GROUP as usize)?.with_int8_activations()?);
        let x = activations(m)?;
        let ours = chained(|length| Ok(implicit((&x, vec![&weight; length]), forwards)?.dense()?.eval()?));
        let limit = || Ok(operations(m) / machine::dot_peak());
        let turns = self.run.turns().measure(OURS, ours).seldom("the limit of 8-bit dot products", limit);
        recorded(case, &self.beside_mlx(turns, &x)?.take()?);
        Ok(())
    }

    /// An eval of one sum of two numbers.
    fn eval_latency(&self) -> Result<()> {
        let one = Array::from_f32(1.0);
        let rounds = self
            .run
            .turns()
            .run(OURS, || Ok::<_, Error>(one.add(&one)?.eval()?))
            .run("the same without the eval", || {
                black_box(one.add(&one)?);
                Ok(())
            })
            .take()?;
        rounds.record("eval_latency", Unit::time("us"));
        Ok(())
    }
}

type Turns<'a> = tacit_figures::Turns<'a, Error>;

fn operations(m: i32) -> f64 {
    2.0 * f64::from(m) * f64::from(WIDTH) * f64::from(WIDTH)
}

fn activations(m: i32) -> Result<Array> {
    let x = random::normal::<f32>(&[m, WIDTH], None, None, &random::key(m as u64)?)?;
    x.eval()?;
    Ok(x)
}

const OURS: &str = "ours";
const LIMIT: &str = "the limit of reading or multiplying";
const MLX: &str = "MLX's quantized_matmul, affine 4-bit";
const DENSE: &str = "a dense product through the exported BLAS";

/// Plain code, which does not know what the weights are.
fn forwards((x, weights): (Array, Vec<Array>)) -> Result<Array, Exception> {
    weights.iter().try_fold(x, |x, w| x.matmul(w.t()))
}

fn backwards((x, weights): (Array, Vec<Array>)) -> Result<Array, Exception> {
    weights.iter().try_fold(x, |x, w| x.matmul(w))
}

fn folded(x: &Array, length: usize, product: impl Fn(&Array) -> Result<Array, Exception>) -> Result<()> {
    Ok((0..length).try_fold(x.clone(), |x, _| product(&x))?.eval()?)
}

/// The seconds of one product of a chain, which is given its length: no longer than a short turn allows.
fn chained<'a>(mut chain: impl FnMut(usize) -> Result<()> + 'a) -> impl FnMut() -> Result<f64> + 'a {
    let mut known = None;
    move || {
        let mut time = |length: usize| {
            let start = Instant::now();
            chain(length)?;
            Ok::<_, Error>(start.elapsed().as_secs_f64() / length as f64)
        };
        let length = match known {
            Some(length) => length,
            None => *known.insert((TURN / time(1)?.min(time(1)?)).clamp(1.0, CHAIN as f64) as usize),
        };
        time(length)
    }
}

fn recorded(case: &str, rounds: &Rounds) {
    rounds.record(case, Unit::time("ms"));
}
