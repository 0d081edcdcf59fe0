//! Floats to codes: what the quantizers of all formats share.
//!
//! A [`Format`] says what a block of floats is stored as; [`quantize`] runs it over all blocks, on all threads and in the
//! widest vectors of the machine. Arithmetic is that of single IEEE operations in an order that the format fixes, so that
//! neither of the two changes a bit of the result.

use std::{
    mem::take,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    Isa, KernelError, Order, code_bytes,
    matrix::check_length,
    simd::{Kernel, Simd, run},
    threads,
};

/// What one block of floats is stored as.
pub(crate) trait Format: Copy + Send + Sync {
    /// What a block stores beside its codes.
    type Stored: Copy + Send + Sync;
    /// What coding an element of the block takes.
    type Scale: Copy;
    /// Which end of a byte is filled first.
    const ORDER: Order = Order::LowFirst;
    /// The code that fills a last byte up.
    const PAD: u8 = 0;

    /// Bits of a code.
    fn bits(self) -> u32;
    /// What a block stores, whose largest magnitude is `absmax`; all its elements are finite.
    fn scale(self, block: &[f32], absmax: f32) -> Self::Stored;
    /// What coding the elements of a block takes that stores this.
    fn unit(self, stored: Self::Stored) -> Self::Scale;
    /// The code of an element.
    fn code(self, scale: Self::Scale, x: f32) -> u8;
}

/// Quantizes `x` in blocks of `block` elements into a stream of codes and what each block stores.
pub(crate) fn quantize<F: Format>(
    isa: Isa,
    format: F,
    x: &[f32],
    block: usize,
    codes: &mut [u8],
    scales: &mut [F::Stored],
) -> Result<(), KernelError> {
    coded(isa, format, x, block, codes, Blocks::Made(scales))
}

/// Quantizes `x` as [`quantize`] does, by what each block stores already.
pub(crate) fn quantize_by<F: Format>(
    isa: Isa,
    format: F,
    x: &[f32],
    block: usize,
    scales: &[F::Stored],
    codes: &mut [u8],
) -> Result<(), KernelError> {
    coded(isa, format, x, block, codes, Blocks::Given(scales))
}

/// What the blocks store: room for it, or what it is.
enum Blocks<'a, T> {
    Made(&'a mut [T]),
    Given(&'a [T]),
}

impl<T> Blocks<'_, T> {
    fn len(&self) -> usize {
        match self {
            Self::Made(scales) => scales.len(),
            Self::Given(scales) => scales.len(),
        }
    }

    fn chunks(self, blocks: usize) -> Vec<Self> {
        match self {
            Self::Made(scales) => scales.chunks_mut(blocks).map(Blocks::Made).collect(),
            Self::Given(scales) => scales.chunks(blocks).map(Blocks::Given).collect(),
        }
    }
}

fn coded<F: Format>(
    isa: Isa,
    format: F,
    x: &[f32],
    block: usize,
    codes: &mut [u8],
    scales: Blocks<'_, F::Stored>,
) -> Result<(), KernelError> {
    if block == 0 {
        return Err(KernelError::EmptyBlock);
    }
    check_length(
        "codes",
        codes.len(),
        code_bytes(x.len(), format.bits()),
        "as many as `x` has elements, in whole bytes",
    )?;
    check_length("scales", scales.len(), x.len().div_ceil(block), "each block of elements has one")?;
    let chunk = chunk(x.len(), block);
    let outputs = codes.chunks_mut(code_bytes(chunk, format.bits())).zip(scales.chunks(chunk.div_ceil(block)));
    let first_bad = AtomicUsize::new(usize::MAX);
    let parts = x.chunks(chunk).zip(outputs).enumerate();
    threads::for_each_part(usize::MAX, parts, &|(at, (x, (codes, scales)))| {
        let sink = Sink { codes, scales, run: [F::PAD; RUN], filled: 0 };
        if let Some(index) = run(isa, Part { format, x, block, sink }) {
            first_bad.fetch_min(at * chunk + index, Ordering::Relaxed);
        }
    });
    match first_bad.into_inner() {
        usize::MAX => Ok(()),
        index => Err(KernelError::NonFinite { index, value: x[index] }),
    }
}

/// The largest `|x|`; NaN or infinite if an element is.
#[inline(always)]
pub(crate) fn absmax(x: &[f32]) -> f32 {
    // The bits of magnitudes order as the floats do, with NaN and infinities above all finite ones.
    f32::from_bits(x.iter().fold(0, |most, value| most.max(value.abs().to_bits())))
}

