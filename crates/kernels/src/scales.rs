//! Scales of every type as `f32`, and which elements of a vector they belong to.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;

use crate::{
    Isa, Matrix, Scales,
    matrix::e8m0,
    simd::{Kernel, Simd, run},
    unit::{Units, unit},
};

impl<'a> Scales<'a> {
    /// All of them, if they are `f32` already.
    pub(crate) fn floats(&self) -> Option<&'a [f32]> {
        match *self {
            Self::F32(values) => Some(values),
            _ => None,
        }
    }

    /// Writes the numbers of the blocks from `start`; each is what [`get`](Self::get) gives, to the bit.
    ///
    /// # Panics
    /// If there are not as many.
    pub(crate) fn widen(&self, isa: Isa, start: usize, out: &mut [f32]) {
        run(isa, Widen { scales: self, start, out });
    }
}

struct Widen<'a> {
    scales: &'a Scales<'a>,
    start: usize,
    out: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { scales, start, out } = self;
        let end = start + out.len();
        let whole = out.len() / S::LANES * S::LANES;
        match *scales {
            Scales::F32(values) => out.copy_from_slice(&values[start..end]),
            Scales::F16(values) => values[start..end].convert_to_f32_slice(out),
            Scales::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[start..end]) {
                    *out = f32::from_bits(u32::from(value.to_bits()) << 16);
                }
            }
            Scales::E8m0(bytes) => {
                for (out, byte) in out.iter_mut().zip(&bytes[start..end]) {
                    *out = e8m0(*byte);
                }
            }
            Scales::E4m3 { bytes, factor } => {
                let bytes = &bytes[start..end];
                for i in (0..whole).step_by(S::LANES) {
                    // SAFETY: `whole` numbers lie in both slices.
                    unsafe {
                        let values = simd.e4m3(simd.load_bytes(bytes.as_ptr().add(i)));
                        simd.store(out.as_mut_ptr().add(i), simd.mul(values, simd.splat(factor)));
                    }
                }
            }
            Scales::Nested { codes, map, absmax, block, offset } => {
                let codes = &codes[start..end];
                let mut i = 0;
                while i < whole {
                    let first = start + i;
                    if first % block + S::LANES > block {
                        // A vector that meets two blocks of scales.
                        for (j, out) in out[i..i + S::LANES].iter_mut().enumerate() {
                            *out = scales.get(first + j);
                        }
                    } else {
                        let scale = simd.splat(absmax[first / block]);
                        // SAFETY: `whole` numbers lie in both slices.
                        unsafe {
                            let values = simd.mul(simd.gather(codes.as_ptr().add(i), map), scale);
                            simd.store(out.as_mut_ptr().add(i), simd.add(values, simd.splat(offset)));
                        }
                    }
                    i += S::LANES;
                }
            }
        }
        if matches!(scales, Scales::E4m3 { .. } | Scales::Nested { .. }) {
            for (i, out) in out.iter_mut().enumerate().skip(whole) {
                *out = scales.get(start + i);
            }
        }
    }
}

/// How the spans of a unit find their scales.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// A block covers whole units, or whole rows.
    Units,
    /// A unit is a whole number of blocks of this many spans.
    Spans(usize),
    /// Anything else in which a span lies in one block: each has its scale copied out.
    Each,
}

impl Spread {
    /// `None` where rows do not start with a span, or spans meet two blocks.
    pub(crate) fn of<S: Simd, U: Units>(matrix: &Matrix) -> Option<Self> {
        let &Matrix { k, block, .. } = matrix;
        let unit = unit::<S, U>();
        if !k.is_multiple_of(U::SPAN) || !block.is_multiple_of(U::SPAN) {
            None
        } else if block.is_multiple_of(k) || (k.is_multiple_of(block) && block.is_multiple_of(unit)) {
            Some(Self::Units)
        } else if k.is_multiple_of(block) && unit.is_multiple_of(block) {
            Some(Self::Spans(block / U::SPAN))
        } else {
            Some(Self::Each)
        }
    }

    /// How many numbers [`row`] gives for these columns, and how many it needs room for, besides.
    pub(crate) fn lengths<S: Simd, U: Units>(self, matrix: &Matrix, columns: &Range<usize>) -> (usize, usize) {
        let &Matrix { k, block, .. } = matrix;
        let count = match self {
            Self::Units if block.is_multiple_of(k) => 1,
            Self::Units | Self::Spans(_) => (columns.end - 1) / block - columns.start / block + 1,
            Self::Each => columns.len().div_ceil(U::SPAN).next_multiple_of(S::LANES),
        };
        // Rows may start and end within a block.
        (count, columns.len().div_ceil(block) + 1)
    }
}

/// The start of a row's numbers.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) from: *const f32,
    /// How many floats may be read there; there may be more than the row has.
    readable: usize,
}

impl Numbers {
    pub(crate) fn of(values: &[f32]) -> Self {
        Self { from: values.as_ptr(), readable: values.len() }
    }
}

