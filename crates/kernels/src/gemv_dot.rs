//! `y = x W^T` with few rows of activations, from the codes.
//!
//! Per block, `sum(x * (s * c + b))` is `s * sum(x * c) + b * sum(x)`: the inner loop knows codes only, and the sums of
//! `x` are taken once for all rows of the matrix.

use std::ops::Range;

use crate::{
    Isa, Matrix,
    output::Rectangle,
    scales::{Numbers, Per, Reader, Spread},
    simd::{Kernel, SLACK, Simd},
    unit::{Layout, Source, Units, unit, unit_bytes},
};

/// Rows of the matrix that are multiplied side by side, at most.
const MOST_ROWS: usize = 4;

/// Groups of such rows that are multiplied with a part of the activations before the next part.
const GROUPS: usize = 8;

/// Floats of activations that stay in the first-level cache while rows of the matrix pass.
const RESIDENT: usize = 8192;

/// Columns that are decoded at a time; those of a group of rows stay in the first-level cache.
const CHUNK: usize = 960;

/// Floats from row to row of what is decoded: off a power of two, or the rows would share cache sets.
const STRIDE: usize = CHUNK + 16;

/// Bytes that one prefetch asks for.
const LINE: usize = 64;

/// Bytes between what is read and what is asked for, at least: as many as memory gives a core while it waits for the first.
const AHEAD: usize = 8192;

/// The most bytes at the end of a row that may not be read where they are: a unit that is cut off, and what has no slack
/// behind it.
const TAIL: usize = 2 * 64;

#[repr(align(64))]
struct Scratch([f32; MOST_ROWS * STRIDE]);

/// Activations `x: f32[m, k]` in the order in which [`GemvDot`] reads them, padded by zeros to whole units.
pub(crate) struct Arranged {
    values: Vec<f32>,
    /// Where the first row begins: with a cache line, lest every vector spans two.
    first: usize,
    /// Floats from row to row.
    stride: usize,
    /// The sums that the numbers of a row's biases are multiplied with, padded to whole vectors.
    sums: Vec<f32>,
    sums_stride: usize,
    m: usize,
    spread: Spread,
}

/// Makes the activations for [`GemvDot`].
pub(crate) struct Arrange<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) m: usize,
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) layout: &'a Layout,
}

impl Kernel for Arrange<'_> {
    type Output = Option<Arranged>;

    /// `None` where rows or blocks do not fit whole spans.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Option<Arranged> {
        let Self { x, m, matrix, layout } = self;
        let k = matrix.k;
        let spread = Spread::of(matrix, layout.span, S::LANES)?;
        let unit = S::LANES * layout.span;
        // Off a power of two, or the rows would share cache sets.
        let stride = k.next_multiple_of(unit).next_multiple_of(LINE / 4) + LINE / 4;
        let mut values = vec![0.0; m * stride + LINE / 4];
        let first = values.as_ptr().align_offset(LINE).min(LINE / 4);
        for (x, to) in x.chunks_exact(k).zip(values[first..].chunks_exact_mut(stride)) {
            for (at, to) in (0..k).step_by(unit).zip(to.chunks_exact_mut(unit)) {
                arrange_unit(simd, layout, &x[at..], to);
            }
        }
        let mut sums = Vec::new();
        let mut sums_stride = 0;
        if matrix.biases.is_some() && !layout.decoded {
            let each = spread.elements();
            sums_stride = k.div_ceil(each).next_multiple_of(S::LANES);
            sums = vec![0.0; m * sums_stride];
            for (x, sums) in x.chunks_exact(k).zip(sums.chunks_exact_mut(sums_stride)) {
                for (x, sum) in x.chunks(each).zip(sums) {
                    let mut total = simd.splat(0.0);
                    for x in x.chunks(S::LANES) {
                        // SAFETY: the chunk has at most LANES floats.
                        total = simd.add(total, unsafe { simd.load_some(x.as_ptr(), x.len()) });
                    }
                    *sum = simd.sum(total);
                }
            }
        }
        Some(Arranged { values, first, stride, sums, sums_stride, m, spread })
    }
}

