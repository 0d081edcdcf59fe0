//! `y = x W^T` with few rows of activations, from the codes.
//!
//! Per block, `sum(x * (s * c + b))` is `s * sum(x * c) + b * sum(x)`: the inner loop knows codes only, and the sums of
//! `x` are taken once for all rows of the matrix.

use std::ops::Range;

use crate::{
    Isa, Matrix,
    scales::{Numbers, Reader, Spread, row},
    simd::{Kernel, SLACK, Simd},
    unit::{Source, Units, unit, unit_bytes},
};

/// Rows of activations that are multiplied at a time; more would not stay in the registers.
const GROUP: usize = 4;

/// Rows of the matrix that are multiplied side by side, at most.
const MOST_ROWS: usize = 4;

/// Columns that are decoded at a time; those of a group of rows stay in the first-level cache.
const CHUNK: usize = 960;

/// Floats from row to row of what is decoded: off a power of two, or the rows would share cache sets.
const STRIDE: usize = CHUNK + 16;

/// Bytes that one prefetch asks for.
const LINE: usize = 64;

#[repr(align(64))]
struct Scratch([f32; MOST_ROWS * STRIDE]);

/// Activations `x: f32[m, k]` in the order in which [`ByRows`] reads them, padded by zeros to whole units.
pub(crate) struct Arranged {
    values: Vec<f32>,
    /// Floats from row to row.
    stride: usize,
    /// The sum over each block, or span, that a bias is multiplied with, padded to whole vectors.
    sums: Vec<f32>,
    sums_stride: usize,
    m: usize,
}

/// Makes the activations for [`ByRows`].
pub(crate) struct Arrange<'a, U> {
    pub(crate) x: &'a [f32],
    pub(crate) m: usize,
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) units: U,
}

impl<U: Units> Kernel for Arrange<'_, U> {
    type Output = Option<Arranged>;

    /// `None` where rows or blocks do not fit whole spans.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Option<Arranged> {
        let Self { x, m, matrix, units } = self;
        let k = matrix.k;
        let spread = Spread::of::<S, U>(matrix)?;
        let stride = k.next_multiple_of(unit::<S, U>());
        let mut values = vec![0.0; m * stride];
        for (x, to) in x.chunks_exact(k).zip(values.chunks_exact_mut(stride)) {
            for (at, to) in (0..k).step_by(unit::<S, U>()).zip(to.chunks_exact_mut(unit::<S, U>())) {
                arrange_unit(simd, units, &x[at..], to);
            }
        }
        let mut sums = Vec::new();
        let mut sums_stride = 0;
        if matrix.biases.is_some() && !U::DECODED {
            let each = if spread == Spread::Each { U::SPAN } else { matrix.block.min(k) };
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
        Some(Arranged { values, stride, sums, sums_stride, m })
    }
}

/// Brings the first unit of `x`, or what there is of it, into the order of its steps.
#[inline(always)]
fn arrange_unit<S: Simd, U: Units>(simd: S, units: U, x: &[f32], to: &mut [f32]) {
    if U::SPAN == 1 {
        let len = x.len().min(S::LANES);
        to[..len].copy_from_slice(&x[..len]);
        return;
    }
    let mut columns = [0_u32; 256];
    for first in (0..U::SPAN).step_by(S::LANES) {
        // The squares that `transpose` reads reach beyond short spans.
        if x.len() >= first + (S::LANES - 1) * U::SPAN + S::LANES {
            // SAFETY: LANES rows, SPAN floats apart, of LANES floats lie in `x`.
            unsafe { simd.transpose(x.as_ptr().add(first).cast(), 4 * U::SPAN, columns.as_mut_ptr()) };
            for i in 0..S::LANES.min(U::SPAN - first) {
                let place = units.step(first + i) * S::LANES;
                for (to, from) in to[place..place + S::LANES].iter_mut().zip(&columns[i * S::LANES..]) {
                    *to = f32::from_bits(*from);
                }
            }
        } else {
            for (lane, span) in x.chunks(U::SPAN).enumerate().take(S::LANES) {
                for (i, value) in span.iter().enumerate().skip(first).take(S::LANES) {
                    to[units.step(i) * S::LANES + lane] = *value;
                }
            }
        }
    }
}

/// `y = x W^T` for some rows of the matrix.
pub(crate) struct ByRows<'a, U> {
    isa: Isa,
    x: &'a Arranged,
    matrix: &'a Matrix<'a>,
    units: U,
    rows: Range<usize>,
    out: *mut f32,
}

impl<'a, U: Units> ByRows<'a, U> {
    /// # Safety
    /// `x` comes from [`Arrange`] for this matrix, which was checked, and columns `rows` of `out: f32[m, n]` belong to
    /// the caller alone.
    pub(crate) unsafe fn new(
        isa: Isa,
        x: &'a Arranged,
        matrix: &'a Matrix<'a>,
        units: U,
        rows: Range<usize>,
        out: *mut f32,
    ) -> Self {
        Self { isa, x, matrix, units, rows, out }
    }

