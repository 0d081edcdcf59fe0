//! Weights of arbitrary codes in every stored format.

use half::f16;
use tacit_kernels::{Codes, E2M1, Matrix, Order, Scales, binary, dynamic8, nf4, ternary};

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
pub(crate) struct Format {
    pub(crate) name: &'static str,
    bits: usize,
    codes: for<'a> fn(&'a [u8]) -> Codes<'a>,
    /// Elements of a block; 0 is a row.
    block: usize,
    numbers: Numbers,
    biased: bool,
}

fn nf4(bytes: &[u8]) -> Codes<'_> {
    Codes::Table { bytes, bits: 4, order: Order::HighFirst, values: &nf4::CODEBOOK }
}

fn e2m1(bytes: &[u8]) -> Codes<'_> {
    Codes::Table { bytes, bits: 4, order: Order::LowFirst, values: &E2M1 }
}

fn unsigned<const BITS: u32>(bytes: &[u8]) -> Codes<'_> {
    Codes::Unsigned { bytes, bits: BITS }
}

fn offset<const BITS: u32>(bytes: &[u8]) -> Codes<'_> {
    Codes::Offset { bytes, bits: BITS }
}

fn ternary(bytes: &[u8]) -> Codes<'_> {
    Codes::Table { bytes, bits: 2, order: Order::LowFirst, values: &ternary::VALUES }
}

fn binary(bytes: &[u8]) -> Codes<'_> {
    Codes::Table { bytes, bits: 1, order: Order::LowFirst, values: &binary::VALUES }
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
    codes: for<'a> fn(&'a [u8]) -> Codes<'a>,
    block: usize,
    numbers: Numbers,
    biased: bool,
) -> Format {
    Format { name, bits, codes, block, numbers, biased }
}

pub(crate) static FORMATS: [Format; 31] = [
    format("nf4-64", 4, nf4, 64, Numbers::F32, false),
    format("nf4-64/nested", 4, nf4, 64, Numbers::Nested, false),
    format("affine4-64", 4, unsigned::<4>, 64, Numbers::F32, true),
    format("affine4-64/f16", 4, unsigned::<4>, 64, Numbers::F16, true),
    format("affine4-32 (q4_1)", 4, unsigned::<4>, 32, Numbers::F32, true),
    format("affine4-32/f16", 4, unsigned::<4>, 32, Numbers::F16, true),
    format("affine5-32 (q5_1)", 5, unsigned::<5>, 32, Numbers::F32, true),
    format("affine8-32", 8, unsigned::<8>, 32, Numbers::F32, true),
    format("affine8-32/f16", 8, unsigned::<8>, 32, Numbers::F16, true),
    format("q4_0", 4, offset::<4>, 32, Numbers::F16, false),
    format("q5_0", 5, offset::<5>, 32, Numbers::F16, false),
    format("q8_0", 8, offset::<8>, 32, Numbers::F16, false),
    format("k2", 2, unsigned::<2>, 16, Numbers::Integers(16), true),
    format("k3", 3, offset::<3>, 16, Numbers::Integers(16), false),
    format("k4", 4, unsigned::<4>, 32, Numbers::Integers(8), true),
    format("k5", 5, unsigned::<5>, 32, Numbers::Integers(8), true),
    format("k6", 6, offset::<6>, 16, Numbers::Integers(16), false),
    format("affine2-64", 2, unsigned::<2>, 64, Numbers::F32, true),
    format("affine3-64", 3, unsigned::<3>, 64, Numbers::F32, true),
    format("affine5-64", 5, unsigned::<5>, 64, Numbers::F32, true),
    format("affine6-64", 6, unsigned::<6>, 64, Numbers::F32, true),
    format("affine8-64", 8, unsigned::<8>, 64, Numbers::F32, true),
    format("int8-row", 8, |bytes| Codes::Signed { codes: cast(bytes) }, 0, Numbers::F32, false),
    format("int8-64", 8, |bytes| Codes::Signed { codes: cast(bytes) }, 64, Numbers::F32, false),
    format("mxfp4", 4, e2m1, 32, Numbers::E8m0, false),
    format("nvfp4", 4, e2m1, 16, Numbers::E4m3, false),
    format("mxfp8", 8, |bytes| Codes::E4m3 { bytes }, 32, Numbers::E8m0, false),
    format("ternary-row", 2, ternary, 0, Numbers::F32, false),
    format("binary-64", 1, binary, 64, Numbers::F32, false),
    format("f16", 16, |bytes| Codes::F16 { codes: cast(bytes) }, 0, Numbers::None, false),
    format("bf16", 16, |bytes| Codes::Bf16 { codes: cast(bytes) }, 0, Numbers::None, false),
];

/// The format of this name, which is there.
pub(crate) fn named(name: &str) -> &'static Format {
    FORMATS.iter().find(|format| format.name == name).expect("a format")
}

impl Format {
    /// Elements of a block of rows of `k`.
    fn block(&self, k: usize) -> usize {
        if self.block == 0 { k } else { self.block }
    }
}

/// What one matrix is stored in.
pub(crate) struct Stored {
    pub(crate) format: &'static Format,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) codes: Vec<u8>,
    floats: Vec<f32>,
    halves: Vec<f16>,
    /// Scales of a byte each.
    scales: Vec<u8>,
    /// Biases of a byte each.
    biases: Vec<u8>,
}

impl Stored {
    /// Of so many rows and columns.
    pub(crate) fn new(format: &'static Format, (n, k): (usize, usize), seed: u64) -> Self {
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
                (scales, biases) = (words(blocks), words((times - 1) * blocks));
                floats = (0..times * blocks.div_ceil(of)).map(float).collect();
            }
        }
        Self { format, n, k, codes: words(n * k * format.bits / 8), floats, halves, scales, biases }
    }

    pub(crate) fn matrix(&self) -> Matrix<'_> {
        self.with_codes(&self.codes)
    }

    /// The same scales with other codes.
    pub(crate) fn with_codes<'a>(&'a self, codes: &'a [u8]) -> Matrix<'a> {
        let Self { format, n, k, .. } = *self;
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
        Matrix { n, k, codes: (format.codes)(codes), scales, biases: biases.filter(|_| format.biased), block }
    }

    /// All that is read of it.
    pub(crate) fn parts(&self) -> [&[u8]; 5] {
        [&self.codes, cast(&self.floats), cast(&self.halves), &self.scales, &self.biases]
    }

    /// How many bytes that is.
    pub(crate) fn bytes(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}