/// Brings the first unit of `x`, or what there is of it, into the order of its steps.
#[inline(always)]
fn arrange_unit<S: Simd>(simd: S, layout: &Layout, x: &[f32], to: &mut [f32]) {
    let span = layout.span;
    if span == 1 {
        let len = x.len().min(S::LANES);
        to[..len].copy_from_slice(&x[..len]);
        return;
    }
    let mut columns = [0_u32; 256];
    for first in (0..span).step_by(S::LANES) {
        // The squares that `transpose` reads reach beyond short spans.
        if x.len() >= first + (S::LANES - 1) * span + S::LANES {
            // SAFETY: LANES rows, `span` floats apart, of LANES floats lie in `x`.
            unsafe { simd.transpose(x.as_ptr().add(first).cast(), 4 * span, columns.as_mut_ptr()) };
            for i in 0..S::LANES.min(span - first) {
                let place = layout.steps[first + i] * S::LANES;
                for (to, from) in to[place..place + S::LANES].iter_mut().zip(&columns[i * S::LANES..]) {
                    *to = f32::from_bits(*from);
                }
            }
        } else {
            for (lane, values) in x.chunks(span).enumerate().take(S::LANES) {
                for (i, value) in values.iter().enumerate().skip(first).take(S::LANES) {
                    to[layout.steps[i] * S::LANES + lane] = *value;
                }
            }
        }
    }
}

/// `y = x W^T` for some rows of the matrix.
pub(crate) struct GemvDot<'a, U> {
    pub(crate) isa: Isa,
    /// Made by [`Arrange`] for this matrix, which was checked.
    pub(crate) x: &'a Arranged,
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) units: U,
    /// All rows of the output, and its columns for some rows of the matrix.
    pub(crate) out: Rectangle<'a, f32>,
}

