//! Which scales elements of a vector belong to, and where they are read.

use std::ops::Range;

use crate::{Isa, Matrix, Scales, simd::Simd};

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
    pub(crate) fn new(matrix: &Matrix, span: usize, lanes: usize) -> Option<Self> {
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

    fn unit(self) -> usize {
        self.span * self.lanes
    }
}

/// Which numbers of a row are wanted, as units share them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Granularity {
    /// [`Spread::count`] of them.
    Number,
    /// What [`Reader::read`] reads for units that share theirs, counted from the row's start.
    Shared,
    /// What it reads for this many units, whatever numbers belong to those beyond the columns.
    Unit(usize),
}

/// Where the numbers of some columns, which start with a unit, are found in each row.
pub(crate) struct Numbers {
    spread: Spread,
    columns: Range<usize>,
    /// Blocks of a row, if numbers that are `f32` may be read where they are, up to the end of all of them.
    as_stored: Option<usize>,
    /// Blocks of a row before the first column.
    before: usize,
    /// Blocks that the columns meet, where each row meets as many.
    count: usize,
    /// How far what is given is read.
    wanted: usize,
    /// The units that a number is for, as a power of two, and those of the first block before the first column.
    shift: u32,
    offset: usize,
    /// Elements that each number is copied out for, or 0 where they are read as they lie.
    copied: usize,
}

impl Numbers {
    pub(crate) fn new(spread: Spread, per: Granularity, columns: &Range<usize>) -> Self {
        let Spread { kind, span, lanes, k, block } = spread;
        let units = if let Granularity::Unit(units) = per { units } else { columns.len().div_ceil(spread.unit()) };
        let units_each = block / spread.unit();
        let (mut shift, mut offset, mut copied) = (0, 0, 0);
        let mut count = spread.count(columns);
        let wanted = match kind {
            Kind::Units if matches!(per, Granularity::Unit(_)) && units_each.is_power_of_two() => {
                (shift, offset) = (units_each.trailing_zeros(), columns.start % block / spread.unit());
                (units - 1 + offset) / units_each + 1
            }
            Kind::Units if matches!(per, Granularity::Unit(_)) => {
                copied = spread.unit();
                units
            }
            Kind::Spans(spans) if per != Granularity::Number => (units - 1) * (lanes / spans) + lanes,
            Kind::Row | Kind::Units | Kind::Spans(_) => count,
            Kind::Each => {
                copied = span;
                // The blocks that columns may meet.
                count = columns.len().div_ceil(block) + 1;
                units * lanes
            }
        };
        // Lanes beyond a row must not meet the next one's numbers.
        let apart = per == Granularity::Shared && wanted > count && !columns.len().is_multiple_of(spread.unit());
        let as_stored = (copied == 0 && !apart && k.is_multiple_of(block)).then(|| k / block);
        let before = columns.start / block;
        Self { spread, columns: columns.clone(), as_stored, before, count, wanted, shift, offset, copied }
    }

    /// Units from a row's start whose products are summed before they are scaled.
    pub(crate) fn shared(&self) -> usize {
        match self.spread.kind {
            Kind::Row | Kind::Units => (self.spread.block / self.spread.unit()).max(1),
            Kind::Spans(_) | Kind::Each => 1,
        }
    }

    /// The floats of a row where each is copied out by itself.
    fn room(&self) -> usize {
        self.wanted.max(self.count) + self.count
    }

    /// The scales of some rows, at least one. They lie in `scales` itself or are written to `scratch`.
    ///
    /// A vector may be read at each unit; spans of it that lie beyond the columns have zeros, but for [`Granularity::Unit`].
    pub(crate) fn rows(&self, isa: Isa, scales: &Scales, rows: Range<usize>, scratch: &mut Vec<f32>) -> RowNumbers {
        if let (Scales::One, Kind::Row) = (scales, self.spread.kind) {
            return RowNumbers { first: ONE.as_ptr(), stride: 0 };
        }
        if let Some(blocks) = self.as_stored {
            let first = rows.start * blocks + self.before;
            let wanted = (rows.len() - 1) * blocks + self.wanted;
            if let Scales::F32(values) = scales
                && values.len() - first >= wanted
            {
                return RowNumbers { first: values[first..].as_ptr(), stride: blocks };
            }
            if self.count == blocks {
                // All of them follow each other.
                let count = rows.len() * blocks;
                scratch.resize(scratch.len().max(wanted), 0.0);
                scales.widen(isa, first, &mut scratch[..count]);
                scratch[count..].fill(0.0);
                return RowNumbers { first: scratch.as_ptr(), stride: blocks };
            }
        }
        let room = self.room();
        scratch.resize(scratch.len().max(rows.len() * room), 0.0);
        for (row, scratch) in rows.zip(scratch.chunks_exact_mut(room)) {
            self.copied_row(isa, scales, row, scratch);
        }
        RowNumbers { first: scratch.as_ptr(), stride: room }
    }

