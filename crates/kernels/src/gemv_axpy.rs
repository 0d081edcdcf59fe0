//! `y = x W` with few rows of activations, from the codes.

use std::ops::Range;

use crate::{
    Isa, Matrix, Scales,
    output::Rectangle,
    scales::{Granularity, Numbers, Reader, RowNumbers, Spread},
    simd::{Kernel, LINE, SLACK, Simd, prefetch, run},
    unit::{Layout, Source, Units, unit, unit_bytes},
};

/// Rows of activations that are multiplied at a time.
const GROUP: usize = 4;

/// The most columns of one task, whose sums stay in the first-level cache with the codes of some rows; a multiple of every
/// [`Step`].
pub(crate) const MAX_COLUMNS: usize = 1024;

/// The most vectors of columns that are summed at a time.
const WIDEST: usize = 8;

/// Rows of the matrix that are gone through before the next columns.
const ROWS: usize = 16;

/// Floats from row to row of what is decoded: off a power of two, or the rows would share cache sets.
const STRIDE: usize = MAX_COLUMNS + 16;

/// Finds what the first column of a task is a multiple of; `None` where rows or blocks do not fit whole spans.
pub(crate) struct Step<'a>(pub(crate) &'a Matrix<'a>, pub(crate) &'a Layout);

impl Kernel for Step<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Option<usize> {
        let Self(matrix, layout) = self;
        Spread::new(matrix, layout.span, S::LANES).map(|_| S::LANES * layout.span.max(WIDEST))
    }
}

/// `y = x W` for some rows and columns of the matrix, which has a [`Step`] and was checked as well as `x: f32[m, n]`.
pub(crate) struct GemvAxpy<'a, U> {
    pub(crate) isa: Isa,
    pub(crate) x: &'a [f32],
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) units: U,
    pub(crate) layout: &'a Layout,
    /// Rows of the matrix.
    pub(crate) rows: Range<usize>,
    /// A row for each of `x` and at most [`MAX_COLUMNS`] columns, from a multiple of the step on.
    pub(crate) out: Rectangle<'a, f32>,
}

/// Rows of the matrix, as they are read.
struct RowGroup<I> {
    first: usize,
    len: usize,
    /// Where their columns are.
    from: [*const u8; ROWS],
    /// Bytes from a row to one that is asked for, or 0.
    ahead: usize,
    /// None where they are in the values already.
    scales: Option<RowNumbers>,
    reader: Reader<I>,
}

#[repr(align(64))]
struct Sums<const M: usize>([[f32; MAX_COLUMNS]; M]);

