//! Products with few rows of activations, for each instruction set of this machine, beside its limits.
//!
//! `cargo bench -p tacit-kernels --bench rows [filter] [instruction set]`; `hot` for a filter is all formats without the cold
//! column. A row is a format; a column is `x W^T` for a number of rows of `x`, the same with weights that are in no cache,
//! `x W`, and products with 8-bit activations. A cell is the least time in milliseconds, and how
//! often the longer of the two limits it is: the stored bytes at the bandwidth, and the multiplications at the peak, of
//! this run.

use std::time::{Duration, Instant};

use half::f16;
use tacit_kernels::{
    Codes, E2M1, Isa, Matrix, Order, Orientation, Scales, code_bytes, int8_matmul, machine, matmul, nf4, threads,
};

/// What a case may take, beside one round that is not counted.
const TIME: Duration = Duration::from_millis(40);
/// The weights that are gone through before one is read again.
const COLD_BYTES: usize = 600 << 20;

/// Rows and columns.
type Size = (usize, usize);

const SQUARE: Size = (4096, 4096);

/// Numbers of every kind, from which weights of any format are made.
struct Numbers {
    floats: Vec<f32>,
    halves: Vec<f16>,
    /// Powers of two as E8M0 has them, and as many normal numbers of E4M3.
    exponents: Vec<u8>,
    integers: Vec<i8>,
    map: [f32; 256],
}

/// Codes, scales and biases.
type Parts<'a> = (Codes<'a>, Scales<'a>, Option<Scales<'a>>);

struct Format {
    name: &'static str,
    bits: u32,
    block: usize,
    /// Bytes of the numbers of a block.
    numbers: f64,
    parts: for<'a> fn(&'a [u8], &'a Numbers, usize) -> Parts<'a>,
}

fn nested(numbers: &Numbers, blocks: usize, block: usize) -> Scales<'_> {
    let absmax = &numbers.floats[..blocks.div_ceil(block)];
    Scales::Nested { codes: &numbers.exponents[..blocks], map: &numbers.map, absmax, block, offset: 0.0 }
}

fn nf4(bytes: &[u8]) -> Codes<'_> {
    Codes::Table { bytes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK }
}

fn e2m1(bytes: &[u8]) -> Codes<'_> {
    Codes::Table { bytes, bits: 4, order: Order::LowFirst, values: &E2M1 }
}

macro_rules! affine {
    ($name:literal, $bits:literal) => {
        Format {
            name: $name,
            bits: $bits,
            block: 64,
            numbers: 8.0,
            parts: |bytes, numbers, blocks| {
                let scales = Scales::F32(&numbers.floats[..blocks]);
                (Codes::Unsigned { bytes, bits: $bits }, scales, Some(scales))
            },
        }
    };
}

macro_rules! symmetric {
    ($name:literal, $bits:literal) => {
        Format {
            name: $name,
            bits: $bits,
            block: 32,
            numbers: 2.0,
            parts: |bytes, numbers, blocks| {
                (Codes::Offset { bytes, bits: $bits }, Scales::F16(&numbers.halves[..blocks]), None)
            },
        }
    };
}

/// Codes of the kind that is named; those in offset binary have no biases.
macro_rules! k_quant {
    ($name:literal, $bits:literal, $group:literal, $bytes:literal, $kind:ident) => {
        Format {
            name: $name,
            bits: $bits,
            block: $group,
            numbers: $bytes,
            parts: |bytes, numbers, blocks| {
                let codes = &numbers.integers[..blocks];
                let block = 256 / $group;
                let scales = Scales::Integers { codes, units: &numbers.floats[..blocks.div_ceil(block)], block };
                let codes = Codes::$kind { bytes, bits: $bits };
                (codes, scales, matches!(codes, Codes::Unsigned { .. }).then_some(scales))
            },
        }
    };
}

