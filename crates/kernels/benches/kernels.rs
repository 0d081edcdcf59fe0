//! The kernels beside the limits of this machine, all measured in the same run.
//!
//! `cargo bench -p tacit-kernels --bench kernels [filter]`. A row is a case, its time in milliseconds (the median, and
//! the least), and the median in units of the limit: the stored bytes at the measured bandwidth, or the multiplications
//! at the measured peak, whichever is longer. Cold cases rotate over more weights than any cache holds.
//!
//! With `--choose [filter]` it compares the engine that takes each product with all that could instead (`kernels/choose.rs`).

#[path = "kernels/choose.rs"]
mod choose;

use std::time::Instant;

use half::{bf16, f16};
use tacit_kernels::{
    Codes, E2M1, Matrix, Order, Orientation, Scales, dequantize, gather_rows, machine, matmul, nf4, threads,
};

const N: usize = 4096;
const K: usize = 4096;
const COLD_BYTES: usize = 600 << 20;

/// A weight of some format, of arbitrary codes.
struct Stored {
    name: &'static str,
    n: usize,
    k: usize,
    bytes: Vec<u8>,
    scales: Vec<f32>,
    scale_bytes: Vec<u8>,
    halves: Vec<f16>,
    matrix: fn(&Stored) -> Matrix<'_>,
    block: usize,
}

const INTEGERS: [f32; 16] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
const TERNARY: [f32; 16] = [-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0];

impl Stored {
    /// Of so many rows and columns.
    fn new(
        name: &'static str,
        [n, k]: [usize; 2],
        bits: usize,
        block: usize,
        scale_bytes: u8,
        matrix: fn(&Stored) -> Matrix<'_>,
    ) -> Self {
        let blocks = n * k / block;
        // No byte is a NaN of E4M3.
        let bytes = (0..n * k * bits / 8).map(|i| ((i * 2_654_435_761) >> 13) as u8 & 0xf7).collect();
        let scales: Vec<f32> = (0..blocks).map(|i| 0.01 + (i % 97) as f32 * 1e-4).collect();
        let halves = scales.iter().map(|&scale| f16::from_f32(scale)).collect();
        Self { name, n, k, bytes, scales, scale_bytes: vec![scale_bytes; blocks], halves, matrix, block }
    }

    fn dense(&self, codes: Codes<'static>) -> Matrix<'_> {
        Matrix { n: self.n, k: self.k, codes, scales: Scales::F32(&self.scales), biases: None, block: self.block }
    }

    fn matrix(&self) -> Matrix<'_> {
        (self.matrix)(self)
    }

    fn stored_bytes(&self) -> usize {
        let matrix = self.matrix();
        let each = |scales: &Scales| match scales {
            Scales::One => 0,
            Scales::F32(values) => 4 * values.len(),
            Scales::F16(values) => 2 * values.len(),
            Scales::Bf16(values) => 2 * values.len(),
            Scales::E8m0(bytes) | Scales::E4m3 { bytes, .. } | Scales::Nested { codes: bytes, .. } => bytes.len(),
            Scales::Integers { codes, .. } => codes.len(),
        };
        self.bytes.len() + each(&matrix.scales) + matrix.biases.as_ref().map_or(0, each)
    }
}

fn table<'a>(w: &'a Stored, bits: u32, order: Order, values: &'static [f32; 16]) -> Matrix<'a> {
    let codes = Codes::Table { bytes: &w.bytes, bits, order, values };
    Matrix { codes, ..w.dense(Codes::Signed { codes: &[] }) }
}

fn affine(w: &Stored, bits: u32) -> Matrix<'_> {
    let codes = Codes::Unsigned { bytes: &w.bytes, bits };
    Matrix { codes, biases: Some(Scales::F32(&w.scales)), ..w.dense(Codes::Signed { codes: &[] }) }
}

fn nf4(w: &Stored) -> Matrix<'_> {
    table(w, 4, Order::HighFirst, &nf4::CODEBOOK)
}

fn halves<T>(w: &Stored, round: fn(f32) -> T) -> &'static [T] {
    let numbers = w.bytes.as_chunks().0.iter().map(|bytes| f32::from(i16::from_le_bytes(*bytes)) / 32768.0);
    numbers.map(round).collect::<Vec<T>>().leak()
}

fn values<'a>(w: &'a Stored, codes: Codes<'static>) -> Matrix<'a> {
    Matrix { scales: Scales::One, ..w.dense(codes) }
}

