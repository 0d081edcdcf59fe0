//! Floats to codes: what the quantizers of all formats share.
//!
//! A [`Format`] says what a block of floats is stored as; [`encode`] runs it over all blocks, on all threads and in the
//! widest vectors of the machine. Arithmetic is that of single IEEE operations in an order that the format fixes, so that
//! neither of the two changes a bit of the result.

use std::mem::take;

use crate::{
    Isa, KernelError, Order, code_bytes,
    matrix::check_length,
    pack::pack,
    simd::{Kernel, Simd, prefetch, run},
    threads,
};

/// What one block of floats is stored as.
pub(crate) trait Format: Copy + Send + Sync {
    /// What a block stores beside its codes.
    type Stored: Copy + Send + Sync;
    /// What coding an element of the block takes.
    type Scale: Copy + Default;
    /// What coding an element of any block takes, in registers.
    type Ready<S: Simd>: Copy;

    /// Bits of a code.
    fn bits(self) -> u32;
    /// What a block stores, whose largest magnitude is `absmax`; all its elements are finite.
    fn scale<S: Simd>(self, simd: S, block: &[f32], absmax: f32) -> Self::Stored;
    /// What coding the elements of a block takes that stores this.
    fn unit(self, stored: Self::Stored) -> Self::Scale;
    fn ready<S: Simd>(self, simd: S) -> Self::Ready<S>;
    /// The codes of elements, in the lowest bytes.
    fn codes<S: Simd>(ready: Self::Ready<S>, simd: S, scale: Self::Scale, x: S::F) -> S::I;
}

/// A format whose blocks store the mean of their magnitudes.
pub(crate) trait ByAbsmean: Copy + Send + Sync {
    /// Bits of a code.
    const BITS: u32;

    /// The codes of elements by the scale, in the lowest bytes.
    fn coded<S: Simd>(simd: S, scale: f32, x: S::F) -> S::I;
}

impl<F: ByAbsmean> Format for F {
    type Stored = f32;
    type Scale = f32;
    type Ready<S: Simd> = ();

    #[inline(always)]
    fn bits(self) -> u32 {
        F::BITS
    }
    #[inline(always)]
    fn scale<S: Simd>(self, _: S, block: &[f32], _: f32) -> f32 {
        absmean(block)
    }
    #[inline(always)]
    fn unit(self, scale: f32) -> f32 {
        scale
    }
    #[inline(always)]
    fn ready<S: Simd>(self, _: S) {}
    #[inline(always)]
    fn codes<S: Simd>((): (), simd: S, scale: f32, x: S::F) -> S::I {
        F::coded(simd, scale, x)
    }
}

/// A format with the size of its blocks, and how its codes are packed.
#[derive(Clone, Copy)]
pub(crate) struct Codec<F> {
    pub(crate) format: F,
    pub(crate) block: usize,
    /// Which end of a byte is filled first.
    pub(crate) order: Order,
    /// The code that fills a last byte up.
    pub(crate) padding: u8,
}

/// What the blocks store: room for it, or what it is.
pub(crate) enum Blocks<'a, T> {
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

/// Codes `x` block by block, none of them empty, into a stream of codes; what each block stores is made or given.
pub(crate) fn encode<F: Format>(
    isa: Isa,
    codec: Codec<F>,
    x: &[f32],
    codes: &mut [u8],
    scales: Blocks<'_, F::Stored>,
) -> Result<(), KernelError> {
    let Codec { format, block, padding, .. } = codec;
    check_length(
        "codes",
        codes.len(),
        code_bytes(x.len(), format.bits()),
        "as many as `x` has elements, in whole bytes",
    )?;
    check_length("scales", scales.len(), x.len().div_ceil(block), "each block of elements has one")?;
    let chunk = chunk(x.len(), block);
    let outputs = codes.chunks_mut(code_bytes(chunk, format.bits())).zip(scales.chunks(chunk.div_ceil(block)));
    threads::try_each_part(x.chunks(chunk).zip(outputs).enumerate(), &|(at, (part, (codes, scales)))| {
        let sink = Sink { codec, codes, scales, run: [padding; RUN], filled: 0 };
        finite(x, run(isa, Part { x: part, sink }).map(|index| at * chunk + index))
    })
}

