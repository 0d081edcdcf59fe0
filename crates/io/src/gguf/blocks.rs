//! The blocks of ggml's quantized types: their codes in the order of the elements, and their numbers.
//!
//! The layouts are those of `ggml-quants.c`, as `quants.py` of gguf-py 0.19 reads them. Each is stated once, for both directions.

use std::ops::Range;

use half::f16;

pub(super) struct Block {
    /// The codes, as many as the block has elements.
    pub(super) codes: [u8; 256],
    /// The scale of the block, and of a super-block that of its scales.
    pub(super) scale: f32,
    /// What is added to each element, and of a super-block the scale of its biases.
    pub(super) bias: f32,
    /// The scales of a super-block's groups, or the byte of a power of two, or 1 if a block has neither; from the 16th on the
    /// biases of its groups. They are signed bytes.
    pub(super) integers: [u8; 32],
}

impl Block {
    pub(super) const EMPTY: Self = Self { codes: [0; 256], scale: 0.0, bias: 0.0, integers: [1; 32] };
    /// The first of the integers that is a bias.
    pub(super) const BIASES: usize = 16;
}

/// How a type is laid out.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    name: &'static str,
    /// Bits of a code.
    pub(super) bits: u32,
    pub(super) form: Form,
    /// Reads a block of the type's bytes.
    pub(super) read: fn(&[u8], &mut Block),
    /// Writes a block into the type's bytes, which are zero. Its integers are then others.
    pub(super) write: Option<fn(&mut Block, &mut [u8])>,
}

/// What becomes of the blocks.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// `code * scale + bias` in groups of 32.
    Affine,
    /// `(code - 2^(bits - 1)) * scale` in groups of 32.
    Symmetric,
    /// Groups whose scales are integers times that of their super-block.
    KQuant,
    /// Values of a table, with so many scales a block of the type.
    Table { values: &'static [f32], scales: usize },
    /// OCP's MXFP4.
    Mxfp4,
}

/// The values of `IQ4_NL` and `IQ4_XS`, `kvalues_iq4nl`.
pub(super) const IQ4: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// The values of `TQ1_0` and `TQ2_0`; those that llama.cpp writes have no 2.
pub(super) const TERNARY: [f32; 4] = [-1.0, 0.0, 1.0, 2.0];

/// The layout of the type of this name, if it is read.
pub(super) fn layout(name: &str) -> Option<Layout> {
    LAYOUTS.into_iter().find(|layout| layout.name == name)
}

/// The types that are read, for a message.
pub(super) const READ: &str = "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0 and MXFP4";

/// The layout of a type by its fields, which stand behind its name, the bits of a code and its form.
macro_rules! layout {
    ($name:literal, $bits:literal, $form:expr, |$block:ident| $fields:expr) => {
        Layout {
            name: $name,
            bits: $bits,
            form: $form,
            read: |bytes, block| {
                let $block = &mut Reading { bytes, block };
                $fields
            },
            write: Some(|block, bytes| {
                let $block = &mut Writing { block, bytes };
                $fields
            }),
        }
    };
}

