//! The blocks of ggml's quantized types: their codes in the order of the elements, and their numbers.
//!
//! The layouts are those of `ggml-quants.c`, as `quants.py` of gguf-py 0.19 reads them.

use half::f16;

/// What is read of one block.
pub(super) struct Block {
    /// The codes, as many as the block has elements.
    pub(super) codes: [u8; 256],
    /// The scale of the block, and of a super-block that of its scales.
    pub(super) scale: f32,
    /// What is added to each element, and of a super-block the scale of its biases.
    pub(super) bias: f32,
    /// The scales of a super-block's groups, or the byte of a power of two.
    pub(super) scales: [i8; 16],
    /// The biases of its groups.
    pub(super) biases: [i8; 16],
}

impl Block {
    pub(super) const EMPTY: Self = Self { codes: [0; 256], scale: 0.0, bias: 0.0, scales: [0; 16], biases: [0; 16] };
}

/// How a type is read.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    /// Bits of a code.
    pub(super) bits: u32,
    pub(super) form: Form,
    /// Reads a block of the type's bytes.
    pub(super) read: fn(&[u8], &mut Block),
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

/// The reader of the type of this name, if there is one.
pub(super) fn reader(name: &str) -> Option<Reader> {
    let (bits, form, read): (_, _, fn(&[u8], &mut Block)) = match name {
        "Q4_0" => (4, Form::Symmetric, q4_0),
        "Q4_1" => (4, Form::Affine, q4_1),
        "Q5_0" => (5, Form::Symmetric, q5_0),
        "Q5_1" => (5, Form::Affine, q5_1),
        "Q8_0" => (8, Form::Symmetric, q8_0),
        "Q2_K" => (2, Form::KQuant, q2_k),
        "Q3_K" => (3, Form::KQuant, q3_k),
        "Q4_K" => (4, Form::KQuant, q4_k),
        "Q5_K" => (5, Form::KQuant, q5_k),
        "Q6_K" => (6, Form::KQuant, q6_k),
        "IQ4_NL" => (4, Form::Table { values: &IQ4, scales: 1 }, iq4_nl),
        "IQ4_XS" => (4, Form::Table { values: &IQ4, scales: 8 }, iq4_xs),
        "TQ1_0" => (2, Form::Table { values: &TERNARY, scales: 1 }, tq1_0),
        "TQ2_0" => (2, Form::Table { values: &TERNARY, scales: 1 }, tq2_0),
        "MXFP4" => (4, Form::Mxfp4, mxfp4),
        _ => return None,
    };
    Some(Reader { bits, form, read })
}

/// The types that are read, for a message.
pub(super) const READ: &str = "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0 and MXFP4";

/// The half-precision number at a byte.
fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Codes of 4 bits: the low halves of `run` bytes, and then their high ones.
fn nibbles(bytes: &[u8], run: usize, codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks(run).zip(codes.chunks_mut(2 * run)) {
        let (low, high) = codes.split_at_mut(run);
        for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
    }
}

/// Codes of 2 bits: the lowest of 32 bytes, the next ones of these, and so on.
fn quarters(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks(32).zip(codes.chunks_mut(128)) {
        for (place, codes) in codes.chunks_mut(32).enumerate() {
            for (byte, code) in bytes.iter().zip(codes) {
                *code = byte >> (2 * place) & 3;
            }
        }
    }
}

/// Adds a bit of each of 32 bytes to the codes of 32 elements, the next one to those of the next 32.
fn further(bytes: &[u8], place: u32, codes: &mut [u8]) {
    for (bit, codes) in codes.chunks_mut(32).enumerate() {
        for (byte, code) in bytes.iter().zip(codes) {
            *code |= (byte >> bit & 1) << place;
        }
    }
}

fn q4_0(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 0);
    nibbles(&bytes[2..18], 16, &mut block.codes);
}

fn q4_1(bytes: &[u8], block: &mut Block) {
    (block.scale, block.bias) = (half(bytes, 0), half(bytes, 2));
    nibbles(&bytes[4..20], 16, &mut block.codes);
}

/// The fifth bits of 32 codes, those of the first in the lowest bits.
fn fifth(bytes: &[u8], codes: &mut [u8]) {
    for (byte, codes) in bytes.iter().zip(codes.chunks_mut(8)) {
        for (bit, code) in codes.iter_mut().enumerate() {
            *code |= (byte >> bit & 1) << 4;
        }
    }
}