const FORMATS: &[Format] = &[
    Format {
        name: "nf4-64",
        bits: 4,
        block: 64,
        numbers: 4.0,
        parts: |bytes, numbers, blocks| (nf4(bytes), Scales::F32(&numbers.floats[..blocks]), None),
    },
    Format {
        name: "nf4-64/nested",
        bits: 4,
        block: 64,
        numbers: 1.0,
        parts: |bytes, numbers, blocks| (nf4(bytes), nested(numbers, blocks, 256), None),
    },
    affine!("affine4-64", 4),
    Format {
        name: "affine4-64/f16",
        bits: 4,
        block: 64,
        numbers: 4.0,
        parts: |bytes, numbers, blocks| {
            let scales = Scales::F16(&numbers.halves[..blocks]);
            (Codes::Unsigned { bytes, bits: 4 }, scales, Some(scales))
        },
    },
    Format {
        name: "mxfp4",
        bits: 4,
        block: 32,
        numbers: 1.0,
        parts: |bytes, numbers, blocks| (e2m1(bytes), Scales::E8m0(&numbers.exponents[..blocks]), None),
    },
    Format {
        name: "nvfp4",
        bits: 4,
        block: 16,
        numbers: 1.0,
        parts: |bytes, numbers, blocks| {
            (e2m1(bytes), Scales::E4m3 { bytes: &numbers.exponents[..blocks], factor: 1.0 }, None)
        },
    },
    affine!("affine2-64", 2),
    affine!("affine3-64", 3),
    affine!("affine5-64", 5),
    affine!("affine6-64", 6),
    affine!("affine8-64", 8),
    symmetric!("q4_0", 4),
    symmetric!("q5_0", 5),
    symmetric!("q8_0", 8),
    k_quant!("k2", 2, 16, 2.5, Unsigned),
    k_quant!("k3", 3, 16, 1.25, Offset),
    k_quant!("k4", 4, 32, 3.0, Unsigned),
    k_quant!("k5", 5, 32, 3.0, Unsigned),
    k_quant!("k6", 6, 16, 1.25, Offset),
    Format {
        name: "mxfp8",
        bits: 8,
        block: 32,
        numbers: 1.0,
        parts: |bytes, numbers, blocks| (Codes::E4m3 { bytes }, Scales::E8m0(&numbers.exponents[..blocks]), None),
    },
    Format {
        name: "int8-row",
        bits: 8,
        block: 4096,
        numbers: 4.0,
        parts: |bytes, numbers, blocks| {
            // Kept for good: there is one for each instruction set.
            let codes = bytes.iter().map(|byte| byte.cast_signed()).collect::<Vec<_>>().leak();
            (Codes::Signed { codes }, Scales::F32(&numbers.floats[..blocks]), None)
        },
    },
];

impl Format {
    fn bytes(&self, (n, k): Size) -> f64 {
        code_bytes(n * k, self.bits) as f64 + (n * k / self.block) as f64 * self.numbers
    }

    fn matrix<'a>(&self, bytes: &'a [u8], numbers: &'a Numbers, (n, k): Size) -> Matrix<'a> {
        let (codes, scales, biases) = (self.parts)(bytes, numbers, n * k / self.block);
        Matrix { n, k, codes, scales, biases, block: self.block }
    }
}

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
    let floats: Vec<f32> = (0..elements / 16).map(|i| 0.01 + (i % 97) as f32 * 1e-4).collect();
    let numbers = Numbers {
        halves: floats.iter().map(|&x| f16::from_f32(x)).collect(),
        exponents: (0..elements / 16).map(|i| 100 + (i % 20) as u8).collect(),
        integers: (0..elements / 16).map(|i| (i % 251) as i8).collect(),
        map: std::array::from_fn(|i| i as f32 / 256.0),
        floats,
    };
    // No byte is a NaN of E4M3.
    let bytes: Vec<u8> = (0..elements).map(|i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0xf7).collect();
    let cold: Vec<u8> =
        if filter.contains("hot") { Vec::new() } else { bytes.iter().copied().cycle().take(COLD_BYTES).collect() };
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
                "{:<15} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13}",
                "", "1", "1 cold", "2", "4", "8", "32", "x W 1", "int8 1", "int8 4", "int8 8"
            );
            for format in FORMATS.iter().filter(|format| filter == "hot" || format.name.contains(filter)) {
                let matrix = format.matrix(&bytes[..code_bytes(elements, format.bits)], &numbers, SQUARE);
                let stored = format.bytes(SQUARE);
                let limit = |m: usize| (stored / hot_limit).max(2.0 * (m * elements) as f64 / fma);
                let mut product = |m: usize, matrix: &Matrix, orientation| {
                    matmul(&x[..m * 4096], m, matrix, orientation, &mut y[..m * 4096]).unwrap();
                };
                print!("{:<15}", format.name);
                cell(least(|| product(1, &matrix, Orientation::Transposed)), limit(1));
                let mut copies = cold.chunks_exact(code_bytes(elements, format.bits)).cycle();
                if cold.is_empty() || matches!(matrix.codes, Codes::Signed { .. }) {
                    print!(" {:>13}", "");
                } else {
                    let seconds = least(|| {
                        let bytes = copies.next().unwrap();
                        product(1, &format.matrix(bytes, &numbers, SQUARE), Orientation::Transposed);
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
