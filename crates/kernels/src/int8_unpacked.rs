//! Integer products with codes of 2, 3, 5, 6 and 7 bits: some rows of the matrix at a time become bytes, which are still in the
//! thread's own cache when they are multiplied.

use std::cell::Cell;

#[cfg(target_arch = "x86_64")]
use crate::int8_rows;
use crate::{
    Codes, Isa, Matrix, Scales, engine,
    integers::{IntegerProduct, KEPT, Rows, Stream, Weights},
    machine::threads_for,
    output::{Output, Rectangle},
    simd::{Kernel, SLACK, Simd, run, unpacked},
};

/// Bytes of codes that are unpacked before they are multiplied, about.
const SHARE: usize = 1 << 18;

/// Rows of activations for each of which codes are unpacked again, at most.
#[cfg(target_arch = "x86_64")]
const FEW: usize = 2;

/// Rows whose codes are whole bytes, and which are as many as go side by side.
const ROWS: usize = 16;

/// Codes that have whole bytes.
const EIGHT: usize = 8;

/// Computes all of the product of activations with the transpose of a matrix that has these codes.
pub(crate) fn multiply(stream: Stream, isa: Isa, rows: &Rows, matrix: &Matrix, out: &mut Output<f32>) {
    let Matrix { n, k, block, .. } = *matrix;
    // Shares begin with a block.
    let step = if (ROWS * k).is_multiple_of(block) { ROWS } else { n };
    let share = (SHARE / k).next_multiple_of(step).max(step);
    // About a cycle for four codes, and one for as many products.
    let threads = threads_for((n * k) as f64 / 4.0 * (1 + rows.units.len()) as f64);
    #[cfg(target_arch = "x86_64")]
    if rows.units.len() <= FEW && int8_rows::multiply_stream(&stream, rows, matrix, threads, isa, out) {
        return;
    }
    out.for_each_run(threads, step, &|part| multiply_part(stream, isa, rows, matrix, share, part));
}

/// The product with some rows of the matrix, `each` of which are unpacked at a time.
fn multiply_part(stream: Stream, isa: Isa, rows: &Rows, matrix: &Matrix, each: usize, mut part: Rectangle<f32>) {
    thread_local! {
        static CODES: Cell<Vec<i8>> = const { Cell::new(Vec::new()) };
        static NUMBERS: Cell<[Vec<f32>; 2]> = const { Cell::new([Vec::new(), Vec::new()]) };
    }
    let (mut codes, [mut scales, mut biases]) = (CODES.take(), NUMBERS.take());
    let columns = part.columns();
    for first in columns.clone().step_by(each) {
        let share = first..columns.end.min(first + each);
        let (start, end) = (share.start * matrix.k, share.end * matrix.k);
        codes.resize(end - start, 0);
        let bytes = &stream.bytes[start * stream.bits as usize / 8..];
        run(isa, Unpack { stream: Stream { bytes, ..stream }, to: &mut codes });
        let blocks = start / matrix.block..end.div_ceil(matrix.block);
        let widen = |numbers: &Scales, to: &mut Vec<f32>| {
            to.resize(blocks.len(), 0.0);
            numbers.widen(isa, blocks.start, to);
        };
        widen(&matrix.scales, &mut scales);
        if let Some(numbers) = &matrix.biases {
            widen(numbers, &mut biases);
        }
        let matrix = &Matrix {
            n: share.len(),
            codes: Codes::Signed { codes: &codes },
            scales: Scales::F32(&scales),
            biases: matrix.biases.map(|_| Scales::F32(&biases)),
            ..*matrix
        };
        let weights = &Weights::signed(&codes);
        engine::run(isa, &IntegerProduct { rows, matrix, weights, threads: 1 }, &mut part.output(share));
    }
    if codes.len() <= KEPT {
        CODES.set(codes);
        NUMBERS.set([scales, biases]);
    }
}

struct Unpack<'a> {
    stream: Stream<'a>,
    to: &'a mut [i8],
}

impl Kernel for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.stream.bits {
            2 => self.all::<S, 2>(simd),
            3 => self.all::<S, 3>(simd),
            5 => self.all::<S, 5>(simd),
            6 => self.all::<S, 6>(simd),
            _ => self.all::<S, 7>(simd),
        }
    }
}

impl Unpack<'_> {
    #[inline(always)]
    fn all<S: Simd, const BITS: usize>(self, simd: S) {
        let Self { stream: Stream { bytes, above, .. }, to } = self;
        let count = to.len();
        // Those behind which there are as many bytes as may be read.
        let quick = (bytes.len().saturating_sub(SLACK) / (4 * BITS)).min(count / 32);
        for at in 0..quick {
            // SAFETY: the bytes of so many times 32 codes, and those behind them, lie in the stream, and as many codes in `to`.
            unsafe {
                simd.unpack::<BITS>(bytes.as_ptr().add(at * 4 * BITS), above, to.as_mut_ptr().add(32 * at).cast());
            }
        }
        for (bytes, to) in bytes[4 * BITS * quick..].chunks(BITS).zip(to[32 * quick..].chunks_mut(EIGHT)) {
            let mut word = [0; EIGHT];
            word[..bytes.len()].copy_from_slice(bytes);
            let codes = unpacked::<BITS>(u64::from_le_bytes(word), above).to_le_bytes();
            to.copy_from_slice(&codes.map(u8::cast_signed)[..to.len()]);
        }
    }
}
