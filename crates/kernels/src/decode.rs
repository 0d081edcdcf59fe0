//! Codes to floats: a whole matrix, or some of its rows.

use std::borrow::Cow;

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::{
    Codes, FloatsMut, Isa, KernelError, Matrix, Scales,
    codec::{Codec, Job, dispatch},
    matrix::product,
    simd::{Kernel, SLACK, Simd, run},
    threads, unit,
};

/// Elements that one task writes.
const CHUNK: usize = 1 << 16;

/// Elements that are decoded at a time where the output is not `f32`; they stay in the first-level cache.
const PIECE: usize = 2048;

/// Elements between one that is decoded and one that is asked for.
const AHEAD: usize = 4096;

/// Writes every element of `matrix` into `out: [n, k]`.
///
/// # Errors
/// A matrix whose lengths do not match its sizes, or a wrong length of `out`.
pub fn dequantize<'a>(matrix: &Matrix, out: impl Into<FloatsMut<'a>>) -> Result<(), KernelError> {
    dequantize_with(Isa::detect(), matrix, out)
}

/// [`dequantize`] with the instruction set given.
pub fn dequantize_with<'a>(isa: Isa, matrix: &Matrix, out: impl Into<FloatsMut<'a>>) -> Result<(), KernelError> {
    decode_all(isa, matrix, out.into())
}

/// [`dequantize_with`], compiled here once and not wherever it is called.
fn decode_all(isa: Isa, matrix: &Matrix, out: FloatsMut) -> Result<(), KernelError> {
    isa.check()?;
    let elements = matrix.check()?;
    out.check(elements, "one for each element of the matrix")?;
    let out = Output::new(out);
    threads::for_each(elements.div_ceil(CHUNK), |task| {
        let start = task * CHUNK;
        let len = CHUNK.min(elements - start);
        // SAFETY: tasks write disjoint chunks of `out`, whose length was checked.
        dispatch(matrix.codes, Decode { isa, matrix, start, out: unsafe { out.part(start, len) } });
    });
    Ok(())
}

/// Writes the rows of `matrix` that `rows: u32[r]` names into `out: [r, k]`.
///
/// # Errors
/// A matrix whose lengths do not match its sizes, a row outside it, or a wrong length of `out`.
pub fn gather_rows<'a>(matrix: &Matrix, rows: &[u32], out: impl Into<FloatsMut<'a>>) -> Result<(), KernelError> {
    gather_rows_with(Isa::detect(), matrix, rows, out)
}

/// [`gather_rows`] with the instruction set given.
pub fn gather_rows_with<'a>(
    isa: Isa,
    matrix: &Matrix,
    rows: &[u32],
    out: impl Into<FloatsMut<'a>>,
) -> Result<(), KernelError> {
    decode_rows(isa, matrix, rows, out.into())
}

/// [`gather_rows_with`], compiled here once and not wherever it is called.
fn decode_rows(isa: Isa, matrix: &Matrix, rows: &[u32], out: FloatsMut) -> Result<(), KernelError> {
    isa.check()?;
    matrix.check()?;
    let k = matrix.k;
    out.check(product(rows.len(), k)?, "one row of the matrix for each entry of `rows`")?;
    if let Some((index, &row)) = rows.iter().enumerate().find(|(_, row)| **row as usize >= matrix.n) {
        return Err(KernelError::RowRange { index, row, rows: matrix.n });
    }
    let each = (CHUNK / k.max(1)).max(1);
    let out = Output::new(out);
    threads::for_each(rows.len().div_ceil(each), |task| {
        for (i, row) in rows.iter().enumerate().skip(task * each).take(each) {
            // SAFETY: row i of `out`, whose length is rows.len() * k, is this task's alone.
            let out = unsafe { out.part(i * k, k) };
            dispatch(matrix.codes, Decode { isa, matrix, start: *row as usize * k, out });
        }
    });
    Ok(())
}

/// The start of an output that tasks write disjoint parts of.
#[derive(Clone, Copy)]
enum Output {
    F32(*mut f32),
    F16(*mut f16),
    Bf16(*mut bf16),
}

// SAFETY: tasks only write disjoint parts, as each use states.
unsafe impl Sync for Output {}

impl Output {
    fn new(out: FloatsMut) -> Self {
        match out {
            FloatsMut::F32(out) => Self::F32(out.as_mut_ptr()),
            FloatsMut::F16(out) => Self::F16(out.as_mut_ptr()),
            FloatsMut::Bf16(out) => Self::Bf16(out.as_mut_ptr()),
        }
    }