    /// Writes those of a row, wherever they are.
    fn copied_row(&self, isa: Isa, scales: &Scales, row: usize, scratch: &mut [f32]) {
        let &Self { spread, ref columns, wanted, copied, .. } = self;
        let Spread { kind, k, block, .. } = spread;
        let start = row * k + columns.start;
        let first = start / block;
        let count = if kind == Kind::Each { (start + columns.len() - 1) / block + 1 - first } else { self.count };
        if copied == 0 {
            scales.widen(isa, first, &mut scratch[..count]);
            if wanted > count {
                scratch[count..wanted].fill(0.0);
            }
            return;
        }
        let (numbers, blocks) = scratch.split_at_mut(wanted);
        let blocks = &mut blocks[..count];
        scales.widen(isa, first, blocks);
        let mut at = 0;
        for (b, value) in blocks.iter().enumerate() {
            let until = (columns.len().min((first + b + 1).saturating_mul(block) - start)).div_ceil(copied);
            numbers[at..until].fill(*value);
            at = until;
        }
        numbers[at..].fill(0.0);
    }
}

/// The numbers of some rows, as [`Numbers::rows`] gave them.
#[derive(Clone, Copy)]
pub(crate) struct RowNumbers {
    first: *const f32,
    /// Floats from row to row.
    stride: usize,
}

impl RowNumbers {
    /// The numbers of a row, counted from the first.
    pub(crate) fn row(self, at: usize) -> *const f32 {
        self.first.wrapping_add(at * self.stride)
    }
}

/// The number of a row whose scale is not stored.
static ONE: [f32; 1] = [1.0];

/// What each vector of scales is read with, from where [`Numbers`] says they are.
#[derive(Clone, Copy)]
pub(crate) struct Reader<I> {
    /// Whether all spans of a unit have one number.
    splat: bool,
    /// Numbers from those of a unit, or of units that share one, to the next.
    step: usize,
    shift: u32,
    offset: usize,
    index: I,
}

impl<I: Copy> Reader<I> {
    /// Whether all units of a row have the same number.
    #[inline(always)]
    pub(crate) fn is_by_row(&self) -> bool {
        self.splat && self.step == 0
    }

    #[inline(always)]
    pub(crate) fn new<S: Simd<I = I>>(simd: S, numbers: &Numbers) -> Self {
        let (splat, step, spans) = match numbers.spread.kind {
            Kind::Row => (true, 0, 1),
            Kind::Units => (true, 1, 1),
            Kind::Spans(spans) => (false, S::LANES / spans, spans),
            Kind::Each => (false, S::LANES, 1),
        };
        let index: [u32; 16] = std::array::from_fn(|i| (i / spans) as u32);
        // SAFETY: there are 16 words, the most that a vector holds.
        let index = unsafe { simd.load_words(index.as_ptr().cast()) };
        Self { splat, step, shift: numbers.shift, offset: numbers.offset, index }
    }

    /// Whether all spans of a unit have one number.
    #[inline(always)]
    pub(crate) fn is_splat(&self) -> bool {
        self.splat
    }

    /// The scale of each span of unit `at`, or of the units `at`, that share one.
    ///
    /// # Safety
    /// `from` is what [`RowNumbers::row`] gave, and the unit is one that it was wanted for.
    #[inline(always)]
    pub(crate) unsafe fn read<S: Simd<I = I>>(&self, simd: S, from: *const f32, at: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe {
            if self.splat { self.read_as::<S, true>(simd, from, at) } else { self.read_as::<S, false>(simd, from, at) }
        }
    }

    /// The same where it is known whether it [is one number](Self::is_splat).
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    #[inline(always)]
    pub(crate) unsafe fn read_as<S: Simd<I = I>, const SPLAT: bool>(
        &self,
        simd: S,
        from: *const f32,
        at: usize,
    ) -> S::F {
        // SAFETY: the caller's promise.
        unsafe {
            if SPLAT {
                simd.splat(*from.add((at * self.step + self.offset) >> self.shift))
            } else {
                simd.spread(from.add(at * self.step), S::LANES, self.index)
            }
        }
    }
}
