//! `y = x W` with few rows of activations, from the codes.

use std::ops::Range;

use crate::{
    Isa, Matrix,
    scales::{Numbers, Reader, Spread, row},
    simd::{Kernel, SLACK, Simd},
    unit::{Source, Units, unit, unit_bytes},
};

/// Rows of activations that are multiplied at a time.
const GROUP: usize = 4;

/// The most columns of one task; a multiple of every [`Step`].
pub(crate) const MAX_COLUMNS: usize = 1024;

/// The most vectors of columns that are summed at a time.
const WIDEST: usize = 8;

/// Rows of the matrix that are gone through before the next columns.
const ROWS: usize = 16;

/// Finds what the first column of a task is a multiple of; `None` where rows or blocks do not fit whole spans.
pub(crate) struct Step<'a, U>(pub(crate) &'a Matrix<'a>, pub(crate) U);

impl<U: Units> Kernel for Step<'_, U> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Option<usize> {
        Spread::of::<S, U>(self.0).map(|_| unit::<S, U>().max(WIDEST * S::LANES))
    }
}

/// `y = x W` for some columns of the matrix.
pub(crate) struct ByColumns<'a, U> {
    isa: Isa,
    x: &'a [f32],
    m: usize,
    matrix: &'a Matrix<'a>,
    units: U,
    columns: Range<usize>,
    out: *mut f32,
}

/// How many rows before their use codes are asked for.
const AHEAD: usize = 64;

/// What the rows of a group have in common.
#[derive(Clone, Copy)]
struct RowGroup<'a, I> {
    first: usize,
    len: usize,
    /// Where their columns are, and how many bytes may be read from there.
    from: &'a [(*const u8, usize); ROWS],
    /// Bytes from a row to one that is asked for, or 0.
    ahead: usize,
    scales: &'a [Numbers; ROWS],
    reader: Reader<I>,
    /// Units whose scales may be read without a look at where the row ends.
    plain: usize,
}

impl<I: Copy> RowGroup<'_, I> {
    /// Whether `run` columns from `column` may be read without a look at where their rows end.
    fn is_plain<S: Simd, U: Units>(&self, column: usize, run: usize) -> bool {
        // The last row is the one with the fewest bytes behind it.
        let (_, readable) = self.from[self.len - 1];
        let end = column + run;
        end / U::SPAN * U::BYTES + SLACK <= readable && (U::DECODED || end / unit::<S, U>() <= self.plain)
    }
}

/// Floats from row to row of what is decoded: off a power of two, or the rows would share cache sets.
const STRIDE: usize = MAX_COLUMNS + 16;

#[repr(align(64))]
struct Sums([f32; GROUP * MAX_COLUMNS]);

impl<'a, U: Units> ByColumns<'a, U> {
    /// # Safety
    /// The matrix, which has a [`Step`], was checked as well as `x: f32[m, n]`, `columns` starts with a multiple of the
    /// step, has at most [`MAX_COLUMNS`], and is the caller's alone in `out: f32[m, k]`.
    pub(crate) unsafe fn new(
        isa: Isa,
        x: &'a [f32],
        m: usize,
        matrix: &'a Matrix<'a>,
        units: U,
        columns: Range<usize>,
        out: *mut f32,
    ) -> Self {
        Self { isa, x, m, matrix, units, columns, out }
    }