impl<U: Units> GemvDot<'_, U> {
    /// Multiplies at most `M` rows of activations, from row `first`, with all rows; gives how many.
    ///
    /// A part of the columns is gone through for some groups of rows before the next part, so that the activations stay in
    /// the first-level cache. Where there are fewer rows of activations than `M`, the last one is multiplied again.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    fn group<S: Simd, const M: usize, const ROWS: usize>(&mut self, simd: S, first: usize) -> usize {
        let (isa, matrix, spread) = (self.isa, self.matrix, self.x.spread);
        let columns = 0..matrix.k;
        let inputs: [usize; M] = std::array::from_fn(|m| (first + m).min(self.x.m - 1));
        let numbers = Numbers::new(spread, Per::Shared, &columns);
        let biased = Numbers::new(spread, Per::Number, &columns);
        let given = matrix.biases.as_ref().filter(|_| !U::DECODED);
        let mut scratch = [Vec::new(), Vec::new()];
        let reader = Reader::new(simd, &numbers);
        let mut decoded = Scratch([0.0; MOST_ROWS * STRIDE]);
        let none = RowGroup { rows: [0; ROWS], scales: [std::ptr::null(); ROWS], sums: [[simd.splat(0.0); M]; ROWS] };
        let mut groups: [RowGroup<S, M, ROWS>; GROUPS] = [none; GROUPS];
        let elements = unit::<S, U>();
        let part_columns = if U::DECODED { CHUNK } else { (RESIDENT / M / elements).max(1) * elements };
        let rows = self.out.columns();
        for block in rows.clone().step_by(GROUPS * ROWS) {
            let end = rows.end.min(block + GROUPS * ROWS);
            let count = (end - block).div_ceil(ROWS);
            let [scales, biases] = &mut scratch;
            let scales = (!U::DECODED).then(|| numbers.rows(isa, &matrix.scales, block..end, scales));
            let biases = given.map(|given| biased.rows(isa, given, block..end, biases));
            if !U::DECODED {
                // The next rows' numbers, which are too few at a time for the hardware to learn their stream.
                let next =
                    end * matrix.k / matrix.block..((2 * end - block).min(matrix.n) * matrix.k).div_ceil(matrix.block);
                for numbers in [Some(&matrix.scales), given].into_iter().flatten() {
                    for line in numbers.stored(next.clone()).chunks(LINE) {
                        simd.prefetch(line.as_ptr());
                    }
                }
            }
            for g in 0..count {
                let group = &mut groups[g];
                *group = none;
                for r in 0..ROWS {
                    group.rows[r] = (block + g * ROWS + r).min(rows.end - 1);
                    if let Some(scales) = scales {
                        group.scales[r] = scales.row(group.rows[r] - block);
                    }
                }
            }
            for start in columns.clone().step_by(part_columns) {
                let part = start..columns.end.min(start + part_columns);
                for group in &mut groups[..count] {
                    let part = match self.units.source() {
                        Source::Stored(bytes) => {
                            let row_bytes = columns.end * U::BITS / 8;
                            let starts = group.rows.map(|row| row * row_bytes + start * U::BITS / 8);
                            Part {
                                from: starts.map(|start| bytes[start..].as_ptr()),
                                // The last row is the one with the fewest bytes behind it.
                                readable: bytes.len() - starts[ROWS - 1],
                                columns: part.clone(),
                                ahead: ROWS * row_bytes * AHEAD.div_ceil(ROWS * part.len() * U::BITS / 8 + 1),
                            }
                        }
                        Source::Decode(decoder) => {
                            for (r, out) in decoded.0.chunks_exact_mut(STRIDE).enumerate().take(ROWS) {
                                let from = group.rows[r] * columns.end + start;
                                decoder.decode(isa, from, &mut out[..part.len()], ROWS * columns.end);
                                // Zeros, lest what was there before is no number.
                                let end = part.len().next_multiple_of(S::LANES);
                                out[part.len()..end].fill(0.0);
                            }
                            Part {
                                from: std::array::from_fn(|r| decoded.0[r * STRIDE..].as_ptr().cast()),
                                readable: 4 * STRIDE,
                                columns: part.start..part.end.next_multiple_of(S::LANES),
                                ahead: 0,
                            }
                        }
                    };
                    // SAFETY: the rows lie in the matrix, the numbers are those of its scales, and of what is decoded whole
                    // vectors were written.
                    unsafe { self.products(simd, reader, group, inputs, part) };
                }
            }
            for group in &mut groups[..count] {
                if let Some(biases) = biases {
                    let count = spread.count(&columns);
                    for r in 0..ROWS {
                        let biases = biases.row(group.rows[r] - block);
                        let mut sums = group.sums[r];
                        for i in (0..count).step_by(S::LANES) {
                            // SAFETY: there are `count` biases, and the sums are padded to whole vectors.
                            let bias = unsafe { simd.load_some(biases.add(i), S::LANES.min(count - i)) };
                            for m in 0..M {
                                let x = &self.x.sums[inputs[m] * self.x.sums_stride + i..];
                                // SAFETY: as above.
                                sums[m] = simd.fma(bias, unsafe { simd.load(x.as_ptr()) }, sums[m]);
                            }
                        }
                        group.sums[r] = sums;
                    }
                }
                for m in 0..M {
                    let out = self.out.row(inputs[m]);
                    for r in 0..ROWS {
                        out[group.rows[r] - rows.start] = simd.sum(group.sums[r][m]);
                    }
                }
            }
        }
        M.min(self.x.m - first)
    }

    /// Adds the scaled products of a part of a group's columns, which starts with a unit, with rows of activations to its sums.
    ///
    /// # Safety
    /// The rows lie in the matrix, and their scales are those of all its columns.
    #[inline(always)]
    unsafe fn products<S: Simd, const M: usize, const ROWS: usize>(
        &self,
        simd: S,
        reader: Reader<S::I>,
        group: &mut RowGroup<S, M, ROWS>,
        inputs: [usize; M],
        part: Part<ROWS>,
    ) {
        let ready = self.units.ready(simd);
        let (elements, size) = (unit::<S, U>(), unit_bytes::<S, U>());
        let Part { mut from, readable, columns, ahead } = part;
        let units = columns.len().div_ceil(elements);
        let shared = if U::DECODED { units } else { self.x.spread.shared() };
        let before = if U::DECODED { 0 } else { columns.start / elements };
        let x: [*const f32; M] = std::array::from_fn(|m| {
            self.x.values.as_ptr().wrapping_add(self.x.first + inputs[m] * self.x.stride + columns.start)
        });
        let mut sums = group.sums;
        let mut products = [[simd.splat(0.0); M]; ROWS];
        let mut copies: [[u8; TAIL + SLACK]; ROWS];
        // Units that may be read where they are: whole ones, with the slack behind them.
        let mut end = (columns.len() / elements).min(readable.saturating_sub(SLACK) / size);
        let (mut at, mut segment, mut left) = (0, before / shared, shared - before % shared);
        // Where each unit has its own scales, and there are registers for two sets of sums, which would not stay in them below.
        if !U::DECODED && shared == 1 && M <= 2 {
            while at < end {
                let mut products = [[simd.splat(0.0); M]; ROWS];
                // SAFETY: as below.
                unsafe {
                    let from: [*const u8; ROWS] = std::array::from_fn(|r| from[r].wrapping_add(at * size));
                    if at * size % LINE < size {
                        for from in from {
                            simd.prefetch(from.wrapping_add(ahead));
                        }
                    }
                    let x: [*const f32; M] = std::array::from_fn(|m| x[m].wrapping_add(at * elements));
                    add_unit::<S, U, M, ROWS>(simd, ready, from, x, &mut products);
                    for r in 0..ROWS {
                        let scale = reader.read(simd, group.scales[r], segment);
                        for m in 0..M {
                            sums[r][m] = simd.fma(products[r][m], scale, sums[r][m]);
                        }
                    }
                }
                at += 1;
                segment += 1;
            }
        }
        loop {
            while at < end {
                // SAFETY: the unit and its slack are readable, as many activations are, and the scales are the segment's.
                unsafe {
                    let from: [*const u8; ROWS] = std::array::from_fn(|r| from[r].wrapping_add(at * size));
                    if ahead > 0 && at * size % LINE < size {
                        // The next group's codes: a row is too short for the hardware to learn its stream.
                        for from in from {
                            simd.prefetch(from.wrapping_add(ahead));
                        }
                    }
                    let x: [*const f32; M] = std::array::from_fn(|m| x[m].wrapping_add(at * elements));
                    add_unit::<S, U, M, ROWS>(simd, ready, from, x, &mut products);
                    at += 1;
                    left -= 1;
                    if left > 0 && at < units {
                        continue;
                    }
                    for r in 0..ROWS {
                        let scale =
                            if U::DECODED { simd.splat(1.0) } else { reader.read(simd, group.scales[r], segment) };
                        for m in 0..M {
                            let (product, sum) = (products[r][m], sums[r][m]);
                            sums[r][m] =
                                if U::DECODED { simd.add(product, sum) } else { simd.fma(product, scale, sum) };
                            products[r][m] = simd.splat(0.0);
                        }
                    }
                }
                segment += 1;
                left = shared;
            }
            if at == units {
                break;
            }
            let len = (columns.len() - at * elements) * U::BITS / 8;
            copies = [[0; TAIL + SLACK]; ROWS];
            for (copy, from) in copies.iter_mut().zip(&mut from) {
                // SAFETY: the spans lie in the row, and are at most [`TAIL`] bytes.
                unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(at * size), copy.as_mut_ptr(), len) };
                *from = copy.as_ptr().wrapping_sub(at * size);
            }
            end = units;
        }
        group.sums = sums;
    }
}