    /// # Safety
    /// The part lies in the output and belongs to the caller alone.
    unsafe fn part<'a>(self, start: usize, len: usize) -> FloatsMut<'a> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(out) => FloatsMut::F32(std::slice::from_raw_parts_mut(out.add(start), len)),
                Self::F16(out) => FloatsMut::F16(std::slice::from_raw_parts_mut(out.add(start), len)),
                Self::Bf16(out) => FloatsMut::Bf16(std::slice::from_raw_parts_mut(out.add(start), len)),
            }
        }
    }
}

struct Decode<'a> {
    isa: Isa,
    matrix: &'a Matrix<'a>,
    start: usize,
    out: FloatsMut<'a>,
}

impl Job for Decode<'_> {
    type Output = ();

    fn run<C: Codec>(self, codes: C) {
        let Self { isa, matrix, start, out } = self;
        if out.is_empty() {
            return;
        }
        let first = start / matrix.block;
        let blocks = first..(start + out.len() - 1) / matrix.block + 1;
        let scales = numbers(isa, &matrix.scales, &blocks);
        let biases = matrix.biases.map(|biases| numbers(isa, &biases, &blocks));
        let range = Range { matrix, codes, scales: &scales, biases: biases.as_deref(), first };
        let mut piece = [0.0; PIECE];
        match out {
            FloatsMut::F32(out) => range.decode(isa, start, out, AHEAD),
            FloatsMut::F16(out) => {
                for (i, out) in out.chunks_mut(PIECE).enumerate() {
                    range.decode(isa, start + i * PIECE, &mut piece[..out.len()], AHEAD);
                    out.convert_from_f32_slice(&piece[..out.len()]);
                }
            }
            FloatsMut::Bf16(out) => {
                for (i, out) in out.chunks_mut(PIECE).enumerate() {
                    range.decode(isa, start + i * PIECE, &mut piece[..out.len()], AHEAD);
                    out.convert_from_f32_slice(&piece[..out.len()]);
                }
            }
        }
    }
}

/// The numbers of some blocks as `f32`.
fn numbers<'a>(isa: Isa, scales: &Scales<'a>, blocks: &std::ops::Range<usize>) -> Cow<'a, [f32]> {
    if let Some(values) = scales.floats() {
        return Cow::Borrowed(&values[blocks.clone()]);
    }
    let mut values = vec![0.0; blocks.len()];
    scales.widen(isa, blocks.start, &mut values);
    Cow::Owned(values)
}

/// A matrix that was checked, with the numbers of its blocks from `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Range<'a, C> {
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) codes: C,
    pub(crate) scales: &'a [f32],
    pub(crate) biases: Option<&'a [f32]>,
    pub(crate) first: usize,
}

impl<C: Codec> Range<'_, C> {
    /// Writes the values of the elements from `start`, in row-major order, and asks for those `ahead` of them.
    ///
    /// # Panics
    /// If they are not within the matrix, or a block is before the first.
    pub(crate) fn decode(&self, isa: Isa, start: usize, out: &mut [f32], ahead: usize) {
        run(isa, Decoder { range: self, start, out, ahead });
    }
}

struct Decoder<'a, C> {
    range: &'a Range<'a, C>,
    start: usize,
    out: &'a mut [f32],
    ahead: usize,
}

impl<C: Codec> Kernel for Decoder<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { range, start, out, ahead } = self;
        let mut done = range.vectors(simd, start, out, ahead * C::BITS / 8);
        let &Range { matrix, scales, biases, first, .. } = range;
        while done < out.len() {
            let at = start + done;
            let index = at / matrix.block - first;
            let len = ((first + index + 1).saturating_mul(matrix.block) - at).min(out.len() - done);
            // Adding -0 changes no number, where adding 0 would change -0.
            let bias = biases.map_or(-0.0, |biases| biases[index]);
            range.run(simd, at, &mut out[done..done + len], scales[index], bias);
            done += len;
        }
    }
}

