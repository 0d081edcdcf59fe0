//! Products with few rows of activations and weights that no cache holds, beside a plain read of the same bytes.
//!
//! `cargo bench -p tacit-kernels --bench cold -- [filter]`. A row is a format: its bits an element with its scales, and for
//! 1, 2, 4 and 8 rows of activations the share of the reading speed at which the weights are multiplied; the last column is
//! that speed. A turn multiplies all weights of a decoder's layers once and then reads them once; the shares are medians of
//! the turns. `--large` takes matrices of 32 MB in place of a layer's; `--int8` rounds activations to 8 bits, for the formats
//! that have such products; `--one` takes one row of activations alone; `--avx2` leaves out what is above AVX2.

use std::time::Instant;

use half::f16;
use tacit_kernels::{
    Codes, E2M1, Isa, Matrix, Order, Orientation, Scales, choice, dynamic8, int8_matmul, machine, matmul, nf4, threads,
};

/// Rows and columns of a layer's weights, those of Qwen3-0.6B.
const LAYER: [(usize, usize); 7] =
    [(2048, 1024), (1024, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (3072, 1024), (1024, 3072)];
const LARGE: [(usize, usize); 1] = [(8192, 4096)];
/// Elements of all matrices together.
const ELEMENTS: usize = 300 << 20;
const ROWS: [usize; 4] = [1, 2, 4, 8];
const TURNS: usize = 9;

/// What a scale is stored in.
#[derive(Clone, Copy)]
enum Numbers {
    None,
    F32,
    F16,
    E8m0,
    E4m3,
    Nested,
    /// Groups of a super-block.
    Integers(usize),
}

/// How a format stores its elements.
struct Format {
    name: &'static str,
    bits: usize,
    codes: for<'a> fn(&'a Buffers) -> Codes<'a>,
    /// Elements of a block; 0 is a row.
    block: usize,
    numbers: Numbers,
    biased: bool,
}

fn nf4(buffers: &Buffers) -> Codes<'_> {
    Codes::Table { bytes: &buffers.codes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK }
}

fn e2m1(buffers: &Buffers) -> Codes<'_> {
    Codes::Table { bytes: &buffers.codes, bits: 4, order: Order::LowFirst, values: &E2M1 }
}

fn unsigned<const BITS: u32>(buffers: &Buffers) -> Codes<'_> {
    Codes::Unsigned { bytes: &buffers.codes, bits: BITS }
}

fn ternary(buffers: &Buffers) -> Codes<'_> {
    static VALUES: [f32; 16] = [-1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    Codes::Table { bytes: &buffers.codes, bits: 2, order: Order::LowFirst, values: &VALUES }
}

/// Numbers as others of the same bytes.
fn cast<A, B>(numbers: &[A]) -> &[B] {
    // SAFETY: this is called with integers and floats, which have no padding and of which every bit pattern is one.
    let (before, numbers, after) = unsafe { numbers.align_to() };
    assert!(before.is_empty() && after.is_empty(), "allocations are aligned");
    numbers
}

const fn format(
    name: &'static str,
    bits: usize,
    codes: for<'a> fn(&'a Buffers) -> Codes<'a>,
    block: usize,
    numbers: Numbers,
    biased: bool,
) -> Format {
    Format { name, bits, codes, block, numbers, biased }
}

const FORMATS: [Format; 26] = [
    format("nf4-64", 4, nf4, 64, Numbers::F32, false),
    format("nf4-64/nested", 4, nf4, 64, Numbers::Nested, false),
    format("affine4-64", 4, unsigned::<4>, 64, Numbers::F32, true),
    format("affine4-64/f16", 4, unsigned::<4>, 64, Numbers::F16, true),
    format("affine4-32 (q4_0, q4_1)", 4, unsigned::<4>, 32, Numbers::F32, true),
    format("affine4-32/f16", 4, unsigned::<4>, 32, Numbers::F16, true),
    format("affine8-32 (q8_0)", 8, unsigned::<8>, 32, Numbers::F32, true),
    format("affine8-32/f16", 8, unsigned::<8>, 32, Numbers::F16, true),
    format("affine5-32 (q5_0, q5_1)", 5, unsigned::<5>, 32, Numbers::F32, true),
    format("k2", 2, unsigned::<2>, 16, Numbers::Integers(16), true),
    format("k3", 3, unsigned::<3>, 16, Numbers::Integers(16), true),
    format("k4", 4, unsigned::<4>, 32, Numbers::Integers(8), true),
    format("k5", 5, unsigned::<5>, 32, Numbers::Integers(8), true),
    format("k6", 6, unsigned::<6>, 16, Numbers::Integers(16), true),
    format("affine3-64", 3, unsigned::<3>, 64, Numbers::F32, true),
    format("affine6-64", 6, unsigned::<6>, 64, Numbers::F32, true),
    format("affine8-64", 8, unsigned::<8>, 64, Numbers::F32, true),
    format("int8-row", 8, |buffers| Codes::Signed { codes: cast(&buffers.codes) }, 0, Numbers::F32, false),
    format("int8-64", 8, |buffers| Codes::Signed { codes: cast(&buffers.codes) }, 64, Numbers::F32, false),
    format("mxfp4", 4, e2m1, 32, Numbers::E8m0, false),
    format("nvfp4", 4, e2m1, 16, Numbers::E4m3, false),
    format("mxfp8", 8, |buffers| Codes::E4m3 { bytes: &buffers.codes }, 32, Numbers::E8m0, false),
    format("ternary-row", 2, ternary, 0, Numbers::F32, false),
    format("f16", 16, |buffers| Codes::F16 { codes: cast(&buffers.codes) }, 0, Numbers::None, false),
    format("bf16", 16, |buffers| Codes::Bf16 { codes: cast(&buffers.codes) }, 0, Numbers::None, false),
    format("affine2-64", 2, unsigned::<2>, 64, Numbers::F32, true),
];