fn q5_0(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 0);
    nibbles(&bytes[6..22], 16, &mut block.codes);
    fifth(&bytes[2..6], &mut block.codes);
}

fn q5_1(bytes: &[u8], block: &mut Block) {
    (block.scale, block.bias) = (half(bytes, 0), half(bytes, 2));
    nibbles(&bytes[8..24], 16, &mut block.codes);
    fifth(&bytes[4..8], &mut block.codes);
}

fn q8_0(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 0);
    for (code, byte) in block.codes.iter_mut().zip(&bytes[2..34]) {
        // A signed byte, counted from -128.
        *code = byte ^ 0x80;
    }
}

fn q2_k(bytes: &[u8], block: &mut Block) {
    (block.scale, block.bias) = (half(bytes, 80), half(bytes, 82));
    for ((byte, scale), bias) in bytes[..16].iter().zip(&mut block.scales).zip(&mut block.biases) {
        (*scale, *bias) = ((byte & 15).cast_signed(), (byte >> 4).cast_signed());
    }
    quarters(&bytes[16..80], &mut block.codes);
}

fn q3_k(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 108);
    quarters(&bytes[32..96], &mut block.codes);
    further(&bytes[..32], 2, &mut block.codes);
    let (low, high) = bytes[96..108].split_at(8);
    for (at, scale) in block.scales.iter_mut().enumerate() {
        let low = low[at % 8] >> (4 * (at / 8)) & 15;
        let high = high[at % 4] >> (2 * (at / 4)) & 3;
        *scale = (low | high << 4).cast_signed() - 32;
    }
}

/// The scales and biases of `Q4_K` and `Q5_K`, of 6 bits each.
fn sixes(bytes: &[u8], block: &mut Block) {
    for at in 0..4 {
        let (scale, bias, high) = (bytes[at], bytes[at + 4], bytes[at + 8]);
        block.scales[at] = (scale & 63).cast_signed();
        block.biases[at] = (bias & 63).cast_signed();
        block.scales[at + 4] = (high & 15 | scale >> 2 & 0x30).cast_signed();
        block.biases[at + 4] = (high >> 4 | bias >> 2 & 0x30).cast_signed();
    }
}

fn q4_k(bytes: &[u8], block: &mut Block) {
    (block.scale, block.bias) = (half(bytes, 0), half(bytes, 2));
    sixes(&bytes[4..16], block);
    nibbles(&bytes[16..144], 32, &mut block.codes);
}

fn q5_k(bytes: &[u8], block: &mut Block) {
    (block.scale, block.bias) = (half(bytes, 0), half(bytes, 2));
    sixes(&bytes[4..16], block);
    nibbles(&bytes[48..176], 32, &mut block.codes);
    further(&bytes[16..48], 4, &mut block.codes);
}

fn q6_k(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 208);
    nibbles(&bytes[..128], 64, &mut block.codes);
    let mut high = [0; 256];
    quarters(&bytes[128..192], &mut high);
    for (code, high) in block.codes.iter_mut().zip(high) {
        *code |= high << 4;
    }
    for (scale, byte) in block.scales.iter_mut().zip(&bytes[192..208]) {
        *scale = byte.cast_signed();
    }
}

fn iq4_nl(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 0);
    block.scales[0] = 1;
    nibbles(&bytes[2..18], 16, &mut block.codes);
}

fn iq4_xs(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 0);
    let high = u16::from_le_bytes([bytes[2], bytes[3]]);
    for (at, scale) in block.scales[..8].iter_mut().enumerate() {
        let low = bytes[4 + at / 2] >> (4 * (at % 2)) & 15;
        *scale = (low | ((high >> (2 * at)) as u8 & 3) << 4).cast_signed() - 32;
    }
    nibbles(&bytes[8..136], 16, &mut block.codes);
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

fn tq1_0(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 52);
    block.scales[0] = 1;
    digits(&bytes[..32], 5, &mut block.codes[..160]);
    digits(&bytes[32..48], 5, &mut block.codes[160..240]);
    digits(&bytes[48..52], 4, &mut block.codes[240..]);
}

fn tq2_0(bytes: &[u8], block: &mut Block) {
    block.scale = half(bytes, 64);
    block.scales[0] = 1;
    quarters(&bytes[..64], &mut block.codes);
}

fn mxfp4(bytes: &[u8], block: &mut Block) {
    block.scales[0] = bytes[0].cast_signed();
    nibbles(&bytes[1..17], 16, &mut block.codes);
}