impl<U: Units> GemvAxpy<'_, U> {
    /// Multiplies `M` rows of activations, from row `first`; gives `M`.
    #[inline(always)]
    fn group<S: Simd, const M: usize, const WIDTH: usize>(&mut self, simd: S, first: usize) -> usize {
        let Self { isa, matrix, .. } = *self;
        let Matrix { n, k, .. } = *matrix;
        let Some(spread) = Spread::new(matrix, U::SPAN, S::LANES) else { return M };
        let columns = &self.out.columns();
        // Columns of WIDTH vectors, or of a unit, whose vectors may be more.
        let run = S::LANES * U::SPAN.max(WIDTH);
        let units = columns.len().next_multiple_of(run) / unit::<S, U>();
        let numbers = Numbers::new(spread, Granularity::Unit(units), columns);
        let mut scratch = Vec::new();
        let mut biases = Biases::new(matrix, spread, columns, if U::DECODED { 0 } else { M });
        let mut sums = Sums([[0.0; MAX_COLUMNS]; M]);
        // From a cache line on, so that few vectors span two.
        let mut decoded = vec![0.0; if U::DECODED { ROWS * STRIDE + 16 } else { 0 }];
        let aligned = decoded.as_ptr().align_offset(64).min(decoded.len().min(16));
        let decoded = &mut decoded[aligned..];
        let mut copies = Vec::new();
        for start in self.rows.clone().step_by(ROWS) {
            let len = ROWS.min(self.rows.end - start);
            let (from, ahead, reader) = ([std::ptr::null(); ROWS], 0, Reader::new(simd, &numbers));
            let scales = (!U::DECODED).then(|| numbers.rows(isa, &matrix.scales, start..start + len, &mut scratch));
            let mut rows = RowGroup { first: start, len, from, ahead, scales, reader };
            match self.units.source() {
                Source::Stored(bytes) => {
                    let row_bytes = k * U::BITS / 8;
                    rows.ahead = ROWS * row_bytes;
                    let starts = (start * row_bytes + columns.start * U::BITS / 8, row_bytes);
                    place(bytes, starts, units * unit_bytes::<S, U>() + SLACK, &mut copies, &mut rows.from[..len]);
                }
                Source::Decode(decoder) => {
                    for (r, out) in decoded.chunks_exact_mut(STRIDE).enumerate().take(len) {
                        decoder.decode(isa, (start + r) * k + columns.start, &mut out[..columns.len()], ROWS * k);
                        rows.from[r] = out.as_ptr().cast();
                    }
                }
            }
            for column in (0..columns.len()).step_by(run) {
                for place in (0..run / S::LANES).step_by(WIDTH) {
                    let to = sums.0.as_mut_ptr().cast::<f32>().wrapping_add(column + place * S::LANES);
                    // SAFETY: the run starts in `columns`, so that `sums` has its vectors for each row of x.
                    unsafe { self.add_rows::<S, M, WIDTH>(simd, &rows, first, column, place, to) };
                }
            }
            if !U::DECODED {
                biases.add(isa, matrix, &self.x[first * n..], start..start + len);
            }
        }
        for m in 0..M {
            let out = self.out.rows().start + first + m;
            finish(self.layout, S::LANES, &sums.0[m], &biases, m, columns, self.out.row(out));
        }
        M
    }

    /// Adds rows of the matrix to the sums of `WIDTH` vectors of columns: so many steps of the unit at `column`, counted
    /// from the first of the task, from step `place`, or so many units of fewer steps.
    ///
    /// # Safety
    /// The rows and their numbers reach as far as the run; `sums` points to `WIDTH` vectors for each of `M` rows of x,
    /// from row `first`, [`MAX_COLUMNS`] floats apart.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    unsafe fn add_rows<S: Simd, const M: usize, const WIDTH: usize>(
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
        let at = column / unit::<S, U>();
        // Units that the run is read from.
        let units = WIDTH.div_ceil(U::SPAN);
        let to = |m: usize, i: usize| sums.wrapping_add(m * MAX_COLUMNS + i * S::LANES);
        let mut totals = [[simd.splat(0.0); WIDTH]; M];
        for m in 0..M {
            for i in 0..WIDTH {
                // SAFETY: the caller's promise about `sums`.
                totals[m][i] = unsafe { simd.load(to(m, i)) };
            }
        }
        for r in 0..rows.len {
            let from = rows.from[r].wrapping_add(at * unit_bytes::<S, U>());
            if rows.ahead > 0 {
                // Rows are too far apart for the hardware to see where the next ones are.
                for line in (0..units * unit_bytes::<S, U>()).step_by(LINE) {
                    prefetch(from.wrapping_add(rows.ahead + line));
                }
            }
            let mut factors = [simd.splat(0.0); M];
            for m in 0..M {
                // SAFETY: x has m rows of n floats.
                factors[m] = simd.splat(unsafe { *self.x.get_unchecked((first + m) * n + rows.first + r) });
            }
            let inputs = factors;
            let scales = rows.scales.map_or(std::ptr::null(), |scales| scales.row(r));
            let by_row = !U::DECODED && rows.reader.is_by_row();
            if by_row {
                // SAFETY: the numbers are those of this task's columns.
                let scale = unsafe { rows.reader.read(simd, scales, at) };
                for m in 0..M {
                    factors[m] = simd.mul(scale, inputs[m]);
                }
            }
            for i in 0..WIDTH {
                let (unit, step) = ((place + i) / U::SPAN, (place + i) % U::SPAN);
                if !U::DECODED && !by_row && (i == 0 || step == 0) {
                    // SAFETY: the numbers are those of this task's columns.
                    let scale = unsafe { rows.reader.read(simd, scales, at + unit) };
                    for m in 0..M {
                        factors[m] = simd.mul(scale, inputs[m]);
                    }
                }
                // SAFETY: the units and their slack are readable at `from`.
                let values = unsafe { U::values(ready, simd, from.add(unit * unit_bytes::<S, U>()), step) };
                for m in 0..M {
                    totals[m][i] = simd.fma(values, factors[m], totals[m][i]);
                }
            }
        }
        for m in 0..M {
            for i in 0..WIDTH {
                // SAFETY: the caller's promise about `sums`.
                unsafe { simd.store(to(m, i), totals[m][i]) };
            }
        }
    }
}

