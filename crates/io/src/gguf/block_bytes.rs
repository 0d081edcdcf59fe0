//! The bytes of ggml's blocks: what [`blocks`](super::blocks) reads, written.

use half::f16;

use super::blocks::Block;

/// Writes a block into the bytes of its type, which are zero.
pub(super) type Writer = fn(&Block, &mut [u8]);

/// The writer of the type of this name, if there is one.
pub(super) fn writer(name: &str) -> Option<Writer> {
    Some(match name {
        "Q4_0" | "IQ4_NL" => q4_0,
        "Q4_1" => q4_1,
        "Q5_0" => q5_0,
        "Q5_1" => q5_1,
        "Q8_0" => q8_0,
        "Q2_K" => q2_k,
        "Q3_K" => q3_k,
        "Q4_K" => q4_k,
        "Q5_K" => q5_k,
        "Q6_K" => q6_k,
        "IQ4_XS" => iq4_xs,
        "TQ2_0" => tq2_0,
        "MXFP4" => mxfp4,
        _ => return None,
    })
}

fn half(number: f32, at: usize, bytes: &mut [u8]) {
    bytes[at..at + 2].copy_from_slice(&f16::from_f32(number).to_le_bytes());
}

/// The low halves of `run` bytes are the first codes, their high ones the next.
fn nibbles(codes: &[u8], run: usize, bytes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks_mut(run).zip(codes.chunks(2 * run)) {
        let (low, high) = codes.split_at(run);
        for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
            *byte = low & 15 | high << 4;
        }
    }
}

/// Two bits of each code from `place` on: the lowest of 32 bytes, the next ones of these, and so on.
fn quarters(codes: &[u8], place: u32, bytes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks_mut(32).zip(codes.chunks(128)) {
        for (shift, codes) in codes.chunks(32).enumerate() {
            for (byte, code) in bytes.iter_mut().zip(codes) {
                *byte |= (code >> place & 3) << (2 * shift);
            }
        }
    }
}

/// A bit of each code: of the first 32 the lowest of 32 bytes, of the next 32 the next one.
fn further(codes: &[u8], place: u32, bytes: &mut [u8]) {
    for (bit, codes) in codes.chunks(32).enumerate() {
        for (byte, code) in bytes.iter_mut().zip(codes) {
            *byte |= (code >> place & 1) << bit;
        }
    }
}

fn q4_0(block: &Block, bytes: &mut [u8]) {
    half(block.scale, 0, bytes);
    nibbles(&block.codes[..32], 16, &mut bytes[2..]);
}

fn q4_1(block: &Block, bytes: &mut [u8]) {
    half(block.scale, 0, bytes);
    half(block.bias, 2, bytes);
    nibbles(&block.codes[..32], 16, &mut bytes[4..]);
}

/// The fifth bits of 32 codes, those of the first in the lowest bits.
fn fifth(codes: &[u8], bytes: &mut [u8]) {
    for (byte, codes) in bytes.iter_mut().zip(codes.chunks(8)) {
        for (bit, code) in codes.iter().enumerate() {
            *byte |= (code >> 4 & 1) << bit;
        }
    }
}

fn q5_0(block: &Block, bytes: &mut [u8]) {
    half(block.scale, 0, bytes);
    fifth(&block.codes[..32], &mut bytes[2..6]);
    nibbles(&block.codes[..32], 16, &mut bytes[6..]);
}

fn q5_1(block: &Block, bytes: &mut [u8]) {
    half(block.scale, 0, bytes);
    half(block.bias, 2, bytes);
    fifth(&block.codes[..32], &mut bytes[4..8]);
    nibbles(&block.codes[..32], 16, &mut bytes[8..]);
}

fn q8_0(block: &Block, bytes: &mut [u8]) {
    half(block.scale, 0, bytes);
    for (byte, code) in bytes[2..].iter_mut().zip(&block.codes) {
        *byte = code ^ 0x80;
    }
}

fn q2_k(block: &Block, bytes: &mut [u8]) {
    for ((byte, scale), bias) in bytes.iter_mut().zip(&block.scales).zip(&block.biases) {
        *byte = (scale | bias << 4).cast_unsigned();
    }
    quarters(&block.codes, 0, &mut bytes[16..80]);
    half(block.scale, 80, bytes);
    half(block.bias, 82, bytes);
}

fn q3_k(block: &Block, bytes: &mut [u8]) {
    further(&block.codes, 2, &mut bytes[..32]);
    quarters(&block.codes, 0, &mut bytes[32..96]);
    for (at, scale) in block.scales.iter().enumerate() {
        let scale = (scale + 32).cast_unsigned();
        bytes[96 + at % 8] |= (scale & 15) << (4 * (at / 8));
        bytes[104 + at % 4] |= (scale >> 4) << (2 * (at / 4));
    }
    half(block.scale, 108, bytes);
}

/// The scales and biases of `Q4_K` and `Q5_K`, of 6 bits each.
fn sixes(block: &Block, bytes: &mut [u8]) {
    for at in 0..4 {
        let [scale, bias] = [block.scales[at], block.biases[at]].map(i8::cast_unsigned);
        let [high_scale, high_bias] = [block.scales[at + 4], block.biases[at + 4]].map(i8::cast_unsigned);
        bytes[at] = scale | high_scale >> 4 << 6;
        bytes[at + 4] = bias | high_bias >> 4 << 6;
        bytes[at + 8] = high_scale & 15 | high_bias << 4;
    }
}

fn q4_k(block: &Block, bytes: &mut [u8]) {
    half(block.scale, 0, bytes);
    half(block.bias, 2, bytes);
    sixes(block, &mut bytes[4..16]);
    nibbles(&block.codes, 32, &mut bytes[16..]);
}

fn q5_k(block: &Block, bytes: &mut [u8]) {
    half(block.scale, 0, bytes);
    half(block.bias, 2, bytes);
    sixes(block, &mut bytes[4..16]);
    further(&block.codes, 4, &mut bytes[16..48]);
    nibbles(&block.codes, 32, &mut bytes[48..]);
}

fn q6_k(block: &Block, bytes: &mut [u8]) {
    nibbles(&block.codes, 64, &mut bytes[..128]);
    quarters(&block.codes, 4, &mut bytes[128..192]);
    for (byte, scale) in bytes[192..208].iter_mut().zip(&block.scales) {
        *byte = scale.cast_unsigned();
    }
    half(block.scale, 208, bytes);
}

fn iq4_xs(block: &Block, bytes: &mut [u8]) {
    half(block.scale, 0, bytes);
    for (at, scale) in block.scales[..8].iter().enumerate() {
        let scale = (scale + 32).cast_unsigned();
        bytes[4 + at / 2] |= (scale & 15) << (4 * (at % 2));
        bytes[2 + at / 4] |= (scale >> 4) << (2 * (at % 4));
    }
    nibbles(&block.codes, 16, &mut bytes[8..]);
}

fn tq2_0(block: &Block, bytes: &mut [u8]) {
    quarters(&block.codes, 0, &mut bytes[..64]);
    half(block.scale, 64, bytes);
}

fn mxfp4(block: &Block, bytes: &mut [u8]) {
    bytes[0] = block.scales[0].cast_unsigned();
    nibbles(&block.codes[..32], 16, &mut bytes[1..]);
}