const LAYOUTS: [Layout; 15] = [
    layout!("Q4_0", 4, Form::Symmetric, |block| {
        block.scale(0);
        block.codes::<16, 4>(2..18, 0);
    }),
    layout!("Q4_1", 4, Form::Affine, |block| {
        block.scale(0);
        block.bias(2);
        block.codes::<16, 4>(4..20, 0);
    }),
    layout!("Q5_0", 5, Form::Symmetric, |block| {
        block.scale(0);
        block.codes::<16, 4>(6..22, 0);
        block.codes::<1, 1>(2..6, 4);
    }),
    layout!("Q5_1", 5, Form::Affine, |block| {
        block.scale(0);
        block.bias(2);
        block.codes::<16, 4>(8..24, 0);
        block.codes::<1, 1>(4..8, 4);
    }),
    layout!("Q8_0", 8, Form::Symmetric, |block| {
        block.scale(0);
        block.signed(2..34);
    }),
    layout!("Q2_K", 2, Form::KQuant, |block| {
        block.integers::<16, 4>(0..16, 0);
        block.codes::<32, 2>(16..80, 0);
        block.scale(80);
        block.bias(82);
    }),
    layout!("Q3_K", 3, Form::KQuant, |block| {
        block.codes::<32, 2>(32..96, 0);
        block.codes::<32, 1>(0..32, 2);
        block.around(32, |block| {
            block.integers::<8, 4>(96..104, 0);
            block.integers::<4, 2>(104..108, 4);
        });
        block.scale(108);
    }),
    layout!("Q4_K", 4, Form::KQuant, |block| {
        block.scale(0);
        block.bias(2);
        block.sixes(4..16);
        block.codes::<32, 4>(16..144, 0);
    }),
    layout!("Q5_K", 5, Form::KQuant, |block| {
        block.scale(0);
        block.bias(2);
        block.sixes(4..16);
        block.codes::<32, 4>(48..176, 0);
        block.codes::<32, 1>(16..48, 4);
    }),
    layout!("Q6_K", 6, Form::KQuant, |block| {
        block.codes::<64, 4>(0..128, 0);
        block.codes::<32, 2>(128..192, 4);
        block.integers::<16, 8>(192..208, 0);
        block.scale(208);
    }),
    layout!("IQ4_NL", 4, Form::Table { values: &IQ4, scales: 1 }, |block| {
        block.scale(0);
        block.codes::<16, 4>(2..18, 0);
    }),
    layout!("IQ4_XS", 4, Form::Table { values: &IQ4, scales: 8 }, |block| {
        block.scale(0);
        block.around(32, |block| {
            block.integers::<1, 4>(4..8, 0);
            block.integers::<1, 2>(2..4, 4);
        });
        block.codes::<16, 4>(8..136, 0);
    }),
    Layout { name: "TQ1_0", bits: 2, form: Form::Table { values: &TERNARY, scales: 1 }, read: tq1_0, write: None },
    layout!("TQ2_0", 2, Form::Table { values: &TERNARY, scales: 1 }, |block| {
        block.codes::<32, 2>(0..64, 0);
        block.scale(64);
    }),
    layout!("MXFP4", 4, Form::Mxfp4, |block| {
        block.integers::<1, 8>(0..1, 0);
        block.codes::<16, 4>(1..17, 0);
    }),
];

/// A block's bytes, and what is read of them.
struct Reading<'b> {
    bytes: &'b [u8],
    block: &'b mut Block,
}

/// What is to be written, and where: each field as [`Reading`] has it, in the other direction.
struct Writing<'b> {
    block: &'b mut Block,
    bytes: &'b mut [u8],
}

impl Reading<'_> {
    fn scale(&mut self, at: usize) {
        self.block.scale = half(self.bytes, at);
    }

    fn bias(&mut self, at: usize) {
        self.block.bias = half(self.bytes, at);
    }

    /// `BITS` bits of the codes, from `place` on: the lowest ones of `RUN` bytes are those of as many codes, the next ones of
    /// these bytes those of the next codes, and so on. The lower bits of a code come before its higher ones.
    fn codes<const RUN: usize, const BITS: usize>(&mut self, bytes: Range<usize>, place: usize) {
        spread::<RUN, BITS>(&self.bytes[bytes], place, &mut self.block.codes);
    }

    /// The same of integers.
    fn integers<const RUN: usize, const BITS: usize>(&mut self, bytes: Range<usize>, place: usize) {
        spread::<RUN, BITS>(&self.bytes[bytes], place, &mut self.block.integers);
    }

    /// Scales that are stored with `middle` added.
    fn around(&mut self, middle: u8, fields: impl FnOnce(&mut Self)) {
        fields(self);
        self.block.integers[..Block::BIASES].iter_mut().for_each(|scale| *scale = scale.wrapping_sub(middle));
    }

    /// Codes that are signed bytes, counted from -128.
    fn signed(&mut self, bytes: Range<usize>) {
        self.block.codes.iter_mut().zip(&self.bytes[bytes]).for_each(|(code, byte)| *code = byte ^ 0x80);
    }

    /// The scales and biases of `Q4_K` and `Q5_K`, of 6 bits each.
    fn sixes(&mut self, bytes: Range<usize>) {
        let (bytes, integers) = (&self.bytes[bytes], &mut self.block.integers);
        for at in 0..4 {
            let (scale, bias, high) = (bytes[at], bytes[at + 4], bytes[at + 8]);
            (integers[at], integers[Block::BIASES + at]) = (scale & 63, bias & 63);
            integers[at + 4] = high & 15 | scale >> 2 & 0x30;
            integers[Block::BIASES + at + 4] = high >> 4 | bias >> 2 & 0x30;
        }
    }
}

