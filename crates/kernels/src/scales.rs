//! Scales of every type as `f32`, and which elements of a vector they belong to.

use std::{borrow::Cow, ops::Range};

use half::slice::HalfFloatSliceExt;

use crate::{
    Isa, Matrix, Scales,
    matrix::e8m0,
    output::Output,
    simd::{Kernel, Simd, run},
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

/// The first `count` scales as `f32`.
pub(crate) fn widened<'a>(isa: Isa, scales: &Scales<'a>, count: usize, threads: usize) -> Cow<'a, [f32]> {
    if let Some(values) = scales.floats() {
        return Cow::Borrowed(values);
    }
    let mut values = vec![0.0; count];
    Output::new(&mut values, count).for_each(threads, 1, WIDENED, &|mut part| {
        let start = part.columns().start;
        scales.widen(isa, start, part.row(0));
    });
    Cow::Owned(values)
}

/// Scales that one task widens.
const WIDENED: usize = 1 << 14;

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
enum Kind {
    /// A block covers whole rows.
    Row,
    /// A block is a whole number of units, and rows of blocks.
    Units,
    /// A unit is a whole number of blocks of this many spans.
    Spans(usize),
    /// Anything else in which a span lies in one block: each has its scale copied out.
    Each,
}

/// How elements that are read by units find their scales.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    kind: Kind,
    span: usize,
    lanes: usize,
    k: usize,
    block: usize,
}

impl Spread {
    /// For units of `lanes` spans; `None` where rows do not start with a span, or spans meet two blocks.
    pub(crate) fn of(matrix: &Matrix, span: usize, lanes: usize) -> Option<Self> {
        let &Matrix { k, block, .. } = matrix;
        let unit = span * lanes;
        let kind = if !k.is_multiple_of(span) || !block.is_multiple_of(span) {
            return None;
        } else if block.is_multiple_of(k) {
            Kind::Row
        } else if k.is_multiple_of(block) && block.is_multiple_of(unit) {
            Kind::Units
        } else if k.is_multiple_of(block) && unit.is_multiple_of(block) {
            Kind::Spans(block / span)
        } else {
            Kind::Each
        };
        Some(Self { kind, span, lanes, k, block })
    }

    /// Units from a row's start whose products are summed before they are scaled.
    pub(crate) fn shared(self) -> usize {
        match self.kind {
            Kind::Row | Kind::Units => (self.block / (self.span * self.lanes)).max(1),
            Kind::Spans(_) | Kind::Each => 1,
        }
    }

    /// Elements that share a number: those of a span, if each has its own, or of a block, as far as a row goes.
    pub(crate) fn elements(self) -> usize {
        if self.kind == Kind::Each { self.span } else { self.block.min(self.k) }
    }

    /// The numbers of a row's columns.
    pub(crate) fn count(self, columns: &Range<usize>) -> usize {
        match self.kind {
            Kind::Row => 1,
            Kind::Units | Kind::Spans(_) => (columns.end - 1) / self.block - columns.start / self.block + 1,
            Kind::Each => columns.len().div_ceil(self.span),
        }
    }

    /// Which of these numbers a column has.
    pub(crate) fn number(self, columns: &Range<usize>, column: usize) -> usize {
        match self.kind {
            Kind::Row => 0,
            Kind::Units | Kind::Spans(_) => column / self.block - columns.start / self.block,
            Kind::Each => (column - columns.start) / self.span,
        }
    }

    /// The units that these columns, which start with one, lie in.
    pub(crate) fn units(self, columns: &Range<usize>) -> usize {
        columns.len().div_ceil(self.span * self.lanes)
    }

    /// The floats that [`row`] may need for `units` units of these columns.
    pub(crate) fn room(self, columns: &Range<usize>, units: usize) -> usize {
        let blocks = columns.len().div_ceil(self.block) + 1;
        self.count(columns).max((units + 1) * self.lanes) + blocks
    }
}

/// What each vector of scales is read with, from where [`row`] says they are.
#[derive(Clone, Copy)]
pub(crate) struct Reader<I> {
    /// Whether all spans of a unit have one number.
    splat: bool,
    /// Numbers from those of a unit, or of units that share one, to the next.
    step: usize,
    index: I,
}