/// The least and the greatest of finite elements.
#[inline(always)]
pub(crate) fn range(x: &[f32]) -> (f32, f32) {
    // Integers that order as the floats do: unlike these, their minimum is one in any order, and so in vectors.
    let ordered = |bits: i32| bits ^ (bits >> 31 & i32::MAX);
    let (mut low, mut high) = (i32::MAX, i32::MIN);
    for value in x {
        let value = ordered(value.to_bits().cast_signed());
        low = low.min(value);
        high = high.max(value);
    }
    let float = |value: i32| f32::from_bits(ordered(value).cast_unsigned());
    (float(low), float(high))
}

/// The mean of `|x|`, summed in `f64`.
#[inline(always)]
pub(crate) fn absmean(x: &[f32]) -> f32 {
    let mut sums = [0_f64; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for values in whole {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += f64::from(value.abs());
        }
    }
    let rest: f64 = rest.iter().map(|value| f64::from(value.abs())).sum();
    ((sums.into_iter().sum::<f64>() + rest) / x.len() as f64) as f32
}

/// The lowest byte of the integer nearest to `x`, of two even to the even one; `|x|` is below 2^22.
#[inline(always)]
pub(crate) fn nearest_integer(x: f32) -> u8 {
    // Between 2^23 and 2^24 floats are the integers, and their bits end as the integers' do.
    (x + 12_582_912.0).to_bits() as u8
}

/// Elements that one task handles, unless a block has more.
const CHUNK: usize = 1 << 16;

/// Codes that are packed at a time: whole bytes of every width.
const RUN: usize = 256;

/// Elements of a task: whole blocks and whole bytes of codes, at least one.
pub(crate) fn chunk(elements: usize, block: usize) -> usize {
    let block = block.min(elements.max(1));
    let whole_bytes = if block.is_multiple_of(8) || block == elements { block } else { 8 * block };
    (CHUNK / whole_bytes).max(1) * whole_bytes
}

struct Part<'a, F: Format> {
    format: F,
    x: &'a [f32],
    block: usize,
    sink: Sink<'a, F>,
}

impl<F: Format> Kernel for Part<'_, F> {
    /// The first element that is not finite.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(mut self, _: S) -> Option<usize> {
        for (b, x) in self.x.chunks(self.block).enumerate() {
            let most = absmax(x);
            if !most.is_finite() {
                return x.iter().position(|value| !value.is_finite()).map(|i| b * self.block + i);
            }
            let stored = match &mut self.sink.scales {
                Blocks::Given(scales) => scales[b],
                Blocks::Made(scales) => {
                    scales[b] = self.format.scale(x, most);
                    scales[b]
                }
            };
            self.sink.put(self.format, self.format.unit(stored), x);
        }
        self.sink.end(self.format.bits());
        None
    }
}

/// Where the elements of a chunk go, block by block.
struct Sink<'a, F: Format> {
    codes: &'a mut [u8],
    scales: Blocks<'a, F::Stored>,
    /// Codes that are not packed yet, from the last whole run on.
    run: [u8; RUN],
    filled: usize,
}

impl<F: Format> Sink<'_, F> {
    #[inline(always)]
    fn put(&mut self, format: F, scale: F::Scale, mut x: &[f32]) {
        while !x.is_empty() {
            let (now, later) = x.split_at(x.len().min(RUN - self.filled));
            for (code, x) in self.run[self.filled..].iter_mut().zip(now) {
                *code = format.code(scale, *x);
            }
            self.filled += now.len();
            if self.filled == RUN {
                self.end(format.bits());
            }
            x = later;
        }
    }

    #[inline(always)]
    fn end(&mut self, bits: u32) {
        let (bytes, rest) = take(&mut self.codes).split_at_mut(code_bytes(self.filled, bits));
        let padded = self.filled.next_multiple_of(8);
        self.run[self.filled..padded].fill(F::PAD);
        pack(&self.run[..padded], bits, F::ORDER, bytes);
        self.codes = rest;
        self.filled = 0;
    }
}

/// Packs codes, a multiple of eight, into as many of `bytes` as there are.
#[inline(always)]
fn pack(codes: &[u8], bits: u32, order: Order, bytes: &mut [u8]) {
    match (bits, order) {
        (8, _) => bytes.copy_from_slice(&codes[..bytes.len()]),
        (4, _) => {
            let (low, high) = if order == Order::LowFirst { (0, 1) } else { (1, 0) };
            for (byte, pair) in bytes.iter_mut().zip(codes.as_chunks::<2>().0) {
                *byte = pair[low] | pair[high] << 4;
            }
        }
        _ => {
            for (bytes, codes) in bytes.chunks_mut(bits as usize).zip(codes.as_chunks::<8>().0) {
                let mut word = 0_u64;
                for (i, code) in codes.iter().enumerate() {
                    word |= u64::from(*code) << (i as u32 * bits);
                }
                bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
            }
        }
    }
}