    /// Multiplies `M` rows of activations, from row `first`; gives `M`.
    #[inline(always)]
    fn group<S: Simd, const M: usize, const WIDTH: usize>(&self, simd: S, first: usize) -> usize {
        let Matrix { n, k, block, .. } = *self.matrix;
        let Some(spread) = Spread::of::<S, U>(self.matrix) else { return M };
        let columns = &self.columns;
        let (count, more) = spread.lengths::<S, U>(self.matrix, columns);
        let room = if U::DECODED { 0 } else { count + more };
        let mut scratch = vec![0.0; (ROWS + 1 + M) * room];
        let (scales, scratch) = scratch.split_at_mut(ROWS * room);
        let (biases, bias_sums) = scratch.split_at_mut(room);
        let reader = Reader::new::<S, U>(simd, spread, self.matrix, columns);
        // Columns of WIDTH vectors, or of a unit, whose vectors may be more.
        let run = if U::SPAN == 1 { WIDTH * S::LANES } else { unit::<S, U>() };
        let mut sums = Sums([0.0; GROUP * MAX_COLUMNS]);
        // From a cache line on, so that few vectors span two.
        let mut decoded = vec![0.0; if U::DECODED { ROWS * STRIDE + 16 } else { 0 }];
        let aligned = decoded.as_ptr().align_offset(64).min(decoded.len().min(16));
        let decoded = &mut decoded[aligned..];
        for start in (0..n).step_by(ROWS) {
            let len = ROWS.min(n - start);
            let mut pointers = [Numbers::of(scales); ROWS];
            for (r, pointer) in pointers.iter_mut().enumerate().take(if U::DECODED { 0 } else { len }) {
                let scratch = &mut scales[r * room..(r + 1) * room];
                let scales = &self.matrix.scales;
                *pointer = row::<S, U>(self.isa, spread, scales, self.matrix, start + r, columns, scratch);
            }
            let mut from = [(std::ptr::null(), 0); ROWS];
            let mut ahead = 0;
            match self.units.source() {
                Source::Stored(bytes) => {
                    let row_bytes = k / U::SPAN * U::BYTES;
                    ahead = AHEAD * row_bytes;
                    for (r, from) in from.iter_mut().enumerate().take(len) {
                        let bytes = &bytes[(start + r) * row_bytes + columns.start / U::SPAN * U::BYTES..];
                        *from = (bytes.as_ptr(), bytes.len());
                    }
                }
                Source::Decode(matrix) => {
                    for (r, out) in decoded.chunks_exact_mut(STRIDE).enumerate().take(len) {
                        matrix.decode(self.isa, (start + r) * k + columns.start, &mut out[..columns.len()], ROWS * k);
                        from[r] = (out.as_ptr().cast(), 4 * STRIDE);
                    }
                }
            }
            let plain = if U::DECODED { 0 } else { reader.whole(S::LANES, &pointers[..len]) };
            let rows = RowGroup { first: start, len, from: &from, ahead, scales: &pointers, reader, plain };
            for column in columns.clone().step_by(run) {
                for place in (0..U::SPAN).step_by(WIDTH) {
                    let to = &mut sums.0[column - columns.start + place * S::LANES..];
                    // SAFETY: the run starts in `columns`, so that `sums` has its vectors for each row of x.
                    unsafe {
                        if rows.is_plain::<S, U>(column - columns.start, run) {
                            self.add_rows::<S, M, WIDTH, true>(simd, &rows, first, column, place, to.as_mut_ptr());
                        } else {
                            self.add_rows::<S, M, WIDTH, false>(simd, &rows, first, column, place, to.as_mut_ptr());
                        }
                    }
                }
            }
            if let Some(numbers) = self.matrix.biases.as_ref().filter(|_| !U::DECODED) {
                for r in start..start + len {
                    let biases = row::<S, U>(self.isa, spread, numbers, self.matrix, r, columns, biases);
                    // SAFETY: there are `count` of them.
                    let biases = unsafe { std::slice::from_raw_parts(biases.from, count) };
                    for (m, sums) in bias_sums.chunks_exact_mut(room).enumerate() {
                        let x = self.x[(first + m) * n + r];
                        for (sum, bias) in sums.iter_mut().zip(biases) {
                            *sum += x * bias;
                        }
                    }
                }
            }
        }
        for m in 0..M {
            let row = &sums.0[m * MAX_COLUMNS..];
            for column in columns.clone() {
                let within = column - columns.start;
                let (base, within_unit) = (within / unit::<S, U>() * unit::<S, U>(), within % unit::<S, U>());
                let (lane, step) = (within_unit / U::SPAN, self.units.step(within_unit % U::SPAN));
                let mut sum = row[base + step * S::LANES + lane];
                if self.matrix.biases.is_some() && !U::DECODED {
                    let number = match spread {
                        Spread::Each => within / U::SPAN,
                        Spread::Units if block.is_multiple_of(k) => 0,
                        _ => column / block - columns.start / block,
                    };
                    sum += bias_sums[m * room + number];
                }
                // SAFETY: the column is the caller's of `new`.
                unsafe { *self.out.add((first + m) * k + column) = sum };
            }
        }
        M
    }