impl Format {
    /// Elements of a block of rows of `k`.
    fn block(&self, k: usize) -> usize {
        if self.block == 0 { k } else { self.block }
    }
}

/// What one matrix is stored in.
struct Buffers {
    n: usize,
    k: usize,
    codes: Vec<u8>,
    floats: Vec<f32>,
    halves: Vec<f16>,
    /// Scales of a byte each.
    scales: Vec<u8>,
    /// Biases of a byte each.
    biases: Vec<u8>,
}

impl Buffers {
    fn new(format: &Format, (n, k): (usize, usize), seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        // No byte is a NaN of E4M3, and no half float is large.
        let mask = if format.bits == 16 { 0xbb_ff } else { 0xf7f7 };
        let mut words = |bytes: usize| -> Vec<u8> {
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state & (mask * 0x0001_0001_0001_0001)
            };
            (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(bytes).collect()
        };
        let blocks = n * k / format.block(k);
        let times = if format.biased { 2 } else { 1 };
        let float = |i: usize| 0.01 + (i % 97) as f32 * 1e-4;
        let (mut floats, mut halves, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        match format.numbers {
            Numbers::None => {}
            Numbers::F32 => floats = (0..times * blocks).map(float).collect(),
            Numbers::F16 => halves = (0..times * blocks).map(|i| f16::from_f32(float(i))).collect(),
            Numbers::E8m0 => scales = (0..blocks).map(|i| 115 + (i % 7) as u8).collect(),
            Numbers::E4m3 => scales = (0..blocks).map(|i| 30 + (i % 17) as u8).collect(),
            Numbers::Nested => {
                scales = words(blocks);
                floats = (0..blocks.div_ceil(256)).map(float).collect();
            }
            Numbers::Integers(of) => {
                (scales, biases) = (words(blocks), words(blocks));
                floats = (0..2 * blocks.div_ceil(of)).map(float).collect();
            }
        }
        Self { n, k, codes: words(n * k * format.bits / 8), floats, halves, scales, biases }
    }

    fn matrix(&self, format: &Format) -> Matrix<'_> {
        let (k, n) = (self.k, self.n);
        let block = format.block(k);
        let blocks = n * k / block;
        let (scales, biases) = match format.numbers {
            Numbers::None => (Scales::One, None),
            Numbers::F32 => {
                let (scales, biases) = self.floats.split_at(blocks);
                (Scales::F32(scales), Some(Scales::F32(biases)))
            }
            Numbers::F16 => {
                let (scales, biases) = self.halves.split_at(blocks);
                (Scales::F16(scales), Some(Scales::F16(biases)))
            }
            Numbers::E8m0 => (Scales::E8m0(&self.scales), None),
            Numbers::E4m3 => (Scales::E4m3 { bytes: &self.scales, factor: 1.0 }, None),
            Numbers::Nested => {
                let (codes, map) = (&self.scales[..], dynamic8::map());
                (Scales::Nested { codes, map, absmax: &self.floats, block: 256, offset: 0.1 }, None)
            }
            Numbers::Integers(block) => {
                let (units, others) = self.floats.split_at(blocks.div_ceil(block));
                let integers = |codes, units| Scales::Integers { codes, units, block };
                (integers(cast(&self.scales), units), Some(integers(cast(&self.biases), others)))
            }
        };
        let block = if matches!(format.numbers, Numbers::None) { n * k } else { block };
        Matrix { n, k, codes: (format.codes)(self), scales, biases: biases.filter(|_| format.biased), block }
    }

    fn parts(&self) -> [&[u8]; 5] {
        [&self.codes, cast(&self.floats), cast(&self.halves), &self.scales, &self.biases]
    }
}

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
            !choice::of_int8_matmul(&machine::Machine::detect(), 1, &Buffers::new(format, (8, 256), 1).matrix(format))
                .is_empty()
        };
        if !is_wanted || int8 && !takes_int8() {
            continue;
        }
        let isa = if has("--avx2") { Isa::Avx2 } else { Isa::detect() };
        isa.with(|| measure(format, layer, rows, int8));
    }
}

fn measure(format: &Format, layer: &[(usize, usize)], rows: &[usize], int8: bool) {
    let elements: usize = layer.iter().map(|(n, k)| n * k).sum();
    let layers = ELEMENTS / elements;
    let weights: Vec<Buffers> =
        (0..layers * layer.len()).map(|i| Buffers::new(format, layer[i % layer.len()], 1 + i as u64)).collect();
    let parts: Vec<&[u8]> = weights.iter().flat_map(Buffers::parts).collect();
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let x: Vec<f32> = (0..8 * 4096).map(|i| (i % 37) as f32 * 0.1 - 1.8).collect();
    let mut y = vec![0.0_f32; 8 * 8192];
    let mut shares = vec![Vec::new(); rows.len()];
    let mut speeds = Vec::new();
    let multiply = |m: usize, y: &mut [f32]| {
        for weight in &weights {
            let (x, y) = (&x[..m * weight.k], &mut y[..m * weight.n]);
            let matrix = weight.matrix(format);
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
