//! Matrices of every format, with the value of each element by the plainest formula.

use half::{bf16, f16};
use tacit_kernels::{Codes, E2M1, Matrix, Order, Scales, code_bytes, e4m3, e8m0, nf4};

use crate::random::Random;

/// How codes are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Table(u32, Order),
    Unsigned(u32),
    Offset(u32),
    Signed,
    E4m3,
    Bytes,
    F16,
    Bf16,
}

/// How scales are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scaling {
    F32,
    F16,
    Bf16,
    E8m0,
    E4m3,
    Nested,
    Integers,
    One,
}

pub(crate) const KINDS: [Kind; 28] = [
    Kind::Table(4, Order::HighFirst),
    Kind::Table(4, Order::LowFirst),
    Kind::Table(2, Order::HighFirst),
    Kind::Table(2, Order::LowFirst),
    Kind::Table(3, Order::LowFirst),
    Kind::Table(1, Order::HighFirst),
    Kind::Table(1, Order::LowFirst),
    Kind::Unsigned(1),
    Kind::Unsigned(2),
    Kind::Unsigned(3),
    Kind::Unsigned(4),
    Kind::Unsigned(5),
    Kind::Unsigned(6),
    Kind::Unsigned(7),
    Kind::Unsigned(8),
    Kind::Offset(1),
    Kind::Offset(2),
    Kind::Offset(3),
    Kind::Offset(4),
    Kind::Offset(5),
    Kind::Offset(6),
    Kind::Offset(7),
    Kind::Offset(8),
    Kind::Signed,
    Kind::E4m3,
    Kind::Bytes,
    Kind::F16,
    Kind::Bf16,
];

pub(crate) const SCALINGS: [Scaling; 8] = [
    Scaling::F32,
    Scaling::F16,
    Scaling::Bf16,
    Scaling::E8m0,
    Scaling::E4m3,
    Scaling::Nested,
    Scaling::Integers,
    Scaling::One,
];

/// Elements in a block of nested codes; not a multiple of any vector.
const NESTED: usize = 37;
/// Elements in a block of integers; a part of some vectors, as in the K-quants.
const INTEGERS: usize = 8;
const FACTOR: f32 = 0.37;
const OFFSET: f32 = 0.011;

/// A table that no formula of the formats gives.
static EIGHTHS: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = ((code * 37 % 256) as f32 - 100.0) / 8.0;
        code += 1;
    }
    values
};

/// A matrix that owns what it is made of.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) block: usize,
    pub(crate) kind: Kind,
    pub(crate) scaling: Scaling,
    /// The integer that each element's bits are.
    codes: Vec<u16>,
    pub(crate) bytes: Vec<u8>,
    signed: Vec<i8>,
    halves: Vec<f16>,
    upper: Vec<bf16>,
    pub(crate) scales: Numbers,
    pub(crate) biases: Option<Numbers>,
}

#[derive(Clone)]
pub(crate) struct Numbers {
    pub(crate) floats: Vec<f32>,
    halves: Vec<f16>,
    upper: Vec<bf16>,
    bytes: Vec<u8>,
    map: Box<[f32; 256]>,
    absmax: Vec<f32>,
    integers: Vec<i8>,
    units: Vec<f32>,
}

impl Numbers {
    fn new(random: &mut Random, count: usize) -> Self {
        let floats = random.normal(count);
        let map = random.normal(256);
        Self {
            halves: floats.iter().map(|&value| f16::from_f32(value)).collect(),
            upper: floats.iter().map(|&value| bf16::from_f32(value)).collect(),
            // Powers of two around 1, and no NaN.
            bytes: (0..count).map(|_| 100 + (random.bits() % 27) as u8).collect(),
            map: Box::new(std::array::from_fn(|i| map[i])),
            absmax: random.normal(count.div_ceil(NESTED)),
            integers: (0..count).map(|_| random.bits() as i8).collect(),
            units: random.normal(count.div_ceil(INTEGERS)),
            floats,
        }
    }

    fn scales(&self, scaling: Scaling) -> Scales<'_> {
        match scaling {
            Scaling::F32 => Scales::F32(&self.floats),
            Scaling::F16 => Scales::F16(&self.halves),
            Scaling::Bf16 => Scales::Bf16(&self.upper),
            Scaling::E8m0 => Scales::E8m0(&self.bytes),
            Scaling::E4m3 => Scales::E4m3 { bytes: &self.bytes, factor: FACTOR },
            Scaling::Nested => Scales::Nested {
                codes: &self.bytes,
                map: &self.map,
                absmax: &self.absmax,
                block: NESTED,
                offset: OFFSET,
            },
            Scaling::Integers => Scales::Integers { codes: &self.integers, units: &self.units, block: INTEGERS },
            Scaling::One => Scales::One,
        }
    }

    pub(crate) fn value(&self, scaling: Scaling, at: usize) -> f32 {
        match scaling {
            Scaling::F32 => self.floats[at],
            Scaling::F16 => self.halves[at].to_f32(),
            Scaling::Bf16 => self.upper[at].to_f32(),
            Scaling::E8m0 => e8m0(self.bytes[at]),
            Scaling::E4m3 => e4m3(self.bytes[at]) * FACTOR,
            Scaling::Nested => self.map[usize::from(self.bytes[at])] * self.absmax[at / NESTED] + OFFSET,
            Scaling::Integers => f32::from(self.integers[at]) * self.units[at / INTEGERS],
            Scaling::One => 1.0,
        }
    }
}

