//! The kernels beside the limits of this machine, all measured in the same run.
//!
//! `cargo bench -p tacit-kernels --bench kernels [filter]`. A row is a case, its time in milliseconds (the median, and
//! the least), and the median in units of the limit: the stored bytes at the measured bandwidth, or the multiplications
//! at the measured peak, whichever is longer. Cold cases rotate over more weights than any cache holds.
//!
//! With `--choose [filter]` it compares the engine that takes each product with all that could instead (`kernels/choose.rs`).

#[path = "kernels/choose.rs"]
mod choose;
#[path = "kernels/stored.rs"]
#[allow(dead_code, reason = "benches use parts of it")]
mod stored;

use std::time::Instant;

use stored::{FORMATS, Stored};
use tacit_kernels::{Orientation, dequantize, gather_rows, machine, matmul, threads};

const N: usize = 4096;
const K: usize = 4096;
const COLD_BYTES: usize = 600 << 20;

/// The median and the least time of a call, in seconds.
fn time(mut f: impl FnMut()) -> (f64, f64) {
    let begin = Instant::now();
    f();
    let once = begin.elapsed().as_secs_f64();
    let mut times: Vec<f64> = (0..((0.4 / once) as usize).clamp(7, 1000))
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

fn report(filter: &str, case: &str, limit: f64, f: impl FnMut()) {
    if case.contains(filter) {
        let (median, least) = time(f);
        let (ms, least_ms, limit_ms) = (1e3 * median, 1e3 * least, 1e3 * limit);
        println!("{case:<36} {ms:>9.3} {least_ms:>9.3} {limit_ms:>9.3} {:>7.2} {:>7.2}", median / limit, least / limit);
    }
}

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    if std::env::args().any(|argument| argument == "--choose") {
        return choose::run(&filter);
    }
    let (hot, cold) = (machine::read_bandwidth(8 << 20), machine::read_bandwidth(COLD_BYTES));
    let peak = machine::fma_peak();
    println!(
        "{} threads; read {:.1} GB/s hot, {:.1} cold; fma {:.0} GFLOP/s; dot {:.0} GOP/s",
        threads::count(),
        hot / 1e9,
        cold / 1e9,
        peak / 1e9,
        machine::dot_peak() / 1e9
    );
    println!("{:<36} {:>9} {:>9} {:>9} {:>7} {:>7}", "case", "median", "least", "limit", "ratio", "least");
    for format in &FORMATS {
        let name = format.name;
        if !filter.is_empty() && !name.contains(filter.split('/').next().unwrap_or_default()) {
            continue;
        }
        let weight = Stored::new(format, (N, K), 1);
        let matrix = weight.matrix();
        let bytes = weight.bytes() as f64;
        for m in [1, 4, 8, 32, 128, 512] {
            let x = vec![0.5_f32; m * K];
            let mut y = vec![0.0_f32; m * N];
            let limit = (bytes / hot).max(2.0 * (m * N * K) as f64 / peak);
            for (orientation, way) in [(Orientation::Transposed, "x W^T"), (Orientation::Plain, "x W")] {
                report(&filter, &format!("{name}/m{m} {way}"), limit, || {
                    matmul(&x[..], m, &matrix, orientation, &mut y[..]).unwrap();
                });
            }
        }
        let copies: Vec<Vec<u8>> = if name.ends_with("-64") {
            (0..COLD_BYTES / weight.codes.len()).map(|_| weight.codes.clone()).collect()
        } else {
            Vec::new()
        };
        let mut next = 0;
        let x = vec![0.5_f32; K];
        let mut y = vec![0.0_f32; N];
        if !copies.is_empty() {
            report(&filter, &format!("{name}/m1 cold"), bytes / cold, || {
                next = (next + 1) % copies.len();
                let matrix = weight.with_codes(&copies[next]);
                matmul(&x[..], 1, &matrix, Orientation::Transposed, &mut y[..]).unwrap();
            });
        }
        drop(copies);
        let mut out = vec![0.0_f32; N * K];
        report(&filter, &format!("{name}/dequantize at 20 GB/s"), (4 * N * K) as f64 / 20e9, || {
            dequantize(&matrix, &mut out[..]).unwrap();
        });
        let rows: Vec<u32> = (0..512).map(|i| i * 7 % N as u32).collect();
        report(&filter, &format!("{name}/gather at 20 GB/s"), (4 * 512 * K) as f64 / 20e9, || {
            gather_rows(&matrix, &rows, &mut out[..512 * K]).unwrap();
        });
    }
}