impl<I: Copy> Reader<I> {
    #[inline(always)]
    pub(crate) fn new<S: Simd<I = I>>(simd: S, spread: Spread) -> Self {
        let (splat, step, spans) = match spread.kind {
            Kind::Row => (true, 0, 1),
            Kind::Units => (true, 1, 1),
            Kind::Spans(spans) => (false, S::LANES / spans, spans),
            Kind::Each => (false, S::LANES, 1),
        };
        let index: [u32; 16] = std::array::from_fn(|i| (i / spans) as u32);
        // SAFETY: there are 16 words, the most that a vector holds.
        Self { splat, step, index: unsafe { simd.load_words(index.as_ptr().cast()) } }
    }

    /// The scale of each span of unit `at`, or of the units `at`, that share one.
    ///
    /// # Safety
    /// `numbers` comes from [`row`], and the unit is one that it was called for.
    #[inline(always)]
    pub(crate) unsafe fn read<S: Simd<I = I>>(&self, simd: S, numbers: *const f32, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe {
            let from = numbers.add(at * self.step);
            if self.splat { simd.splat(*from) } else { simd.spread(from, S::LANES, self.index) }
        }
    }
}

/// Which numbers of a row are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Per {
    /// [`Spread::count`] of them.
    Number,
    /// What [`Reader::read`] reads for units that share theirs, counted from the row's start.
    Shared,
    /// What it reads for this many units, each with its own, whatever numbers belong to those beyond the columns.
    Unit(usize),
}

/// The numbers of a row's columns, which start with a unit. They lie in `scales` itself or are written to `scratch`.
///
/// A vector may be read at each unit; spans of it that lie beyond the columns have zeros, but for [`Per::Unit`].
///
/// # Panics
/// If `scratch` is shorter than [`Spread::room`].
pub(crate) fn row(
    isa: Isa,
    spread: Spread,
    per: Per,
    scales: &Scales,
    row: usize,
    columns: &Range<usize>,
    scratch: &mut [f32],
) -> *const f32 {
    let Spread { kind, span, lanes, k, block } = spread;
    let unit = span * lanes;
    let (start, end) = (row * k + columns.start, row * k + columns.end);
    let (first, last) = (start / block, (end - 1) / block + 1);
    let units = if let Per::Unit(units) = per { units } else { spread.units(columns) };
    // Blocks of several units whose numbers are wanted for each.
    let repeated = matches!(per, Per::Unit(_)) && kind == Kind::Units && block > unit;
    // How far what is given is read.
    let wanted = match kind {
        Kind::Units if matches!(per, Per::Unit(_)) => units,
        Kind::Spans(spans) if per != Per::Number => (units - 1) * (lanes / spans) + lanes,
        Kind::Row | Kind::Units | Kind::Spans(_) => last - first,
        Kind::Each => units * lanes,
    };
    if kind != Kind::Each && !repeated {
        // Lanes beyond a row must not meet the next one's numbers.
        let apart = matches!(kind, Kind::Spans(_)) && per == Per::Shared && !columns.len().is_multiple_of(unit);
        if let Some(values) = scales.floats()
            && !apart
            && values.len() - first >= wanted
        {
            return values[first..].as_ptr();
        }
        scales.widen(isa, first, &mut scratch[..last - first]);
        if wanted > last - first {
            scratch[last - first..wanted].fill(0.0);
        }
        return scratch.as_ptr();
    }
    let (numbers, blocks) = scratch.split_at_mut(scratch.len() - (last - first));
    scales.widen(isa, first, blocks);
    // What each number is repeated for: the units of a block, or its spans.
    let each = if kind == Kind::Each { span } else { unit };
    let mut at = 0;
    for (b, value) in blocks.iter().enumerate() {
        let until = (end.min((first + b + 1).saturating_mul(block)) - start).div_ceil(each);
        numbers[at..until].fill(*value);
        at = until;
    }
    if wanted > at {
        numbers[at..wanted].fill(0.0);
    }
    numbers.as_ptr()
}