impl Stored {
    /// Arbitrary codes and scales; biases too, if `biased`.
    pub(crate) fn new(kind: Kind, scaling: Scaling, biased: bool, block: usize, n: usize, k: usize) -> Self {
        let mut random = Random::new((n * 31 + k * 7).wrapping_add(block) as u64);
        let bits = match kind {
            Kind::Table(bits, _) | Kind::Unsigned(bits) | Kind::Offset(bits) => bits,
            Kind::Signed | Kind::E4m3 | Kind::Bytes => 8,
            Kind::F16 | Kind::Bf16 => 16,
        };
        let codes: Vec<u16> = (0..n * k)
            .map(|_| {
                let code = random.bits() as u16 & (u16::MAX >> (16 - bits));
                match kind {
                    Kind::E4m3 if code & 127 == 127 => code ^ 1,
                    // Finite, subnormal ones too; and a sum of products that is.
                    Kind::F16 => code & 0xdfff,
                    Kind::Bf16 => code & 0x83ff | 0x3c00,
                    _ => code,
                }
            })
            .collect();
        let mut bytes = vec![0; code_bytes(n * k, bits)];
        for (at, &code) in codes.iter().enumerate() {
            for bit in 0..bits as usize {
                let place = match kind {
                    Kind::Table(bits, Order::HighFirst) => {
                        let bits = bits as usize;
                        let within = at % (8 / bits);
                        at / (8 / bits) * 8 + 8 - bits - within * bits + bit
                    }
                    _ => at * bits as usize + bit,
                };
                bytes[place / 8] |= ((code >> bit & 1) as u8) << (place % 8);
            }
        }
        let signed = codes.iter().map(|&code| code as i8).collect();
        let halves = codes.iter().map(|&code| f16::from_bits(code)).collect();
        let upper = codes.iter().map(|&code| bf16::from_bits(code)).collect();
        let blocks = (n * k).div_ceil(block);
        let scales = Numbers::new(&mut random, blocks);
        let biases = biased.then(|| Numbers::new(&mut random, blocks));
        Self { n, k, block, kind, scaling, codes, bytes, signed, halves, upper, scales, biases }
    }

    pub(crate) fn matrix(&self) -> Matrix<'_> {
        let codes = match self.kind {
            Kind::Table(bits, order) => Codes::Table { bytes: &self.bytes, bits, order, values: self.table() },
            Kind::Unsigned(bits) => Codes::Unsigned { bytes: &self.bytes, bits },
            Kind::Offset(bits) => Codes::Offset { bytes: &self.bytes, bits },
            Kind::Signed => Codes::Signed { codes: &self.signed },
            Kind::E4m3 => Codes::E4m3 { bytes: &self.bytes },
            Kind::Bytes => Codes::Bytes { bytes: &self.bytes, values: &EIGHTHS },
            Kind::F16 => Codes::F16 { codes: &self.halves },
            Kind::Bf16 => Codes::Bf16 { codes: &self.upper },
        };
        Matrix {
            n: self.n,
            k: self.k,
            codes,
            scales: self.scales.scales(self.scaling),
            biases: self.biases.as_ref().map(|biases| biases.scales(self.scaling)),
            block: self.block,
        }
    }

    fn table(&self) -> &'static [f32; 16] {
        if self.kind == Kind::Table(4, Order::LowFirst) { &E2M1 } else { &nf4::CODEBOOK }
    }

    /// Element `at`, and the magnitudes of its two terms.
    pub(crate) fn element(&self, at: usize) -> (f32, f32) {
        let code = match self.kind {
            Kind::Table(..) => self.table()[usize::from(self.codes[at])],
            Kind::Unsigned(_) => f32::from(self.codes[at]),
            Kind::Offset(bits) => f32::from(self.codes[at]) - (1_u32 << (bits - 1)) as f32,
            Kind::Signed => f32::from(self.codes[at] as i8),
            Kind::E4m3 => e4m3(self.codes[at] as u8),
            Kind::Bytes => EIGHTHS[usize::from(self.codes[at])],
            Kind::F16 => self.halves[at].to_f32(),
            Kind::Bf16 => self.upper[at].to_f32(),
        };
        let scaled = code * self.scales.value(self.scaling, at / self.block);
        match &self.biases {
            Some(biases) => {
                let bias = biases.value(self.scaling, at / self.block);
                (scaled + bias, scaled.abs() + bias.abs())
            }
            None => (scaled, scaled.abs()),
        }
    }

    pub(crate) fn elements(&self) -> Vec<f32> {
        (0..self.n * self.k).map(|at| self.element(at).0).collect()
    }

    pub(crate) fn describe(&self) -> String {
        let Self { n, k, block, kind, scaling, .. } = self;
        format!("{kind:?} {scaling:?} biases {} block {block} n {n} k {k}", self.biases.is_some())
    }
}
