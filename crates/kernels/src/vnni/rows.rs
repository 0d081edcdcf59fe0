//! Few rows of activations against rows of codes where they lie: each code is read once, and no panel is made.
//!
//! Sixteen rows of the matrix go side by side. A vector of codes gives each of them a vector of sums, whose lanes are then
//! added across by turning the sixteen vectors, so that a lane has one row's sum, as in a panel.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use crate::{
    Isa, Matrix, Order,
    int8_numbers::Numbers,
    integers::{self, IntegerProduct, Integers, SIGN, Start, Work},
    machine::{Cycles, Machine},
    output::{Output, Rectangle},
    shape::Shape,
};

/// Rows of the matrix side by side: the lanes of a vector.
const ROWS: usize = 16;

/// Bytes of a vector of codes.
const VECTOR: usize = 64;

/// Whether rows are whole vectors, and each run of elements that share a scale is some vectors, or a half or a quarter of one.
pub(crate) fn takes(product: &IntegerProduct) -> bool {
    let Matrix { k, block, .. } = *product.matrix;
    let each = product.weights.codes.elements(VECTOR);
    let uniform = k.is_multiple_of(block) || block.is_multiple_of(k);
    uniform && k.is_multiple_of(each) && (block.is_multiple_of(each) || 2 * block == each || 4 * block == each)
}

/// The cycles of [`multiply`].
pub(crate) fn cost(work: &Work, machine: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    let Cycles { load, dot, .. } = *machine.cycles;
    // Codes of a byte are one step of the sum, and pairs of them two, which are looked up.
    let (each, step) =
        if work.pairs { (2 * VECTOR, 4.0 * load + 3.0 + 2.0 * dot) } else { (VECTOR, 8.0 * load + 2.0 * dot) };
    let vectors = (columns * depth) as f64 / each as f64;
    // Sixteen vectors of sums are transposed and added, and scaled.
    let ends = columns.div_ceil(ROWS) as f64 * work.runs as f64 * (10.0 + 3.0 * work.numbers);
    // Numbers are widened by vectors.
    (columns * work.runs) as f64 * work.numbers * work.scale.min(1.0) + rows as f64 * (vectors * step + ends)
}

/// Computes all of a product that this module [`takes`], on a machine with VNNI.
pub(crate) fn multiply(product: &IntegerProduct, _: Isa, out: &mut Output<f32>) -> usize {
    let &IntegerProduct { rows, matrix, weights, threads } = product;
    let (k, m) = (matrix.k, rows.units.len());
    let x = &Activations::new(&rows.codes, k, matrix, &weights.codes);
    out.for_each_run(threads, ROWS, &|out| {
        let part = Part { x, units: &rows.units, matrix, codes: &weights.codes };
        // SAFETY: the instructions are there.
        unsafe { part.run(out) };
    });
    m
}

/// The activations in the order in which codes meet them.
struct Activations {
    /// `[m, k]`; of pairs of codes in a byte, those of a vector's even elements and then those of its odd ones.
    codes: Vec<i8>,
    /// For each row of activations and each run.
    starts: Vec<Start>,
    /// The elements of each run.
    runs: Vec<usize>,
    /// The block of each run, counted from that of the row's first element.
    blocks: Vec<usize>,
}

impl Activations {
    fn new(rows: &[i8], k: usize, matrix: &Matrix, weights: &Integers) -> Self {
        let (runs, blocks) = integers::runs(matrix);
        let mut starts = Vec::with_capacity(runs.len() * (rows.len() / k));
        let above = weights.above(128);
        for row in rows.chunks_exact(k) {
            let mut rest = row;
            for &run in &runs {
                let (these, others) = rest.split_at(run);
                starts.push(Start::new(these, above));
                rest = others;
            }
        }
        let mut codes = rows.to_vec();
        if matches!(weights, Integers::Table { .. }) {
            for (to, from) in codes.as_chunks_mut::<128>().0.iter_mut().zip(rows.as_chunks::<128>().0) {
                for i in 0..64 {
                    (to[i], to[64 + i]) = (from[2 * i], from[2 * i + 1]);
                }
            }
        }
        Self { codes, starts, runs, blocks }
    }
}

