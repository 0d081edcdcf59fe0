//! How fast floats are coded, in every format, beside the rate at which this machine reads them.
//!
//! `cargo bench -p tacit-kernels --bench encode [filter]`. A row is an instruction set and a format; the rate is that of the
//! floats, the median and the best of some rounds, and the median in units of the read bandwidth. The weights are read from
//! memory or, in the second column, as many as one layer has, from a cache; codes go to memory that was written before.

use std::time::Instant;

use tacit_kernels::{
    BlockScales, E2M1, Encoder, Isa, KernelError, ScaleRule, affine, binary, dynamic8, fp4, int8, machine, mx,
    nearest::Table, nf4, nvfp4, ternary, threads,
};

/// Elements of the larger and of the smaller weight.
const SIZES: [usize; 2] = [4096 * 4096, 512 * 512];
const BLOCK: usize = 64;

/// Where a format writes; what it gives is as long as the format needs for these floats.
struct Outputs {
    codes: Vec<u8>,
    signed: Vec<i8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
    bytes: Vec<u8>,
}

impl Outputs {
    /// Codes of so many bits, and a scale for each block.
    fn blocks(&mut self, x: &[f32], bits: usize, block: usize) -> (&mut [u8], &mut [f32]) {
        (&mut self.codes[..x.len() * bits / 8], &mut self.scales[..x.len() / block])
    }

    /// Codes of so many bits, and a byte for each block.
    fn bytes(&mut self, x: &[f32], bits: usize, block: usize) -> (&mut [u8], &mut [u8]) {
        (&mut self.codes[..x.len() * bits / 8], &mut self.bytes[..x.len() / block])
    }

    /// Signed bytes, and so many scales.
    fn signed(&mut self, x: &[f32], scales: usize) -> (&mut [i8], &mut [f32]) {
        (&mut self.signed[..x.len()], &mut self.scales[..scales])
    }
}

type Quantize = Box<dyn Fn(&[f32], &mut Outputs) -> Result<(), KernelError>>;

/// The formats whose codes are those of a table.
fn tables() -> Vec<(String, Quantize)> {
    let values: Vec<f32> = (0..256_u16).map(|i| (f32::from(i) - 127.5) * (1.0 + f32::from(i % 16))).collect();
    let table = |bits: usize, values: Vec<f32>| -> (String, Quantize) {
        let quantize = move |x: &[f32], out: &mut Outputs| {
            let (codes, scales) = out.blocks(x, bits, BLOCK);
            Table::new(&values)?.encoder(BLOCK).quantize(x, codes, BlockScales::Floats(scales))
        };
        (format!("table of {}", 1 << bits), Box::new(quantize))
    };
    vec![
        with_floats("nf4:64", 4, nf4::encoder),
        with_floats("fp4:64", 4, fp4::encoder),
        with_floats("dynamic8:64", 8, dynamic8::encoder),
        table(2, vec![-1.0, -0.3, 0.3, 1.0]),
        table(4, E2M1.to_vec()),
        table(8, values),
    ]
}

/// A format with a float for each block.
fn with_floats(name: &str, bits: usize, encoder: fn(usize) -> Encoder) -> (String, Quantize) {
    let quantize = move |x: &[f32], out: &mut Outputs| {
        let (codes, scales) = out.blocks(x, bits, BLOCK);
        encoder(BLOCK).quantize(x, codes, BlockScales::Floats(scales))
    };
    (name.to_owned(), Box::new(quantize))
}

/// A format with a byte for each block.
fn with_bytes(name: &str, bits: usize, block: usize, encoder: Encoder) -> (String, Quantize) {
    let quantize = move |x: &[f32], out: &mut Outputs| {
        let (codes, scales) = out.bytes(x, bits, block);
        encoder.quantize(x, codes, BlockScales::Bytes(scales))
    };
    (name.to_owned(), Box::new(quantize))
}

/// The formats whose codes are small floats, or integers without biases.
fn numbers() -> Vec<(String, Quantize)> {
    let int8 = |block: usize| -> Quantize {
        Box::new(move |x, out| {
            let (codes, scales) = out.signed(x, x.len() / block);
            int8::encoder(block).quantize(x, int8::as_bytes(codes), BlockScales::Floats(scales))
        })
    };
    let named = |name: &str, quantize| (name.to_owned(), quantize);
    vec![
        with_bytes("mxfp4", 4, 32, mx::mxfp4(ScaleRule::Ceil)),
        with_bytes("mxfp8", 8, 32, mx::mxfp8(ScaleRule::Ceil)),
        with_bytes("nvfp4", 4, 16, nvfp4::encoder(Some(6.0))),
        named("int8:64", int8(BLOCK)),
        named("int8:row", int8(4096)),
        with_floats("ternary:64", 2, ternary::encoder),
        with_floats("binary:64", 1, binary::encoder),
    ]
}

/// MLX's integers with scales and biases.
fn lines() -> Vec<(String, Quantize)> {
    let affine = |bits: usize| -> (String, Quantize) {
        let quantize = move |x: &[f32], out: &mut Outputs| {
            let (codes, biases) = (&mut out.codes[..x.len() * bits / 8], &mut out.biases[..x.len() / BLOCK]);
            affine::encoder(BLOCK, bits as u32).quantize(
                x,
                codes,
                BlockScales::Biased(&mut out.scales[..x.len() / BLOCK], biases),
            )
        };
        (format!("affine:{bits}:64"), Box::new(quantize))
    };
    [2, 3, 4, 5, 6, 8].map(affine).into()
}

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    let mut seed = 1_u64;
    let mut noise = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / 16_777_216.0 - 0.5
    };
    let x: Vec<f32> = (0..SIZES[0]).map(|_| noise() + noise() + noise()).collect();
    let zeros = || vec![0.0; x.len() / 16];
    let mut out = Outputs {
        codes: vec![0; x.len()],
        signed: vec![0; x.len()],
        scales: zeros(),
        biases: zeros(),
        bytes: vec![0; x.len() / 16],
    };
    let limits = SIZES.map(|size| machine::read_bandwidth(4 * size) / 1e9);
    println!("reads {:.1} and {:.1} GB/s on {} threads", limits[0], limits[1], threads::count());
    for isa in Isa::available() {
        for (name, quantize) in tables().into_iter().chain(numbers()).chain(lines()) {
            let line = format!("{isa:?} {name}");
            if !line.to_lowercase().contains(&filter.to_lowercase()) {
                continue;
            }
            print!("{line:<22}");
            for (size, limit) in SIZES.into_iter().zip(limits) {
                let rounds = if size == SIZES[0] { 9 } else { 101 };
                let mut rates: Vec<f64> = (0..rounds)
                    .map(|_| {
                        let start = Instant::now();
                        isa.with(|| quantize(&x[..size], &mut out)).expect("the floats can be coded");
                        (4 * size) as f64 / start.elapsed().as_secs_f64() / 1e9
                    })
                    .collect();
                rates.sort_unstable_by(f64::total_cmp);
                let [median, best] = [rates[rounds / 2], rates[rounds - 1]];
                print!("{median:>8.2}{best:>8.2} GB/s {:>6.2}", median / limit);
            }
            println!();
        }
    }
}
