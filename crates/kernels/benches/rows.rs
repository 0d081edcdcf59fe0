//! Products with few rows of activations, for each instruction set of this machine, beside its limits.
//!
//! `cargo bench -p tacit-kernels --bench rows [filter] [instruction set]`; `hot` for a filter is all formats without the cold
//! column. A row is a format; a column is `x W^T` for a number of rows of `x`, the same with weights that are in no cache,
//! `x W`, and products with 8-bit activations. A cell is the least time in milliseconds, and how
//! often the longer of the two limits it is: the stored bytes at the bandwidth, and the multiplications at the peak, of
//! this run.

#[path = "kernels/stored.rs"]
#[allow(dead_code, reason = "benches use parts of it")]
mod stored;

use std::time::{Duration, Instant};

use stored::{FORMATS, Stored};
use tacit_kernels::{Isa, Matrix, Orientation, int8_matmul, machine, matmul, threads};

/// What a case may take, beside one round that is not counted.
const TIME: Duration = Duration::from_millis(40);
/// The weights that are gone through before one is read again.
const COLD_BYTES: usize = 600 << 20;

/// Rows and columns.
const SQUARE: (usize, usize) = (4096, 4096);

/// The least time of a call, in seconds.
fn least(mut f: impl FnMut()) -> f64 {
    f();
    let (begin, mut least) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < TIME {
        let start = Instant::now();
        f();
        least = least.min(start.elapsed().as_secs_f64());
    }
    least
}

fn cell(seconds: f64, limit: f64) {
    print!(" {:>7.3} {:>5.2}", 1e3 * seconds, seconds / limit);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let filter = arguments.first().map_or("", String::as_str);
    let isas = Isa::available();
    let wanted = |isa: &&Isa| arguments.get(1).map_or(**isa != Isa::Scalar, |name| format!("{isa:?}") == *name);
    let elements = SQUARE.0 * SQUARE.1;
    let cold = if filter.contains("hot") { 0 } else { COLD_BYTES };
    // No byte is a NaN of E4M3.
    let cold: Vec<u8> = (0..cold).map(|i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0xf7).collect();
    let (hot_limit, cold_limit) = (machine::read_bandwidth(9 << 20), machine::read_bandwidth(COLD_BYTES));
    let (x, mut y) = ((0..32 * 4096).map(|i| (i % 13) as f32 - 6.0).collect::<Vec<_>>(), vec![0.0_f32; 32 * 4096]);
    for isa in isas.iter().filter(wanted) {
        isa.with(|| {
            let (fma, dot) = (machine::fma_peak(), machine::dot_peak());
            println!(
                "{isa:?}, {} threads; read {:.1} GB/s hot, {:.1} cold; fma {:.0} GFLOP/s; dot {:.0} GOP/s",
                threads::count(),
                hot_limit / 1e9,
                cold_limit / 1e9,
                fma / 1e9,
                dot / 1e9,
            );
            println!(
                "{:<17} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13}",
                "", "1", "1 cold", "2", "4", "8", "32", "x W 1", "int8 1", "int8 4", "int8 8"
            );
            for format in FORMATS.iter().filter(|format| filter == "hot" || format.name.contains(filter)) {
                let weight = Stored::new(format, SQUARE, 1);
                let (matrix, stored) = (weight.matrix(), weight.bytes() as f64);
                let limit = |m: usize| (stored / hot_limit).max(2.0 * (m * elements) as f64 / fma);
                let mut product = |m: usize, matrix: &Matrix, orientation| {
                    matmul(&x[..m * 4096], m, matrix, orientation, &mut y[..m * 4096]).unwrap();
                };
                print!("{:<17}", format.name);
                cell(least(|| product(1, &matrix, Orientation::Transposed)), limit(1));
                let mut copies = cold.chunks_exact(weight.codes.len()).cycle();
                if cold.is_empty() {
                    print!(" {:>13}", "");
                } else {
                    let seconds = least(|| {
                        product(1, &weight.with_codes(copies.next().unwrap()), Orientation::Transposed);
                    });
                    cell(seconds, stored / cold_limit);
                }
                for m in [2, 4, 8, 32] {
                    cell(least(|| product(m, &matrix, Orientation::Transposed)), limit(m));
                }
                cell(least(|| product(1, &matrix, Orientation::Plain)), limit(1));
                for m in [1, 4, 8] {
                    let limit = (stored / hot_limit).max(2.0 * (m * elements) as f64 / dot);
                    let (x, y) = (&x[..m * 4096], &mut y[..m * 4096]);
                    if int8_matmul(x, m, &matrix, Orientation::Transposed, &mut *y).is_ok() {
                        cell(least(|| int8_matmul(x, m, &matrix, Orientation::Transposed, &mut *y).unwrap()), limit);
                    }
                }
                println!();
            }
        });
    }
}