/// What a task needs to know.
struct Part<'a> {
    x: &'a Activations,
    units: &'a [f32],
    matrix: &'a Matrix<'a>,
    codes: &'a Integers<'a>,
}

impl Part<'_> {
    /// Computes a rectangle of the output.
    ///
    /// # Safety
    /// The machine has VNNI.
    unsafe fn run(&self, mut out: Rectangle<f32>) {
        let Matrix { n, k, .. } = *self.matrix;
        let (bytes, table, first_high) = match *self.codes {
            Integers::Table { bytes, order, values } => {
                (bytes, values.map(|value| value.cast_unsigned() ^ SIGN), order == Order::HighFirst)
            }
            Integers::Bytes { bytes, .. } => (bytes, [0; 16], false),
        };
        let row_bytes = k / self.codes.elements(VECTOR) * VECTOR;
        let runs = self.x.runs.len();
        let mut numbers = Numbers::new(self.matrix, runs);
        let columns = out.columns();
        for first in columns.clone().step_by(ROWS) {
            let count = ROWS.min(columns.end - first);
            let after = [first + ROWS, first + 2 * ROWS].map(|row| columns.end.min(row));
            self.matrix.each_line_of_numbers(after[0]..after[1], ask);
            numbers.transpose(Isa::Avx512, self.matrix, &self.x.blocks, &(first..first + count));
            let group = Group {
                // Rows that are not there are the last one again.
                from: std::array::from_fn(|r| bytes[(first + r).min(n - 1) * row_bytes..][..row_bytes].as_ptr()),
                next: bytes.as_ptr().wrapping_add((first + ROWS) * row_bytes),
                table,
                turned: if self.codes.above(128) == 0 { 0 } else { SIGN },
                runs: &self.x.runs,
                numbers: &numbers,
            };
            for row in out.rows() {
                let x = &self.x.codes[row * k..(row + 1) * k];
                let starts = &self.x.starts[row * runs..(row + 1) * runs];
                let mut sums = [0.0; ROWS];
                // SAFETY: the caller's promise; runs are what [`takes`] says, and fill the rows.
                unsafe {
                    match (self.codes, first_high) {
                        (Integers::Table { .. }, true) => group.sums::<true, true>(x, starts, &mut sums),
                        (Integers::Table { .. }, false) => group.sums::<true, false>(x, starts, &mut sums),
                        (Integers::Bytes { .. }, _) => group.sums::<false, false>(x, starts, &mut sums),
                    }
                }
                for (out, sum) in out.row(row)[first - columns.start..].iter_mut().zip(&sums[..count]) {
                    *out = sum * self.units[row];
                }
            }
        }
    }
}

/// Asks for a line of what is read soon, in the second-level cache: more lines can be on their way there than to the first.
#[inline]
fn ask(from: *const u8) {
    #[allow(unused_unsafe, reason = "Rust 1.91 has the intrinsic unsafe, later ones do not")]
    // SAFETY: a prefetch reads nothing, wherever the address leads.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(from.cast());
    }
}

/// Rows of the matrix side by side.
struct Group<'a> {
    from: [*const u8; ROWS],
    /// Where the codes of the next group begin.
    next: *const u8,
    /// What codes of four bits stand for, plus 128.
    table: [u8; 16],
    /// The bits of codes of eight bits that are turned, which makes unsigned bytes of them.
    turned: u8,
    runs: &'a [usize],
    numbers: &'a Numbers,
}