/// Weights of all formats, of `n` rows and `k` columns.
fn weights([n, k]: [usize; 2]) -> Vec<Stored> {
    static MAP: [f32; 256] = [0.5; 256];
    static ABSMAX: [f32; 1 << 12] = [0.5; 1 << 12];
    vec![
        Stored::new("nf4-64", [n, k], 4, 64, 0, nf4),
        Stored::new("affine4-64", [n, k], 4, 64, 0, |w| affine(w, 4)),
        Stored::new("affine4-64/f16", [n, k], 4, 64, 0, |w| Matrix {
            scales: Scales::F16(&w.halves),
            biases: Some(Scales::F16(&w.halves)),
            ..affine(w, 4)
        }),
        Stored::new("nf4-64/nested", [n, k], 4, 64, 9, |w| Matrix {
            scales: Scales::Nested {
                codes: &w.scale_bytes,
                map: &MAP,
                absmax: &ABSMAX[..w.scales.len().div_ceil(256)],
                block: 256,
                offset: 0.1,
            },
            ..nf4(w)
        }),
        Stored::new("mxfp4", [n, k], 4, 32, 120, |w| Matrix {
            scales: Scales::E8m0(&w.scale_bytes),
            ..table(w, 4, Order::LowFirst, &E2M1)
        }),
        Stored::new("nvfp4", [n, k], 4, 16, 40, |w| Matrix {
            scales: Scales::E4m3 { bytes: &w.scale_bytes, factor: 1.0 },
            ..table(w, 4, Order::LowFirst, &E2M1)
        }),
        Stored::new("int8-row", [n, k], 8, k, 0, |w| {
            let codes: Vec<i8> = w.bytes.iter().map(|&byte| byte as i8).collect();
            w.dense(Codes::Signed { codes: codes.leak() })
        }),
        Stored::new("affine8-64", [n, k], 8, 64, 0, |w| affine(w, 8)),
        Stored::new("mxfp8", [n, k], 8, 32, 120, |w| Matrix {
            scales: Scales::E8m0(&w.scale_bytes),
            codes: Codes::E4m3 { bytes: &w.bytes },
            ..w.dense(Codes::Signed { codes: &[] })
        }),
        Stored::new("affine3-64", [n, k], 3, 64, 0, |w| affine(w, 3)),
        Stored::new("affine6-64", [n, k], 6, 64, 0, |w| affine(w, 6)),
        Stored::new("ternary-row", [n, k], 2, k, 0, |w| table(w, 2, Order::LowFirst, &TERNARY)),
        Stored::new("f16", [n, k], 16, n * k, 0, |w| values(w, Codes::F16 { codes: halves(w, f16::from_f32) })),
        Stored::new("bf16", [n, k], 16, n * k, 0, |w| values(w, Codes::Bf16 { codes: halves(w, bf16::from_f32) })),
        Stored::new("binary-64", [n, k], 1, 64, 0, |w| table(w, 1, Order::LowFirst, &INTEGERS)),
    ]
}

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
    for weight in weights([N, K]) {
        if !filter.is_empty() && !weight.name.contains(filter.split('/').next().unwrap_or_default()) {
            continue;
        }
        let matrix = weight.matrix();
        let bytes = weight.stored_bytes() as f64;
        for m in [1, 4, 8, 32, 128, 512] {
            let x = vec![0.5_f32; m * K];
            let mut y = vec![0.0_f32; m * N];
            let limit = (bytes / hot).max(2.0 * (m * N * K) as f64 / peak);
            for (orientation, way) in [(Orientation::Transposed, "x W^T"), (Orientation::Plain, "x W")] {
                report(&filter, &format!("{}/m{m} {way}", weight.name), limit, || {
                    matmul(&x[..], m, &matrix, orientation, &mut y[..]).unwrap();
                });
            }
        }
        let copies: Vec<Vec<u8>> = match matrix.codes {
            Codes::Table { bytes, .. } | Codes::Unsigned { bytes, .. } if weight.name.ends_with("-64") => {
                (0..COLD_BYTES / bytes.len()).map(|_| bytes.to_vec()).collect()
            }
            _ => Vec::new(),
        };
        let mut next = 0;
        let x = vec![0.5_f32; K];
        let mut y = vec![0.0_f32; N];
        if !copies.is_empty() {
            report(&filter, &format!("{}/m1 cold", weight.name), bytes / cold, || {
                next = (next + 1) % copies.len();
                let bytes = &copies[next];
                let codes = match matrix.codes {
                    Codes::Table { bits, order, values, .. } => Codes::Table { bytes, bits, order, values },
                    Codes::Unsigned { bits, .. } => Codes::Unsigned { bytes, bits },
                    other => other,
                };
                matmul(&x[..], 1, &Matrix { codes, ..matrix }, Orientation::Transposed, &mut y[..]).unwrap();
            });
        }
        drop(copies);
        let mut out = vec![0.0_f32; N * K];
        report(&filter, &format!("{}/dequantize at 20 GB/s", weight.name), (4 * N * K) as f64 / 20e9, || {
            dequantize(&matrix, &mut out[..]).unwrap();
        });
        let rows: Vec<u32> = (0..512).map(|i| i * 7 % N as u32).collect();
        report(&filter, &format!("{}/gather at 20 GB/s", weight.name), (4 * 512 * K) as f64 / 20e9, || {
            gather_rows(&matrix, &rows, &mut out[..512 * K]).unwrap();
        });
    }
}