impl<C: Codec> Range<'_, C> {
    /// Decodes as many vectors as lie in one block each; gives the number of elements.
    #[inline(always)]
    fn vectors<S: Simd>(&self, simd: S, start: usize, out: &mut [f32], ahead: usize) -> usize {
        let &Self { matrix, codes, scales, biases, first } = self;
        let block = matrix.block;
        if !block.is_multiple_of(S::LANES) || !start.is_multiple_of(S::LANES) {
            return 0;
        }
        let (ready, bytes) = (codes.ready(simd), codes.bytes());
        let (byte, each) = (start / S::LANES * (S::LANES * C::BITS / 8), S::LANES * C::BITS / 8);
        let count = (out.len() / S::LANES).min(bytes.len().saturating_sub(byte + SLACK) / each);
        // Blocks of few vectors are not worth a loop of their own: the number is found anew for each vector.
        let vectors = block / S::LANES;
        let shift = if vectors.is_power_of_two() { vectors.trailing_zeros() } else { 0 };
        let mut index = start / block - first;
        let mut phase = start % block / S::LANES;
        let mut i = 0;
        while i < count {
            let len = if shift > 0 { count } else { (vectors - phase).min(count - i) };
            for v in 0..len {
                let number = if shift > 0 { index + ((phase + v) >> shift) } else { index };
                let from = bytes.as_ptr().wrapping_add(byte + (i + v) * each);
                simd.prefetch(from.wrapping_add(ahead));
                // SAFETY: the codes and the slack lie in `bytes`, and the values in `out`.
                unsafe {
                    let mut values = simd.mul(C::decode(ready, simd, from), simd.splat(scales[number]));
                    if let Some(biases) = biases {
                        values = simd.add(values, simd.splat(biases[number]));
                    }
                    simd.store(out.as_mut_ptr().add((i + v) * S::LANES), values);
                }
            }
            i += len;
            index += 1;
            phase = 0;
        }
        count * S::LANES
    }

    /// Decodes a part of one block.
    #[inline(always)]
    fn run<S: Simd>(&self, simd: S, start: usize, out: &mut [f32], scale: f32, bias: f32) {
        let (ready, bytes) = (self.codes.ready(simd), self.codes.bytes());
        let (scales, biases) = (simd.splat(scale), simd.splat(bias));
        // Vectors start on a byte and leave the slack that they may read.
        let head = (0..8).find(|head| ((start + head) * C::BITS).is_multiple_of(8)).unwrap_or(0).min(out.len());
        let byte = (start + head) * C::BITS / 8;
        let each = S::LANES * C::BITS / 8;
        let vectors = ((out.len() - head) / S::LANES).min(bytes.len().saturating_sub(byte + SLACK) / each);
        for i in 0..vectors {
            // SAFETY: the codes and the slack lie in `bytes`, and the values in `out`.
            unsafe {
                let values = simd.mul(C::decode(ready, simd, bytes.as_ptr().add(byte + i * each)), scales);
                simd.store(out.as_mut_ptr().add(head + i * S::LANES), simd.add(values, biases));
            }
        }
        let (first, rest) = out.split_at_mut(head);
        let tail = vectors * S::LANES;
        if !first.is_empty() {
            decode_each(&self.matrix.codes, start, first, scale, bias);
        }
        if rest.len() > tail {
            decode_each(&self.matrix.codes, start + head + tail, &mut rest[tail..], scale, bias);
        }
    }
}

/// What fills no vector.
#[inline(never)]
fn decode_each(codes: &Codes, start: usize, out: &mut [f32], scale: f32, bias: f32) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = codes.value(start + i) * scale + bias;
    }
}

/// A matrix that was checked, whose scales are widened as they are needed.
pub(crate) struct Parts<'a, C> {
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) codes: C,
}

impl<C: Codec> unit::Decode for Parts<'_, C> {
    fn decode(&self, isa: Isa, start: usize, out: &mut [f32], ahead: usize) {
        let &Self { matrix, codes } = self;
        let blocks = start / matrix.block..(start + out.len() - 1) / matrix.block + 1;
        let mut scratch = [[0.0; NUMBERS]; 2];
        let [scales, biases] = &mut scratch;
        let scales = numbers_in(isa, &matrix.scales, &blocks, scales);
        let biases = matrix.biases.map(|numbers| numbers_in(isa, &numbers, &blocks, biases));
        let range = Range { matrix, codes, scales: &scales, biases: biases.as_deref(), first: blocks.start };
        range.decode(isa, start, out, ahead);
    }
}

/// Scales of a part that are widened without an allocation.
const NUMBERS: usize = 256;

/// The numbers of some blocks as `f32`, in `scratch` if they fit.
fn numbers_in<'a>(
    isa: Isa,
    scales: &Scales<'a>,
    blocks: &std::ops::Range<usize>,
    scratch: &'a mut [f32; NUMBERS],
) -> Cow<'a, [f32]> {
    match scratch.get_mut(..blocks.len()) {
        Some(scratch) if scales.floats().is_none() => {
            scales.widen(isa, blocks.start, scratch);
            Cow::Borrowed(scratch)
        }
        _ => numbers(isa, scales, blocks),
    }
}
