//! `tacit bench`: how fast this machine computes products in each format.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, random};
use serde::Serialize;
use tacit_arrays::format::AnyFormat;
use tacit_core::{Aval, Error, Policy, Result, Value, implicit, tree};
use tacit_figures::{Limits, Machine, Turns};
use tacit_kernels::machine::{dot_peak, fma_peak, read_bandwidth};
use tacit_kernels::{Isa, threads};

use crate::table::Table;

#[derive(Args)]
pub(crate) struct Options {
    /// The formats, such as nf4:64 or affine:4:32; one of each kind where none is named
    formats: Vec<AnyFormat>,
    /// Outputs and inputs of the weight. A weight that fits into the caches is read faster than those of a whole model
    #[arg(long, value_name = "OUTxIN", default_value = "4096x4096")]
    shape: Shape,
    /// Rows of activations, with commas between them: 1 is a token, as when a model generates
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = clap::value_parser!(i32).range(1..))]
    rows: Vec<i32>,
    /// About how long it may take in all
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=1e6).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0 to 1000000".to_owned()),
    }
}

/// Outputs and inputs of a linear layer.
#[derive(Clone, Copy, Serialize)]
struct Shape(i32, i32);

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides = text.split_once('x').and_then(|(a, b)| Some(Self(a.parse().ok()?, b.parse().ok()?)));
        let whole = |shape: &Self| shape.0 > 0 && shape.1 > 0 && shape.0.checked_mul(shape.1).is_some();
        sides.filter(whole).ok_or_else(|| "write OUTxIN, such as 4096x4096".to_owned())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.0, self.1)
    }
}