/// The error of the element of `x` that is not finite, and its place, where there is one.
pub(crate) fn finite(x: &[f32], bad: Option<usize>) -> Result<(), (usize, KernelError)> {
    bad.map_or(Ok(()), |index| Err((index, KernelError::NonFinite { index, value: x[index] })))
}

/// The largest `|x|`; NaN or infinite if an element is.
#[inline(always)]
pub(crate) fn absmax<S: Simd>(simd: S, x: &[f32]) -> f32 {
    // The bits of magnitudes order as the floats do, with NaN and infinities above all finite ones.
    let magnitude = simd.splat_words(i32::MAX as u32);
    let mut absmax = simd.splat_words(0);
    for at in (0..x.len()).step_by(S::LANES) {
        let count = (x.len() - at).min(S::LANES);
        // SAFETY: so many floats are left.
        let values = unsafe {
            let from = x.as_ptr().add(at);
            if count == S::LANES { simd.load(from) } else { simd.load_some(from, count) }
        };
        absmax = simd.max_words(absmax, simd.and(simd.words(values), magnitude));
    }
    f32::from_bits(simd.max_word(absmax))
}

/// The least and the greatest of finite elements.
#[inline(always)]
pub(crate) fn range<S: Simd>(simd: S, x: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
    let (whole, rest) = x.split_at(x.len() - x.len() % S::LANES);
    if !whole.is_empty() {
        let (mut less, mut more) = (simd.splat(low), simd.splat(high));
        for at in (0..whole.len()).step_by(S::LANES) {
            // SAFETY: there are whole vectors.
            let values = unsafe { simd.load(whole.as_ptr().add(at)) };
            (less, more) = (simd.min(less, values), simd.max(more, values));
        }
        low = -simd.max_lane(simd.sub(simd.splat(0.0), less));
        high = simd.max_lane(more);
    }
    for value in rest {
        (low, high) = (low.min(*value), high.max(*value));
    }
    (low, high)
}

/// The mean of `|x|`, summed in `f64`.
#[inline(always)]
fn absmean(x: &[f32]) -> f32 {
    (summed(x, |x| f64::from(x.abs())) / x.len() as f64) as f32
}

/// The sum of these terms, in sixteen lanes.
#[inline(always)]
pub(crate) fn summed(x: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let mut sums = [0_f64; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for values in whole {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += term(*value);
        }
    }
    sums.into_iter().sum::<f64>() + rest.iter().map(|value| term(*value)).sum::<f64>()
}

/// Writes the codes of a block's elements, a byte each.
#[inline(always)]
pub(crate) fn put<F: Format, S: Simd>(ready: F::Ready<S>, simd: S, scale: F::Scale, x: &[f32], codes: &mut [u8]) {
    let len = x.len().min(codes.len());
    let (fours, whole) = (len - len % (4 * S::LANES), len - len % S::LANES);
    for at in (0..fours).step_by(4 * S::LANES) {
        let mut words = [simd.splat_words(0); 4];
        for (i, words) in words.iter_mut().enumerate() {
            // SAFETY: four vectors from `at` on are within the length of `x`.
            *words = F::codes(ready, simd, scale, unsafe { simd.load(x.as_ptr().add(at + i * S::LANES)) });
        }
        // SAFETY: they are within that of the codes, too.
        unsafe { simd.store_four(codes.as_mut_ptr().add(at), words) };
    }
    for at in (fours..whole).step_by(S::LANES) {
        // SAFETY: `at + LANES` is at most the length of both.
        unsafe {
            let x = simd.load(x.as_ptr().add(at));
            simd.store_bytes(codes.as_mut_ptr().add(at), F::codes(ready, simd, scale, x));
        }
    }
    if whole < len {
        let mut last = [0; 16];
        // SAFETY: so many floats are left, and a vector has at most 16.
        unsafe {
            let x = simd.load_some(x.as_ptr().add(whole), len - whole);
            simd.store_bytes(last.as_mut_ptr(), F::codes(ready, simd, scale, x));
        }
        codes[whole..len].copy_from_slice(&last[..len - whole]);
    }
}