    /// Multiplies `M` rows of activations, from row `first`, with all rows; gives `M`.
    #[inline(always)]
    fn group<S: Simd, const M: usize, const ROWS: usize>(&self, simd: S, first: usize) -> usize {
        let Some(spread) = Spread::of::<S, U>(self.matrix) else { return M };
        let columns = 0..self.matrix.k;
        let (count, more) = spread.lengths::<S, U>(self.matrix, &columns);
        let room = if U::DECODED { 0 } else { count + more };
        let mut scratch = vec![0.0; 2 * ROWS * room];
        let (scales, biases) = scratch.split_at_mut(ROWS * room);
        let reader = Reader::new::<S, U>(simd, spread, self.matrix, &columns);
        let mut decoded = Scratch([0.0; MOST_ROWS * STRIDE]);
        for start in self.rows.clone().step_by(ROWS) {
            let mut group = RowGroup::<S, M, ROWS> {
                rows: std::array::from_fn(|r| (start + r).min(self.rows.end - 1)),
                scales: [Numbers::of(scales); ROWS],
                sums: [[simd.splat(0.0); M]; ROWS],
            };
            if !U::DECODED {
                for r in 0..ROWS {
                    let scratch = &mut scales[r * room..(r + 1) * room];
                    let (matrix, at) = (self.matrix, group.rows[r]);
                    group.scales[r] = row::<S, U>(self.isa, spread, &matrix.scales, matrix, at, &columns, scratch);
                }
            }
            match self.units.source() {
                Source::Stored(bytes) => {
                    let row_bytes = columns.end / U::SPAN * U::BYTES;
                    let starts = group.rows.map(|row| row * row_bytes);
                    let part = Part {
                        from: starts.map(|start| bytes[start..].as_ptr()),
                        // The last row is the one with the fewest bytes behind it.
                        readable: bytes.len() - starts[ROWS - 1],
                        columns: columns.clone(),
                        ahead: ROWS * row_bytes,
                    };
                    // SAFETY: the rows lie in the matrix, and the numbers are those of its scales.
                    unsafe { self.products(simd, &reader, &mut group, first, part) };
                }
                Source::Decode(matrix) => {
                    for start in columns.clone().step_by(CHUNK) {
                        let part = start..columns.end.min(start + CHUNK);
                        for (r, out) in decoded.0.chunks_exact_mut(STRIDE).enumerate().take(ROWS) {
                            matrix.decode(
                                self.isa,
                                group.rows[r] * columns.end + start,
                                &mut out[..part.len()],
                                ROWS * columns.end,
                            );
                            // Zeros, lest what was there before is no number.
                            let end = part.len().next_multiple_of(S::LANES);
                            out[part.len()..end].fill(0.0);
                        }
                        let part = Part {
                            from: std::array::from_fn(|r| decoded.0[r * STRIDE..].as_ptr().cast()),
                            readable: 4 * STRIDE,
                            columns: part.start..part.end.next_multiple_of(S::LANES),
                            ahead: 0,
                        };
                        // SAFETY: as above; whole vectors were written.
                        unsafe { self.products(simd, &reader, &mut group, first, part) };
                    }
                }
            }
            if let Some(numbers) = self.matrix.biases.as_ref().filter(|_| !U::DECODED) {
                for r in 0..ROWS {
                    let at = group.rows[r];
                    let biases = row::<S, U>(self.isa, spread, numbers, self.matrix, at, &columns, biases);
                    for i in (0..count).step_by(S::LANES) {
                        // SAFETY: there are `count` biases, and the sums are padded to whole vectors.
                        let bias = unsafe { simd.load_some(biases.from.add(i), S::LANES.min(count - i)) };
                        for (m, sum) in group.sums[r].iter_mut().enumerate() {
                            // SAFETY: as above.
                            let x =
                                unsafe { simd.load(self.x.sums.as_ptr().add((first + m) * self.x.sums_stride + i)) };
                            *sum = simd.fma(bias, x, *sum);
                        }
                    }
                }
            }
            for (at, sums) in group.rows.into_iter().zip(group.sums) {
                for (m, sum) in sums.into_iter().enumerate() {
                    // SAFETY: the element lies in the output, in a column that is the caller's of `new`.
                    unsafe { *self.out.add((first + m) * self.matrix.n + at) = simd.sum(sum) };
                }
            }
        }
        M
    }