/// What products with a weight in each format take.
#[derive(Serialize)]
pub(crate) struct Measured {
    machine: Machine,
    /// The instruction sets of this machine, of which the kernels take the last.
    instructions: Vec<String>,
    limits: Limits,
    shape: Shape,
    products: Vec<Product>,
    /// Formats that do not fit the shape, with the reason.
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct Product {
    format: String,
    rows: i32,
    /// Bits for each element of the weight, scales included.
    bits: f64,
    milliseconds: f64,
    /// The rate at which the stored weight is read, in billions of bytes.
    gigabytes_per_second: f64,
    gigaflops: f64,
    /// How many times as fast as the product with a dense weight of `f32`, in rounds side by side: quartiles and median.
    beside_f32: [f64; 3],
}

/// One of each kind, in options that are often used.
const FORMATS: [&str; 15] = [
    "f16",
    "bf16",
    "int8",
    "affine:8:64",
    "affine:4:64",
    "nf4:64",
    "fp4:64",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "e4m3:32",
    "e5m2:32",
    "k:4",
    "ternary",
    "binary",
];

const DENSE: &str = "dense f32";
const HALVES: &str = "dense bf16, by MLX";

/// Seconds of a turn, where one product takes no longer.
const TURN: f64 = 5e-3;

pub(crate) fn bench(options: &Options) -> Result<Measured> {
    let isa = |isa: &Isa| format!("{isa:?}").to_lowercase();
    // Its load is that of others as long as nothing was measured.
    let machine = Machine::detect(isa(&Isa::detect()), threads::count());
    // Products that would build the dense weight say nothing of a format.
    let _deny = Policy::Deny.scope();
    let mut formats = options.formats.clone();
    if formats.is_empty() {
        formats = FORMATS.iter().map(|text| text.parse()).collect::<Result<_>>()?;
    }
    let Shape(outputs, inputs) = options.shape;
    if let Some(rows) = options.rows.iter().find(|rows| rows.checked_mul(outputs.max(inputs)).is_none()) {
        let message = format!("{rows} rows for a weight of {} are more numbers than an array has", options.shape);
        return Err(Error::invalid(message, "give fewer `--rows`"));
    }
    let dense = random::normal::<f32>(&[outputs, inputs], None, 0.02, &random::key(1)?)?;
    let mut weights = vec![
        (DENSE.to_owned(), Value::from(dense.clone())),
        (HALVES.to_owned(), dense.as_dtype(Dtype::Bfloat16)?.into()),
    ];
    let (aval, mut left_out) = (Aval::from(&dense), Vec::new());
    for format in formats {
        let name = format.to_string();
        // Turns are known by it: one that is named again is measured once.
        if weights.iter().any(|(own, _)| *own == name) {
            continue;
        }
        match format.misfit(&aval)? {
            // Of those that nobody named, some do not fit each shape.
            Some(reason) if options.formats.is_empty() => left_out.push(format!("{format}: {reason}")),
            _ => weights.push((name, format.quantize(&dense)?)),
        }
    }
    tree::eval(&weights.iter().map(|(_, weight)| weight).collect::<Vec<_>>())?;
    let mut products = Vec::new();
    for &rows in &options.rows {
        let time = Duration::from_secs_f64(options.seconds / options.rows.len() as f64);
        products.extend(measured(&weights, [rows, outputs, inputs], time)?);
    }
    Ok(Measured {
        machine,
        instructions: Isa::available().iter().map(isa).collect(),
        limits: Limits {
            read_hot: read_bandwidth(8 << 20) / 1e9,
            read_cold: None,
            fma: fma_peak() / 1e9,
            dot: dot_peak() / 1e9,
        },
        shape: options.shape,
        products,
        left_out,
    })
}

/// Products of so many rows with each of the weights, in turns.
fn measured(weights: &[(String, Value)], [rows, outputs, inputs]: [i32; 3], time: Duration) -> Result<Vec<Product>> {
    let x = random::normal::<f32>(&[rows, inputs], None, None, &random::key(2)?)?;
    x.eval()?;
    let mut turns = Turns::unrecorded(time, 3);
    for (name, weight) in weights {
        // MLX's product of half floats, which may take seconds, is with inputs of its own kind.
        let x = if name == HALVES { x.as_dtype(Dtype::Bfloat16)? } else { x.clone() };
        x.eval()?;
        let turn = product(x, weight);
        turns = if name == HALVES { turns.seldom(name, turn) } else { turns.measure(name, turn) };
    }
    let rounds = turns.take()?;
    let elements = f64::from(outputs) * f64::from(inputs);
    let of = |(name, weight): &(String, Value)| {
        let (seconds, ratio) = (rounds.seconds(name), rounds.ratio(DENSE, name));
        Product {
            format: name.clone(),
            rows,
            bits: 8.0 * weight.nbytes() as f64 / elements,
            milliseconds: 1e3 * seconds,
            gigabytes_per_second: weight.nbytes() as f64 / seconds / 1e9,
            gigaflops: 2.0 * f64::from(rows) * elements / seconds / 1e9,
            beside_f32: [ratio.low, ratio.median, ratio.high],
        }
    };
    Ok(weights.iter().map(of).collect())
}

/// The seconds of one of several products that are evaluated together, so many that a turn is not too short.
fn product(x: Array, weight: &Value) -> impl FnMut() -> Result<f64> {
    let mut known = None;
    move || {
        let time = |count: usize| {
            let start = Instant::now();
            let product = implicit((&x, weight), |(x, w)| {
                (0..count).map(|_| x.matmul(w.t())).collect::<Result<Vec<Array>, Exception>>()
            })?;
            tree::eval(&product)?;
            Ok::<_, tacit_core::Error>(start.elapsed().as_secs_f64() / count as f64)
        };
        let count = match known {
            Some(count) => count,
            None => *known.insert((TURN / time(1)?.min(time(1)?)).clamp(1.0, 64.0) as usize),
        };
        time(count)
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, threads, load, .. } = &self.machine;
        let Limits { read_hot, fma, .. } = self.limits;
        writeln!(
            f,
            "{cpu}; {threads} threads; {}; reads {read_hot:.0} GB/s from its caches, multiplies {fma:.0} GFLOP/s; weights {}",
            self.instructions.join(" "),
            self.shape
        )?;
        if let Some(load) = load.filter(|load| *load > 1.0) {
            writeln!(
                f,
                "others work on this machine, whose load is {load:.1}: what is measured is less than it gives"
            )?;
        }
        let mut table =
            Table::new(&["weight", ">rows", ">bits", ">ms", ">GB/s", ">GFLOP/s", ">times dense f32", ">quartiles"]);
        for Product {
            format,
            rows,
            bits,
            milliseconds,
            gigabytes_per_second,
            gigaflops,
            beside_f32: [low, times, high],
        } in &self.products
        {
            table.row([
                format.clone(),
                rows.to_string(),
                format!("{bits:.2}"),
                format!("{milliseconds:.3}"),
                format!("{gigabytes_per_second:.1}"),
                format!("{gigaflops:.1}"),
                format!("{times:.2}"),
                format!("{low:.2}-{high:.2}"),
            ]);
        }
        write!(f, "{table}")?;
        self.left_out.iter().try_for_each(|reason| write!(f, "\nleft out: {reason}"))
    }
}
