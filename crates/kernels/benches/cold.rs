//! Products with few rows of activations and weights that no cache holds, beside a plain read of the same bytes.
//!
//! `cargo bench -p tacit-kernels --bench cold -- [filter]`. A row is a format: its bits an element with its scales, and for
//! 1, 2, 4 and 8 rows of activations the share of the reading speed at which the weights are multiplied; the last column is
//! that speed. A turn multiplies all weights of a decoder's layers once and then reads them once; the shares are medians of
//! the turns. `--large` takes matrices of 32 MB in place of a layer's; `--int8` rounds activations to 8 bits, for the formats
//! that have such products; `--one` takes one row of activations alone; `--avx2` leaves out what is above AVX2.

#[path = "kernels/stored.rs"]
#[allow(dead_code, reason = "benches use parts of it")]
mod stored;

use std::time::Instant;

use stored::{FORMATS, Format, Stored};
use tacit_kernels::{Isa, Orientation, choice, int8_matmul, machine, matmul, threads};

/// Rows and columns of a layer's weights, those of Qwen3-0.6B.
const LAYER: [(usize, usize); 7] =
    [(2048, 1024), (1024, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (3072, 1024), (1024, 3072)];
const LARGE: [(usize, usize); 1] = [(8192, 4096)];
/// Elements of all matrices together.
const ELEMENTS: usize = 300 << 20;
const ROWS: [usize; 4] = [1, 2, 4, 8];
const TURNS: usize = 9;

fn seconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let wanted: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let layer = if has("--large") { &LARGE[..] } else { &LAYER[..] };
    let int8 = has("--int8");
    let rows = if has("--one") { &ROWS[..1] } else { &ROWS[..] };
    println!("{} threads", threads::count());
    let names: Vec<String> = rows.iter().map(|m| format!("{:>6}", format!("m{m}"))).collect();
    println!("{:<26} {:>5} {} {:>9}", "format", "bits", names.join(" "), "GB/s");
    for format in &FORMATS {
        let is_wanted = wanted.is_empty() || wanted.iter().any(|part| format.name.contains(part.as_str()));
        let takes_int8 = || {
            let weight = Stored::new(format, (8, 256), 1);
            !choice::of_int8_matmul(&machine::Machine::detect(), 1, &weight.matrix()).is_empty()
        };
        if !is_wanted || int8 && !takes_int8() {
            continue;
        }
        let isa = if has("--avx2") { Isa::Avx2 } else { Isa::detect() };
        isa.with(|| measure(format, layer, rows, int8));
    }
}

fn measure(format: &'static Format, layer: &[(usize, usize)], rows: &[usize], int8: bool) {
    let elements: usize = layer.iter().map(|(n, k)| n * k).sum();
    let layers = ELEMENTS / elements;
    let weights: Vec<Stored> =
        (0..layers * layer.len()).map(|i| Stored::new(format, layer[i % layer.len()], 1 + i as u64)).collect();
    let parts: Vec<&[u8]> = weights.iter().flat_map(Stored::parts).collect();
    let bytes: usize = weights.iter().map(Stored::bytes).sum();
    let x: Vec<f32> = (0..8 * 4096).map(|i| (i % 37) as f32 * 0.1 - 1.8).collect();
    let mut y = vec![0.0_f32; 8 * 8192];
    let mut shares = vec![Vec::new(); rows.len()];
    let mut speeds = Vec::new();
    let multiply = |m: usize, y: &mut [f32]| {
        for weight in &weights {
            let (x, y) = (&x[..m * weight.k], &mut y[..m * weight.n]);
            let matrix = weight.matrix();
            if int8 {
                int8_matmul(x, m, &matrix, Orientation::Transposed, y).unwrap();
            } else {
                matmul(x, m, &matrix, Orientation::Transposed, y).unwrap();
            }
        }
    };
    machine::read(&parts);
    for _ in 0..TURNS {
        for (m, shares) in rows.iter().zip(&mut shares) {
            let before = seconds(|| machine::read(&parts));
            let product = seconds(|| multiply(*m, &mut y));
            let after = seconds(|| machine::read(&parts));
            let read = before.min(after);
            shares.push(read / product);
            speeds.push(bytes as f64 / read / 1e9);
        }
    }
    let shares: Vec<String> = shares.into_iter().map(|shares| format!("{:>6.2}", median(shares))).collect();
    let all: usize = weights.iter().map(|weight| weight.n * weight.k).sum();
    let bits = 8.0 * bytes as f64 / all as f64;
    println!("{:<26} {bits:>5.2} {} {:>9.1}", format.name, shares.join(" "), median(speeds));
}