    /// Adds the scaled products of a part of a group's columns with the activations from row `first` to its sums.
    ///
    /// # Safety
    /// The rows lie in the matrix, and their scales are those of all its columns.
    #[inline(always)]
    unsafe fn products<S: Simd, const M: usize, const ROWS: usize>(
        &self,
        simd: S,
        reader: &Reader<S::I>,
        group: &mut RowGroup<S, M, ROWS>,
        first: usize,
        part: Part<ROWS>,
    ) {
        let ready = self.units.ready(simd);
        let (elements, size) = (unit::<S, U>(), unit_bytes::<S, U>());
        let Part { from, readable, columns, ahead } = part;
        let units = columns.len().div_ceil(elements);
        // Units that may be read where they are: whole ones, with the slack behind them.
        let direct = (columns.len() / elements).min(readable.saturating_sub(SLACK) / size);
        let x: [*const f32; M] =
            std::array::from_fn(|m| self.x.values.as_ptr().wrapping_add((first + m) * self.x.stride + columns.start));
        let before = columns.start / elements;
        let mut sums = group.sums;
        // Where each unit has its own scales, which lie as plainly as its codes, and there are registers for two sets of sums.
        let plain = if U::DECODED || M > 2 {
            0
        } else {
            reader.whole(S::LANES, &group.scales).saturating_sub(before).min(direct)
        };
        for at in 0..plain {
            let mut products = [[simd.splat(0.0); M]; ROWS];
            // SAFETY: the units and the activations are readable, and the scales are plain.
            unsafe {
                let from = from.map(|from| from.add(at * size));
                if ahead > 0 && at * size % LINE < size {
                    for from in from {
                        simd.prefetch(from.wrapping_add(ahead));
                    }
                }
                add_unit::<S, U, M, ROWS>(simd, ready, from, x.map(|x| x.add(at * elements)), &mut products);
                for ((sums, products), scales) in sums.iter_mut().zip(products).zip(group.scales) {
                    let scale = reader.read_whole(simd, scales, before + at);
                    for (sum, product) in sums.iter_mut().zip(products) {
                        *sum = simd.fma(product, scale, *sum);
                    }
                }
            }
        }
        let mut at = plain;
        while at < units {
            let (segment, end) = (at, if U::DECODED { units } else { units.min(at + reader.shared()) });
            let mut products = [[simd.splat(0.0); M]; ROWS];
            while at < end.min(direct) {
                // SAFETY: the unit and its slack are readable; the activations have as many units.
                unsafe {
                    let from = from.map(|from| from.add(at * size));
                    if ahead > 0 && at * size % LINE < size {
                        for from in from {
                            // The next group's codes: a row is too short for the hardware to learn its stream.
                            simd.prefetch(from.wrapping_add(ahead));
                        }
                    }
                    add_unit::<S, U, M, ROWS>(simd, ready, from, x.map(|x| x.add(at * elements)), &mut products);
                }
                at += 1;
            }
            while at < end {
                let mut copies = [[0_u8; 64 + SLACK]; ROWS];
                let len = size.min((columns.len() - at * elements) / U::SPAN * U::BYTES);
                for (copy, from) in copies.iter_mut().zip(from) {
                    // SAFETY: the spans lie in the row, and are no more than a unit, at most 64 bytes.
                    unsafe { std::ptr::copy_nonoverlapping(from.add(at * size), copy.as_mut_ptr(), len) };
                }
                // SAFETY: the copies hold a unit and its slack.
                unsafe {
                    let from: [*const u8; ROWS] = std::array::from_fn(|r| copies[r].as_ptr());
                    add_unit::<S, U, M, ROWS>(simd, ready, from, x.map(|x| x.add(at * elements)), &mut products);
                }
                at += 1;
            }
            for ((sums, products), scales) in sums.iter_mut().zip(products).zip(group.scales) {
                if U::DECODED {
                    for (sum, product) in sums.iter_mut().zip(products) {
                        *sum = simd.add(product, *sum);
                    }
                    continue;
                }
                // SAFETY: the caller's promise about the scales.
                let scale = unsafe { reader.read(simd, scales, before + segment) };
                for (sum, product) in sums.iter_mut().zip(products) {
                    *sum = simd.fma(product, scale, *sum);
                }
            }
        }
        group.sums = sums;
    }
}

/// Rows of the matrix that are multiplied side by side.
struct RowGroup<S: Simd, const M: usize, const ROWS: usize> {
    rows: [usize; ROWS],
    scales: [Numbers; ROWS],
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
    for (input, x) in inputs.iter_mut().zip(x) {
        // SAFETY: the caller's promise.
        *input = unsafe { simd.load(x.add(step * S::LANES)) };
    }
    for (from, products) in from.iter().zip(products.iter_mut()) {
        // SAFETY: the caller's promise.
        let values = unsafe { U::values(ready, simd, *from, step) };
        for (input, product) in inputs.iter().zip(products) {
            *product = simd.fma(values, *input, *product);
        }
    }
}

impl<U: Units> Kernel for ByRows<'_, U> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut first = 0;
        while first < self.x.m {
            first += match self.x.m - first {
                1 => self.group::<S, 1, MOST_ROWS>(simd, first),
                2 | 3 => self.group::<S, 2, MOST_ROWS>(simd, first),
                // Sixteen sums at a time leave no room in fewer registers.
                _ if S::LANES == 16 => self.group::<S, GROUP, MOST_ROWS>(simd, first),
                _ => self.group::<S, GROUP, 2>(simd, first),
            }
        }
    }
}