impl Group<'_> {
    /// The scaled sums of the rows' products with a row of activations: `PAIRS` of codes in a byte, or bytes.
    ///
    /// # Safety
    /// The machine has VNNI. The rows have as many codes as there are activations, which the runs fill; each run is some
    /// vectors, or one of two or four equal parts of a vector.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn sums<const PAIRS: bool, const HIGH_FIRST: bool>(&self, x: &[i8], starts: &[Start], to: &mut [f32; ROWS]) {
        let Numbers { scales, biases, .. } = self.numbers;
        let each = if PAIRS { 2 * VECTOR } else { VECTOR };
        let mut sums = _mm512_setzero_ps();
        let (mut at, mut done) = (0, 0);
        while done < self.runs.len() {
            let (vectors, parts) = ((self.runs[done] / each).max(1), each / self.runs[done]);
            // SAFETY: the vectors lie in the rows and in the activations.
            let quarters = unsafe { self.quarters::<PAIRS, HIGH_FIRST>(x.as_ptr(), at, vectors) };
            at += vectors;
            let mut add_scaled = |total: __m512i| {
                let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(total, _mm512_set1_epi32(starts[done].products)));
                // SAFETY: sixteen scales.
                let scale = unsafe { _mm512_loadu_ps(scales[done].as_ptr()) };
                let mut term = _mm512_mul_ps(sum, scale);
                if let Some(biases) = biases {
                    // SAFETY: sixteen biases.
                    let bias = unsafe { _mm512_loadu_ps(biases[done].as_ptr()) };
                    term = _mm512_add_ps(term, _mm512_mul_ps(_mm512_set1_ps(starts[done].activations), bias));
                }
                sums = _mm512_add_ps(sums, term);
                done += 1;
            };
            let [a, b, c, d] = quarters;
            let (ab, cd) = (_mm512_add_epi32(a, b), _mm512_add_epi32(c, d));
            match parts {
                4 => quarters.into_iter().for_each(add_scaled),
                2 => [ab, cd].into_iter().for_each(add_scaled),
                _ => add_scaled(_mm512_add_epi32(ab, cd)),
            }
        }
        // SAFETY: there is room for sixteen.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), sums) };
    }

    /// Sums of the rows' products over the four quarters of `vectors` vectors, from vector `at` on: lane `r` is row `r`'s.
    ///
    /// # Safety
    /// As for [`sums`](Self::sums); the vectors lie in the rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn quarters<const PAIRS: bool, const HIGH_FIRST: bool>(
        &self,
        x: *const i8,
        at: usize,
        vectors: usize,
    ) -> [__m512i; 4] {
        // SAFETY: an array of 16 bytes.
        let table = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(self.table.as_ptr().cast()) });
        let (low, turned) = (_mm512_set1_epi8(15), _mm512_set1_epi8(self.turned.cast_signed()));
        let mut sums = [_mm512_setzero_si512(); ROWS];
        for vector in at..at + vectors {
            for (r, (sums, from)) in sums.iter_mut().zip(&self.from).enumerate() {
                let from = from.wrapping_add(vector * VECTOR);
                // The next group's codes, in the order of their addresses: a row is too short for the hardware to learn its
                // stream.
                ask(self.next.wrapping_add((vector * ROWS + r) * VECTOR));
                // SAFETY: the caller's promise.
                let (codes, x) =
                    unsafe { (_mm512_loadu_si512(from.cast()), x.add(vector * if PAIRS { 128 } else { 64 })) };
                // SAFETY: as above.
                let input = |i: usize| unsafe { _mm512_loadu_si512(x.add(i * VECTOR).cast()) };
                *sums = if PAIRS {
                    let bottom = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, low));
                    let top = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low));
                    let (even, odd) = if HIGH_FIRST { (top, bottom) } else { (bottom, top) };
                    _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(*sums, even, input(0)), odd, input(1))
                } else {
                    _mm512_dpbusd_epi32(*sums, _mm512_xor_si512(codes, turned), input(0))
                };
            }
        }
        // Pairs of rows, then fours, then all of them.
        let pairs = |i: usize| {
            let (a, b) = (sums[2 * i], sums[2 * i + 1]);
            _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
        };
        let fours = |i: usize| {
            let (a, b) = (pairs(2 * i), pairs(2 * i + 1));
            _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
        };
        let (a, b, c, d) = (fours(0), fours(1), fours(2), fours(3));
        let (first, second) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
        let (third, fourth) = (_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d));
        [
            _mm512_shuffle_i32x4::<0x88>(first, second),
            _mm512_shuffle_i32x4::<0x88>(third, fourth),
            _mm512_shuffle_i32x4::<0xdd>(first, second),
            _mm512_shuffle_i32x4::<0xdd>(third, fourth),
        ]
    }
}