/// The numbers of a row's columns, one for each block that it meets, or, if the spread is `Each`, for each
/// span and zeros up to a whole vector. They lie in `scales` itself or are written to `scratch`.
///
/// # Panics
/// If `scratch` is shorter than the sum of [`Spread::lengths`].
pub(crate) fn row<S: Simd, U: Units>(
    isa: Isa,
    spread: Spread,
    scales: &Scales,
    matrix: &Matrix,
    row: usize,
    columns: &Range<usize>,
    scratch: &mut [f32],
) -> Numbers {
    let &Matrix { k, block, .. } = matrix;
    let (start, end) = (row * k + columns.start, row * k + columns.end);
    let (first, last) = (start / block, (end - 1) / block + 1);
    if spread != Spread::Each {
        if let Some(values) = scales.floats() {
            return Numbers::of(&values[first..]);
        }
        scales.widen(isa, first, &mut scratch[..last - first]);
        return Numbers::of(scratch);
    }
    let (length, _) = spread.lengths::<S, U>(matrix, columns);
    let (spans, blocks) = scratch.split_at_mut(length);
    scales.widen(isa, first, &mut blocks[..last - first]);
    let mut at = 0;
    for (b, value) in blocks.iter().enumerate().take(last - first) {
        let until = (end.min((first + b + 1).saturating_mul(block)) - start) / U::SPAN;
        spans[at..until].fill(*value);
        at = until;
    }
    spans[at..].fill(0.0);
    Numbers::of(spans)
}

/// What each vector of scales is read with.
#[derive(Clone, Copy)]
pub(crate) struct Reader<I> {
    spread: Spread,
    /// Units of a block, or numbers of a unit.
    each: usize,
    /// `log2(each)`, if it has one.
    shift: Option<u32>,
    /// Numbers of a row.
    count: usize,
    /// Units between the start of the first block and the first column.
    offset: usize,
    index: I,
}

impl<I: Copy> Reader<I> {
    #[inline(always)]
    pub(crate) fn new<S: Simd<I = I>, U: Units>(
        simd: S,
        spread: Spread,
        matrix: &Matrix,
        columns: &Range<usize>,
    ) -> Self {
        let spans = if let Spread::Spans(spans) = spread { spans } else { 1 };
        let each = match spread {
            Spread::Units => (matrix.block / unit::<S, U>()).max(1),
            Spread::Spans(_) | Spread::Each => S::LANES / spans,
        };
        let index: [u32; 16] = std::array::from_fn(|i| (i / spans) as u32);
        let (count, _) = spread.lengths::<S, U>(matrix, columns);
        let offset = columns.start % matrix.block / unit::<S, U>();
        let shift = each.is_power_of_two().then(|| each.trailing_zeros());
        // SAFETY: there are 16 words, the most that a vector holds.
        let index = unsafe { simd.load_words(index.as_ptr().cast()) };
        Self { spread, each, shift, count, offset, index }
    }

    /// Units from a row's start that share their scales.
    pub(crate) fn shared(&self) -> usize {
        if self.spread == Spread::Units { self.each } else { 1 }
    }

    /// Units from a row's start whose scales [`read_whole`](Self::read_whole) may read, where each unit has its own.
    pub(crate) fn whole(&self, lanes: usize, numbers: &[Numbers]) -> usize {
        let readable = numbers.iter().map(|numbers| numbers.readable).min().unwrap_or(0);
        match self.spread {
            Spread::Spans(_) if readable >= lanes => self.count.min(readable - lanes + self.each) / self.each,
            Spread::Units if self.each == 1 => self.count.min(readable).saturating_sub(self.offset),
            _ => 0,
        }
    }

    /// [`read`](Self::read) without a look at where the row ends.
    ///
    /// # Safety
    /// `at` is below what [`whole`](Self::whole) gives for these numbers.
    #[inline(always)]
    pub(crate) unsafe fn read_whole<S: Simd<I = I>>(&self, simd: S, numbers: Numbers, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe {
            if self.spread == Spread::Units {
                simd.splat(*numbers.from.add(at + self.offset))
            } else {
                simd.spread(numbers.from.add(at * self.each), S::LANES, self.index)
            }
        }
    }

    /// The scale of each span of unit `at`, counted from the first column that `numbers` begins with; zeros for spans
    /// beyond the row.
    ///
    /// # Safety
    /// `numbers` comes from [`row`], for the same columns.
    #[inline(always)]
    pub(crate) unsafe fn read<S: Simd<I = I>>(&self, simd: S, numbers: Numbers, at: usize) -> S::F {
        let Numbers { from, readable } = numbers;
        // SAFETY: no index reaches `count`, the caller's promise, or `readable`.
        unsafe {
            match self.spread {
                Spread::Units => {
                    let units = at + self.offset;
                    let block = self.shift.map_or_else(|| units / self.each, |shift| units >> shift);
                    simd.splat(*from.add(block.min(self.count - 1)))
                }
                Spread::Spans(_) => {
                    let first = at * self.each;
                    if first + self.each <= self.count && first + S::LANES <= readable {
                        return simd.spread(from.add(first), S::LANES, self.index);
                    }
                    let first = first.min(self.count);
                    simd.spread(from.add(first), self.each.min(self.count - first), self.index)
                }
                Spread::Each => {
                    let first = at * S::LANES;
                    if first < self.count { simd.load(from.add(first)) } else { simd.splat(0.0) }
                }
            }
        }
    }
}
