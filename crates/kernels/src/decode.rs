//! Codes to floats: a whole matrix, or some of its rows.

use std::{borrow::Cow, ops};

use half::slice::HalfFloatSliceExt;

use crate::{
    Codes, FloatsMut, Isa, KernelError, Matrix, Scales,
    codec::Codec,
    codec_of::{Job, dispatch},
    matrix::product,
    output::Output,
    simd::{Kernel, SLACK, Simd, prefetch, run},
    unit::Decode,
};

/// Elements that one task writes.
pub(crate) const CHUNK: usize = 1 << 16;

/// Elements that are decoded at a time where the output is not `f32`; they stay in the first-level cache.
pub(crate) const PIECE: usize = 2048;

/// Elements between one that is decoded and one that is asked for.
pub(crate) const AHEAD: usize = 4096;

/// Writes every element of `matrix` into `out: [n, k]`.
///
/// # Errors
/// A matrix whose lengths do not match its sizes, or a wrong length of `out`.
pub fn dequantize<'a>(matrix: &Matrix, out: impl Into<FloatsMut<'a>>) -> Result<(), KernelError> {
    let out = out.into();
    let elements = matrix.check()?;
    out.check(elements, "one for each element of the matrix")?;
    decode_parts(matrix, out, elements, CHUNK, &|start| start);
    Ok(())
}

/// Writes the rows of `matrix` that `rows: u32[r]` names into `out: [r, k]`.
///
/// # Errors
/// A matrix whose lengths do not match its sizes, a row outside it, or a wrong length of `out`.
pub fn gather_rows<'a>(matrix: &Matrix, rows: &[u32], out: impl Into<FloatsMut<'a>>) -> Result<(), KernelError> {
    let out = out.into();
    matrix.check()?;
    let k = matrix.k;
    out.check(product(rows.len(), k)?, "one row of the matrix for each entry of `rows`")?;
    if let Some((index, &row)) = rows.iter().enumerate().find(|(_, row)| **row as usize >= matrix.n) {
        return Err(KernelError::RowRange { index, row, rows: matrix.n });
    }
    let part = (CHUNK / k.max(1)).max(1) * k;
    decode_parts(matrix, out, k, part, &|start| rows[start / k] as usize * k + start % k);
    Ok(())
}

/// Decodes runs of `run` elements of the output, each of which starts at element `from(start)` of the matrix, in tasks of
/// `each` elements.
fn decode_parts(matrix: &Matrix, out: FloatsMut, run: usize, each: usize, from: &(dyn Fn(usize) -> usize + Sync)) {
    let (isa, mut out) = (Isa::detect(), Some(out));
    decoder(isa, matrix, &mut |decoder| match out.take() {
        Some(FloatsMut::F32(out)) => in_parts(out, run, each, &|start, out| {
            decoder.decode(isa, from(start), out, AHEAD);
        }),
        Some(FloatsMut::F16(out)) => in_parts(out, run, each, &|start, out| in_pieces(isa, decoder, from(start), out)),
        Some(FloatsMut::Bf16(out)) => in_parts(out, run, each, &|start, out| in_pieces(isa, decoder, from(start), out)),
        None => {}
    });
}

/// Calls `decode` with each run of `run` elements, or a part of it, and where it starts.
pub(crate) fn in_parts<T: Send>(out: &mut [T], run: usize, each: usize, decode: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let elements = out.len();
    Output::new(out, elements).for_each(usize::MAX, 1, each, &|mut part| {
        let start = part.columns().start;
        for (i, out) in part.row(0).chunks_mut(run).enumerate() {
            decode(start + i * run, out);
        }
    });
}

/// Decodes elements from `start` a piece at a time and rounds them.
fn in_pieces<T>(isa: Isa, decoder: &dyn Decode, start: usize, out: &mut [T])
where
    [T]: HalfFloatSliceExt,
{
    let mut piece = [0.0; PIECE];
    for (i, out) in out.chunks_mut(PIECE).enumerate() {
        let piece = &mut piece[..out.len()];
        decoder.decode(isa, start + i * PIECE, piece, AHEAD);
        out.convert_from_f32_slice(piece);
    }
}