/// Blocks that are read before they are coded.
const TOGETHER: usize = 16;

/// How many bytes before its use memory is asked for: what is done with it fills the time in which the hardware would ask.
const AHEAD: usize = 4096;

/// Codes that are packed at a time: whole bytes of every width.
const RUN: usize = 1024;

/// Elements of a task: whole blocks and whole bytes of codes, at least one.
pub(crate) fn chunk(elements: usize, block: usize) -> usize {
    let block = block.min(elements.max(1));
    let whole_bytes = if block.is_multiple_of(8) || block == elements { block } else { 8 * block };
    threads::per_task(whole_bytes) * whole_bytes
}

struct Part<'a, F: Format> {
    x: &'a [f32],
    sink: Sink<'a, F>,
}

impl<F: Format> Kernel for Part<'_, F> {
    /// The first element that is not finite.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) -> Option<usize> {
        let Codec { format, block, .. } = self.sink.codec;
        let ready = format.ready(simd);
        // What a block stores takes long after its elements are there, and coding waits for it: several at a time.
        let mut units = [F::Scale::default(); TOGETHER];
        for (group, x) in self.x.chunks(block.saturating_mul(TOGETHER)).enumerate() {
            let first = group * TOGETHER;
            for (b, (x, unit)) in x.chunks(block).zip(&mut units).enumerate() {
                for line in (0..4 * x.len()).step_by(64) {
                    prefetch(x.as_ptr().cast::<u8>().wrapping_add(AHEAD + line));
                }
                let (absmax, b) = (absmax(simd, x), first + b);
                if !absmax.is_finite() {
                    return x.iter().position(|value| !value.is_finite()).map(|i| b * block + i);
                }
                let stored = match &mut self.sink.scales {
                    Blocks::Given(scales) => scales[b],
                    Blocks::Made(scales) => {
                        scales[b] = format.scale(simd, x, absmax);
                        scales[b]
                    }
                };
                *unit = format.unit(stored);
            }
            for (x, unit) in x.chunks(block).zip(units) {
                self.sink.put(ready, simd, unit, x);
            }
        }
        self.sink.end();
        None
    }
}

/// Where the elements of a chunk go, block by block.
struct Sink<'a, F: Format> {
    codec: Codec<F>,
    codes: &'a mut [u8],
    scales: Blocks<'a, F::Stored>,
    /// Codes that are not packed yet, from the last whole run on.
    run: [u8; RUN],
    filled: usize,
}

impl<F: Format> Sink<'_, F> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, ready: F::Ready<S>, simd: S, scale: F::Scale, mut x: &[f32]) {
        if self.codec.format.bits() == 8 {
            let (codes, rest) = take(&mut self.codes).split_at_mut(x.len());
            put::<F, S>(ready, simd, scale, x, codes);
            self.codes = rest;
            return;
        }
        while !x.is_empty() {
            let (now, later) = x.split_at(x.len().min(RUN - self.filled));
            put::<F, S>(ready, simd, scale, now, &mut self.run[self.filled..]);
            self.filled += now.len();
            if self.filled == RUN {
                self.end();
            }
            x = later;
        }
    }

    #[inline(always)]
    fn end(&mut self) {
        let Codec { format, order, padding, .. } = self.codec;
        let (bytes, rest) = take(&mut self.codes).split_at_mut(code_bytes(self.filled, format.bits()));
        let padded = self.filled.next_multiple_of(8);
        self.run[self.filled..padded].fill(padding);
        pack(&self.run[..padded], format.bits(), order, bytes);
        self.codes = rest;
        self.filled = 0;
    }
}