/// Finds rows of codes, of which the first starts at `start` and each `stride` bytes behind the one before it, so that
/// `len` bytes may be read from each; what lies beyond a row goes into sums of columns that do not exist.
fn place(bytes: &[u8], (start, stride): (usize, usize), len: usize, copies: &mut Vec<u8>, rows: &mut [*const u8]) {
    let short = |r: usize| bytes.len() < start + r * stride + len;
    if rows.len().checked_sub(1).is_some_and(short) {
        copies.resize(rows.len() * len, 0);
    }
    // Cut off one after the other: to borrow all of it again would end what the pointers before may be used for.
    let mut rest = &mut copies[..];
    for (r, row) in rows.iter_mut().enumerate() {
        let bytes = &bytes[start + r * stride..];
        *row = bytes.as_ptr();
        if short(r) {
            let (copy, others) = rest.split_at_mut(len);
            rest = others;
            copy[..bytes.len()].copy_from_slice(bytes);
            *row = copy.as_ptr();
        }
    }
}

/// What the biases add to the sums of some columns: for each row of x, one sum for each number of a row of the matrix.
struct Biases<'a> {
    stored: Option<Scales<'a>>,
    numbers: Numbers,
    spread: Spread,
    /// Numbers of a row.
    count: usize,
    sums: Vec<f32>,
    scratch: Vec<f32>,
}

impl<'a> Biases<'a> {
    /// For `m` rows of x; none if that is 0.
    fn new(matrix: &Matrix<'a>, spread: Spread, columns: &Range<usize>, m: usize) -> Self {
        let (stored, count) = (matrix.biases.filter(|_| m > 0), spread.count(columns));
        let numbers = Numbers::new(spread, Granularity::Number, columns);
        let sums = if stored.is_some() { vec![0.0; m * count] } else { Vec::new() };
        Self { stored, numbers, spread, count, sums, scratch: Vec::new() }
    }

    /// Adds the biases of at most [`ROWS`] rows of the matrix, times their columns of `x`, whose rows are `n` floats.
    fn add(&mut self, isa: Isa, matrix: &Matrix, x: &[f32], rows: Range<usize>) {
        let Some(stored) = self.stored else { return };
        let numbers = self.numbers.rows(isa, &stored, rows.clone(), &mut self.scratch);
        let (count, x) = (self.count, &x[rows.start..]);
        run(isa, AddBiases { numbers, rows: rows.len(), count, x, n: matrix.n, sums: &mut self.sums });
    }
}

struct AddBiases<'a> {
    numbers: RowNumbers,
    rows: usize,
    /// Numbers of a row.
    count: usize,
    x: &'a [f32],
    n: usize,
    sums: &'a mut [f32],
}

impl Kernel for AddBiases<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (m, sums) in self.sums.chunks_exact_mut(self.count).enumerate() {
            for r in 0..self.rows {
                // SAFETY: there are `count` of each row.
                let numbers = unsafe { std::slice::from_raw_parts(self.numbers.row(r), self.count) };
                let x = self.x[m * self.n + r];
                for (sum, bias) in sums.iter_mut().zip(numbers) {
                    *sum += x * bias;
                }
            }
        }
    }
}

/// Writes the sums, which lie in the order in which they are taken, and those of the biases in the order of the columns.
fn finish(
    layout: &Layout,
    lanes: usize,
    sums: &[f32],
    biases: &Biases,
    m: usize,
    columns: &Range<usize>,
    out: &mut [f32],
) {
    if layout.span == 1 && biases.stored.is_none() {
        return out.copy_from_slice(&sums[..out.len()]);
    }
    let unit = lanes * layout.span;
    for (within, out) in out.iter_mut().enumerate() {
        let (base, at) = (within / unit * unit, within % unit);
        *out = sums[base + layout.steps[at % layout.span] * lanes + at / layout.span];
        if biases.stored.is_some() {
            *out += biases.sums[m * biases.count + biases.spread.number(columns, columns.start + within)];
        }
    }
}

impl<U: Units> Kernel for GemvAxpy<'_, U> {
    type Output = ();
    /// The portable reference has no stored units.
    const PORTABLE: bool = U::DECODED;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let (rows, mut first) = (self.out.rows().len(), 0);
        while first < rows {
            first += match rows - first {
                1 => self.group::<S, 1, WIDEST>(simd, first),
                2 | 3 => self.group::<S, 2, WIDEST>(simd, first),
                _ => self.group::<S, GROUP, 4>(simd, first),
            }
        }
    }
}