impl Writing<'_> {
    fn scale(&mut self, at: usize) {
        self.bytes[at..at + 2].copy_from_slice(&f16::from_f32(self.block.scale).to_le_bytes());
    }

    fn bias(&mut self, at: usize) {
        self.bytes[at..at + 2].copy_from_slice(&f16::from_f32(self.block.bias).to_le_bytes());
    }

    fn codes<const RUN: usize, const BITS: usize>(&mut self, bytes: Range<usize>, place: usize) {
        gather::<RUN, BITS>(&self.block.codes, place, &mut self.bytes[bytes]);
    }

    fn integers<const RUN: usize, const BITS: usize>(&mut self, bytes: Range<usize>, place: usize) {
        gather::<RUN, BITS>(&self.block.integers, place, &mut self.bytes[bytes]);
    }

    fn around(&mut self, middle: u8, fields: impl FnOnce(&mut Self)) {
        self.block.integers[..Block::BIASES].iter_mut().for_each(|scale| *scale = scale.wrapping_add(middle));
        fields(self);
    }

    fn signed(&mut self, bytes: Range<usize>) {
        self.bytes[bytes].iter_mut().zip(&self.block.codes).for_each(|(byte, code)| *byte = code ^ 0x80);
    }

    fn sixes(&mut self, bytes: Range<usize>) {
        let (bytes, integers) = (&mut self.bytes[bytes], &self.block.integers);
        for at in 0..4 {
            let (scale, bias) = (integers[at + 4], integers[Block::BIASES + at + 4]);
            bytes[at] = integers[at] | scale >> 4 << 6;
            bytes[at + 4] = integers[Block::BIASES + at] | bias >> 4 << 6;
            bytes[at + 8] = scale & 15 | bias << 4;
        }
    }
}

/// The half-precision number at a byte.
fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Bits of bytes as bits of numbers, as [`Reading::codes`] says.
fn spread<const RUN: usize, const BITS: usize>(bytes: &[u8], place: usize, numbers: &mut [u8]) {
    let below = !(u8::MAX << place);
    let numbers = numbers.as_chunks_mut::<RUN>().0.chunks_exact_mut(8 / BITS);
    for (bytes, numbers) in bytes.as_chunks::<RUN>().0.iter().zip(numbers) {
        for (at, numbers) in numbers.iter_mut().enumerate() {
            for (byte, number) in bytes.iter().zip(numbers) {
                *number = *number & below | (byte >> (at * BITS) & u8::MAX >> (8 - BITS)) << place;
            }
        }
    }
}

/// The other direction of [`spread`]; the bytes are zero.
fn gather<const RUN: usize, const BITS: usize>(numbers: &[u8], place: usize, bytes: &mut [u8]) {
    let numbers = numbers.as_chunks::<RUN>().0.chunks_exact(8 / BITS);
    for (bytes, numbers) in bytes.as_chunks_mut::<RUN>().0.iter_mut().zip(numbers) {
        for (at, numbers) in numbers.iter().enumerate() {
            for (byte, number) in bytes.iter_mut().zip(numbers) {
                *byte |= (number >> place & u8::MAX >> (8 - BITS)) << (at * BITS);
            }
        }
    }
}

fn tq1_0(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 52);
    digits(&bytes[..32], 5, &mut block.codes[..160]);
    digits(&bytes[32..48], 5, &mut block.codes[160..240]);
    digits(&bytes[48..52], 4, &mut block.codes[240..]);
}

/// Five elements a byte, which is the fraction of 256 that they are in base 3: the first digit is what comes out above the point when
/// it is multiplied by 3.
fn digits(bytes: &[u8], count: usize, codes: &mut [u8]) {
    let mut powers = (0..count).map(|place| 3_u8.pow(place as u32));
    for codes in codes.chunks_mut(bytes.len()) {
        let power = powers.next().unwrap_or(1);
        for (byte, code) in bytes.iter().zip(codes) {
            *code = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
        }
    }
}