    /// Adds rows of the matrix to the sums of `WIDTH` vectors of columns: so many steps of the unit at `column`, from
    /// step `place`, or so many units of one step. `PLAIN` says that the rows [are](RowGroup::is_plain).
    ///
    /// # Safety
    /// The rows and `column` lie in the matrix; `sums` points to `WIDTH` vectors for each of `M` rows of x, from row
    /// `first`, [`MAX_COLUMNS`] floats apart.
    #[inline(always)]
    unsafe fn add_rows<S: Simd, const M: usize, const WIDTH: usize, const PLAIN: bool>(
        &self,
        simd: S,
        rows: &RowGroup<S::I>,
        first: usize,
        column: usize,
        place: usize,
        sums: *mut f32,
    ) {
        let n = self.matrix.n;
        let ready = self.units.ready(simd);
        let units = if U::SPAN == 1 { WIDTH } else { 1 };
        let size = units * unit_bytes::<S, U>();
        let at = (column - self.columns.start) / unit::<S, U>();
        let to = |m: usize, i: usize| sums.wrapping_add(m * MAX_COLUMNS + i * S::LANES);
        let mut totals = [[simd.splat(0.0); WIDTH]; M];
        for (m, totals) in totals.iter_mut().enumerate() {
            for (i, total) in totals.iter_mut().enumerate() {
                // SAFETY: the caller's promise about `sums`.
                *total = unsafe { simd.load(to(m, i)) };
            }
        }
        let offset = at * unit_bytes::<S, U>();
        let mut copy = [0_u8; 64 * WIDEST + SLACK];
        for r in 0..rows.len {
            let (from, readable) = rows.from[r];
            let mut from = from.wrapping_add(offset);
            if !PLAIN && offset + size + SLACK > readable {
                // What lies beyond the row goes into sums of columns that do not exist.
                let len = size.min(readable - offset);
                // SAFETY: so many bytes are readable, and `copy` has room for more.
                unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), len) };
                from = copy.as_ptr();
            } else if rows.ahead > 0 {
                // Rows are too far apart for the hardware to see where the next ones are.
                simd.prefetch(from.wrapping_add(rows.ahead));
            }
            let mut factors = [simd.splat(0.0); M];
            for (m, factor) in factors.iter_mut().enumerate() {
                // SAFETY: x has m rows of n floats.
                *factor = simd.splat(unsafe { *self.x.get_unchecked((first + m) * n + rows.first + r) });
            }
            let inputs = factors;
            for i in 0..WIDTH {
                let (unit, step) = if U::SPAN == 1 { (i, 0) } else { (0, place + i) };
                if !U::DECODED && step == place {
                    let (reader, numbers) = (&rows.reader, rows.scales[r]);
                    // SAFETY: the numbers are those of this task's columns.
                    let scale = unsafe {
                        if PLAIN && !U::DECODED {
                            reader.read_whole(simd, numbers, at + unit)
                        } else {
                            reader.read(simd, numbers, at + unit)
                        }
                    };
                    for (factor, input) in factors.iter_mut().zip(inputs) {
                        *factor = simd.mul(scale, input);
                    }
                }
                // SAFETY: the units and their slack are readable at `from`.
                let values = unsafe { U::values(ready, simd, from.add(unit * unit_bytes::<S, U>()), step) };
                for (totals, factor) in totals.iter_mut().zip(factors) {
                    totals[i] = simd.fma(values, factor, totals[i]);
                }
            }
        }
        for (m, totals) in totals.into_iter().enumerate() {
            for (i, total) in totals.into_iter().enumerate() {
                // SAFETY: the caller's promise about `sums`.
                unsafe { simd.store(to(m, i), total) };
            }
        }
    }
}

impl<U: Units> Kernel for ByColumns<'_, U> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut first = 0;
        while first < self.m {
            first += match self.m - first {
                1 => self.group::<S, 1, WIDEST>(simd, first),
                2 | 3 => self.group::<S, 2, WIDEST>(simd, first),
                _ => self.group::<S, GROUP, 4>(simd, first),
            }
        }
    }
}