/// Calls `then` with what decodes this matrix, which was checked.
pub(crate) fn decoder(isa: Isa, matrix: &Matrix, then: &mut dyn FnMut(&dyn Decode)) {
    struct Make<'a>(&'a Matrix<'a>, &'a mut dyn FnMut(&dyn Decode));
    impl Job for Make<'_> {
        type Output = ();
        fn run<C: Codec>(self, codes: C) {
            self.1(&Parts { matrix: self.0, codes });
        }
    }
    dispatch(isa, matrix.codes, Make(matrix, then));
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
    const VECTORS: bool = !C::PORTABLE;
    const PORTABLE: bool = C::PORTABLE;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { range, start, out, ahead } = self;
        let mut done = range.vectors(simd, start, out, ahead * range.codes.bits() / 8);
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
        let vector_bytes = S::LANES * codes.bits() / 8;
        let byte = start / S::LANES * vector_bytes;
        let count = (out.len() / S::LANES).min(bytes.len().saturating_sub(byte + SLACK) / vector_bytes);
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
                let from = bytes.as_ptr().wrapping_add(byte + (i + v) * vector_bytes);
                prefetch(from.wrapping_add(ahead));
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
        let (ready, bytes, bits) = (self.codes.ready(simd), self.codes.bytes(), self.codes.bits());
        let (scales, biases) = (simd.splat(scale), simd.splat(bias));
        // Vectors start on a byte and leave the slack that they may read.
        let head = (0..8).find(|head| ((start + head) * bits).is_multiple_of(8)).unwrap_or(0).min(out.len());
        let byte = (start + head) * bits / 8;
        let vector_bytes = S::LANES * bits / 8;
        let vectors = ((out.len() - head) / S::LANES).min(bytes.len().saturating_sub(byte + SLACK) / vector_bytes);
        for i in 0..vectors {
            // SAFETY: the codes and the slack lie in `bytes`, and the values in `out`.
            unsafe {
                let values = simd.mul(C::decode(ready, simd, bytes.as_ptr().add(byte + i * vector_bytes)), scales);
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

impl<C: Codec> Decode for Parts<'_, C> {
    fn decode(&self, isa: Isa, start: usize, out: &mut [f32], ahead: usize) {
        let &Self { matrix, codes } = self;
        if out.is_empty() {
            return;
        }
        let blocks = start / matrix.block..(start + out.len() - 1) / matrix.block + 1;
        let mut scratch = [[0.0; NUMBERS]; 2];
        let [scales, biases] = &mut scratch;
        let scales = numbers(isa, &matrix.scales, &blocks, scales);
        let biases = matrix.biases.map(|given| numbers(isa, &given, &blocks, biases));
        let range = Range { matrix, codes, scales: &scales, biases: biases.as_deref(), first: blocks.start };
        range.decode(isa, start, out, ahead);
    }
}

/// Scales of a part that are widened without an allocation.
const NUMBERS: usize = 256;

/// The numbers of some blocks as `f32`, in `scratch` if they have to be widened and fit.
fn numbers<'a>(
    isa: Isa,
    scales: &Scales<'a>,
    blocks: &ops::Range<usize>,
    scratch: &'a mut [f32; NUMBERS],
) -> Cow<'a, [f32]> {
    if let Some(values) = scales.floats() {
        return Cow::Borrowed(&values[blocks.clone()]);
    }
    if let Some(scratch) = scratch.get_mut(..blocks.len()) {
        scales.widen(isa, blocks.start, scratch);
        return Cow::Borrowed(scratch);
    }
    let mut values = vec![0.0; blocks.len()];
    scales.widen(isa, blocks.start, &mut values);
    Cow::Owned(values)
}