/// Rows of the matrix that are multiplied side by side.
#[derive(Clone, Copy)]
struct RowGroup<S: Simd, const M: usize, const ROWS: usize> {
    rows: [usize; ROWS],
    scales: [*const f32; ROWS],
    sums: [[S::F; M]; ROWS],
}

/// Columns of a group of rows, as they are read.
struct Part<const ROWS: usize> {
    from: [*const u8; ROWS],
    /// Bytes that may be read from the last of them.
    readable: usize,
    columns: Range<usize>,
    /// Bytes from a row to that of the next group, or 0.
    ahead: usize,
}

/// Adds the products of one unit of each row with the activations.
///
/// # Safety
/// A unit and its slack are readable at each `from`, and as many floats at each `x`.
#[inline(always)]
unsafe fn add_unit<S: Simd, U: Units, const M: usize, const ROWS: usize>(
    simd: S,
    ready: U::Ready<S>,
    from: [*const u8; ROWS],
    x: [*const f32; M],
    products: &mut [[S::F; M]; ROWS],
) {
    // Written out, lest the compiler keep a loop, whose shifts and places it would not know.
    macro_rules! steps {
        ($first:ident: $($step:literal)*) => {
            $(if $step < U::SPAN {
                // SAFETY: the caller's promise.
                unsafe { add_step::<S, U, M, ROWS>(simd, ready, from, x, products, $first + $step) };
            })*
        };
    }
    for first in (0..U::SPAN).step_by(8) {
        steps!(first: 0 1 2 3 4 5 6 7);
    }
}

/// One step of [`add_unit`].
///
/// # Safety
/// As for [`add_unit`].
#[inline(always)]
unsafe fn add_step<S: Simd, U: Units, const M: usize, const ROWS: usize>(
    simd: S,
    ready: U::Ready<S>,
    from: [*const u8; ROWS],
    x: [*const f32; M],
    products: &mut [[S::F; M]; ROWS],
    step: usize,
) {
    let mut inputs = [simd.splat(0.0); M];
    for m in 0..M {
        // SAFETY: the caller's promise.
        inputs[m] = unsafe { simd.load(x[m].add(step * S::LANES)) };
    }
    for r in 0..ROWS {
        // SAFETY: the caller's promise.
        let values = unsafe { U::values(ready, simd, from[r], step) };
        for m in 0..M {
            products[r][m] = simd.fma(values, inputs[m], products[r][m]);
        }
    }
}

impl<U: Units> Kernel for GemvDot<'_, U> {
    type Output = ();
    /// The portable reference has no stored units.
    const PORTABLE: bool = U::DECODED;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut first = 0;
        while first < self.x.m {
            let left = self.x.m - first;
            first += match left {
                1 => self.group::<S, 1, MOST_ROWS>(simd, first),
                2 => self.group::<S, 2, MOST_ROWS>(simd, first),
                // One group of many is less work than two: what is decoded serves all of it.
                7.. if S::LANES == 16 => self.group::<S, 8, 2>(simd, first),
                7.. => self.group::<S, 8, 1>(simd, first),
                // Sixteen sums at a time leave no room in fewer registers.
                _ if S::LANES == 16 => self.group::<S, 4, MOST_ROWS>(simd, first),
                _ => self.group::<S, 4, 2>(simd, first),
            }
        }
    }
}
