//! Integer products from codes where they lie, by Arm's `smmla`: four sums at a time, of two rows of activations with two rows
//! of the matrix, eight bytes of each.
//!
//! Eight rows of the matrix go side by side, and up to eight of activations. No word is transposed and no sum crosses lanes: two
//! rows' eight bytes are the two halves of a vector.

#[allow(clippy::wildcard_imports)]
use std::arch::aarch64::*;
use std::arch::asm;

use crate::{
    Isa, Matrix, Order,
    int8_numbers::Numbers,
    integers::{self, IntegerProduct, Integers, SIGN, Work},
    machine::{Cycles, Machine},
    output::{Output, Rectangle},
    shape::Shape,
    simd::prefetch,
};

/// Pairs of rows of the matrix side by side.
const PAIRS: usize = 4;

/// Rows of the matrix side by side.
const ROWS: usize = 2 * PAIRS;

/// Rows of activations that are multiplied at a time, at most.
const GROUP: usize = 8;

/// Bytes of a row in a vector.
const HALF: usize = 8;

/// Whether rows, and runs of elements that share a scale, are whole halves of vectors.
pub(crate) fn takes(product: &IntegerProduct) -> bool {
    product.is_whole(HALF)
}

pub(crate) fn cost(work: &Work, machine: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    let Cycles { load, .. } = *machine.cycles;
    // For half a vector of codes: looking up both codes of its bytes, once for a group of rows.
    let (elements, decode, steps) = if work.pairs { (2 * HALF, 0.75, 2.0) } else { (HALF, 0.0, 1.0) };
    // Two ports multiply, and four pairs of rows share what is loaded of two rows of activations.
    let square = 0.25 + load / ROWS as f64;
    let (groups, pairs) = (rows.div_ceil(GROUP) as f64, rows.div_ceil(2) as f64);
    (columns * depth) as f64 / elements as f64 * (groups * (load + decode) + pairs * steps * square)
        + (columns * work.runs) as f64 * work.numbers * (pairs + work.scale.min(1.0))
}

/// Computes all of a product that this module [`takes`], on a machine with `smmla`.
pub(crate) fn multiply(product: &IntegerProduct, isa: Isa, out: &mut Output<f32>) -> usize {
    let &IntegerProduct { rows, matrix, weights, threads } = product;
    let x = &Activations::new(&rows.codes, matrix, &weights.codes);
    out.for_each_run(threads, ROWS, &|out| {
        let part = Part { isa, x, units: &rows.units, matrix, codes: &weights.codes };
        // SAFETY: the instructions are there.
        unsafe { part.run(out) };
    });
    rows.units.len()
}

/// The activations in the order in which codes meet them.
struct Activations {
    /// For each two rows and each half vector of codes the vector that it is multiplied with; two where a byte holds two codes,
    /// for what is in the lower halves of bytes and in the upper ones. The last of an odd number of rows is there twice.
    codes: Vec<[i8; 2 * HALF]>,
    /// For each two rows and each run the sum of the first row's activations, twice, and of the second one's.
    sums: Vec<[i32; 4]>,
    /// Half vectors of codes of each run.
    runs: Vec<usize>,
    /// The block of each run, counted from that of the row's first element.
    blocks: Vec<usize>,
}

impl Activations {
    fn new(rows: &[i8], matrix: &Matrix, weights: &Integers) -> Self {
        let per_half = weights.elements(HALF);
        let (mut runs, blocks) = integers::runs(matrix);
        for run in &mut runs {
            *run /= per_half;
        }
        let mut codes = Vec::with_capacity(rows.len().div_ceil(HALF));
        let mut sums = Vec::with_capacity(runs.len() * rows.len().div_ceil(2 * matrix.k));
        for rows in rows.chunks(2 * matrix.k) {
            let (first, second) = rows.split_at(matrix.k);
            let second = if second.is_empty() { first } else { second };
            let mut at = 0;
            for run in &runs {
                let end = at + run * per_half;
                let sum = |row: &[i8]| row[at..end].iter().map(|x| i32::from(*x)).sum();
                let (first, second) = (sum(first), sum(second));
                sums.push([first, first, second, second]);
                at = end;
            }
            for (first, second) in first.chunks_exact(per_half).zip(second.chunks_exact(per_half)) {
                // Every element, or every other one from `from` on.
                let mut push = |from: usize| {
                    let of = |row: &[i8], i: usize| row[from + i * (per_half / HALF)];
                    codes.push(std::array::from_fn(|i| if i < HALF { of(first, i) } else { of(second, i - HALF) }));
                };
                match weights {
                    Integers::Bytes { .. } => push(0),
                    Integers::Table { order: Order::LowFirst, .. } => [0, 1].into_iter().for_each(push),
                    Integers::Table { order: Order::HighFirst, .. } => [1, 0].into_iter().for_each(push),
                }
            }
        }
        Self { codes, sums, runs, blocks }
    }
}

struct Part<'a> {
    isa: Isa,
    x: &'a Activations,
    units: &'a [f32],
    matrix: &'a Matrix<'a>,
    codes: &'a Integers<'a>,
}

impl Part<'_> {
    /// Computes a rectangle of the output, which has all rows.
    ///
    /// # Safety
    /// The machine has `smmla`.
    unsafe fn run(&self, mut out: Rectangle<f32>) {
        let Matrix { n, .. } = *self.matrix;
        let (bytes, table) = match self.codes {
            Integers::Table { bytes, values, .. } => (bytes, Some(values)),
            Integers::Bytes { bytes, .. } => (bytes, None),
        };
        let runs = self.x.runs.len();
        let halves = self.x.runs.iter().sum::<usize>();
        let row_bytes = halves * HALF;
        let mut numbers = Numbers::new(self.matrix, runs);
        let columns = out.columns();
        for first in columns.clone().step_by(ROWS) {
            let count = ROWS.min(columns.end - first);
            numbers.transpose(self.isa, self.matrix, &self.x.blocks, &(first..first + count));
            let group = Group {
                // Rows that are not there are the last one again.
                from: std::array::from_fn(|r| bytes[(first + r).min(n - 1) * row_bytes..][..row_bytes].as_ptr()),
                ahead: ROWS * row_bytes,
                above: self.codes.above(0),
                flips_sign: self.codes.flips_sign(0),
                runs: &self.x.runs,
                numbers: &numbers,
            };
            for row in (0..self.units.len()).step_by(GROUP) {
                let rows = GROUP.min(self.units.len() - row);
                let each = if table.is_some() { 2 * halves } else { halves };
                let pairs = rows.div_ceil(2);
                let x = Rows {
                    codes: &self.x.codes[row / 2 * each..][..pairs * each],
                    sums: &self.x.sums[row / 2 * runs..][..pairs * runs],
                };
                let mut sums = [[0.0; ROWS]; GROUP];
                // SAFETY: the caller's promise, and there are as many vectors of activations as codes meet in each pair of rows.
                unsafe {
                    match (table, pairs) {
                        (None, 1) => group.sums::<1>(&x, &mut sums),
                        (None, 2) => group.sums::<2>(&x, &mut sums),
                        (None, 3) => group.sums::<3>(&x, &mut sums),
                        (None, _) => group.sums::<4>(&x, &mut sums),
                        (Some(table), 1) => group.looked_up::<1>(table, &x, &mut sums),
                        (Some(table), 2) => group.looked_up::<2>(table, &x, &mut sums),
                        (Some(table), 3) => group.looked_up::<3>(table, &x, &mut sums),
                        (Some(table), _) => group.looked_up::<4>(table, &x, &mut sums),
                    }
                }
                for (row, sums) in (row..row + rows).zip(&sums) {
                    for (out, sum) in out.row(row)[first - columns.start..].iter_mut().zip(&sums[..count]) {
                        *out = sum * self.units[row];
                    }
                }
            }
        }
    }
}

/// Sums of two rows of activations, one behind the other, with two rows of the matrix, for all pairs of both.
type Squares<T, const X: usize> = [[T; PAIRS]; X];

/// Some pairs of rows of [`Activations`].
struct Rows<'a> {
    codes: &'a [[i8; 2 * HALF]],
    sums: &'a [[i32; 4]],
}

/// Rows of the matrix side by side.
struct Group<'a> {
    from: [*const u8; ROWS],
    /// Bytes from a row to that of the next group.
    ahead: usize,
    /// What weights are above what they stand for, and whether bytes have their [`SIGN`] flipped.
    above: i32,
    flips_sign: bool,
    /// Half vectors of each run.
    runs: &'a [usize],
    numbers: &'a Numbers,
}

impl Group<'_> {
    /// The scaled sums of the rows of bytes with `X` pairs of rows of activations.
    ///
    /// # Safety
    /// The machine has `smmla`. Each row has as many half vectors as all runs, and `x` a vector for each of them and each pair.
    #[target_feature(enable = "i8mm")]
    unsafe fn sums<const X: usize>(&self, x: &Rows, to: &mut [[f32; ROWS]; GROUP]) {
        let row_bytes = x.codes.len() / X;
        // SAFETY: every AArch64 machine has NEON.
        let flip = unsafe { vdupq_n_u8(if self.flips_sign { SIGN } else { 0 }) };
        // SAFETY: the caller's promise.
        let step = |at: usize, sums: &mut Squares<int32x4_t, X>| unsafe {
            let rows = self.load(at).map(|row| vreinterpretq_s8_u8(veorq_u8(row, flip)));
            multiply_squares(sums, rows, x.codes.as_ptr().add(at), row_bytes);
        };
        self.scaled(step, x.sums, to);
    }

    /// The same of rows of codes of four bits, whose weights are looked up: two vectors of activations for each half vector.
    ///
    /// # Safety
    /// As for [`sums`](Self::sums).
    #[target_feature(enable = "i8mm")]
    unsafe fn looked_up<const X: usize>(&self, table: &[i8; 16], x: &Rows, to: &mut [[f32; ROWS]; GROUP]) {
        let row_bytes = x.codes.len() / X;
        // SAFETY: there are 16 bytes.
        let table = unsafe { vld1q_s8(table.as_ptr()) };
        // SAFETY: the caller's promise.
        let step = |at: usize, sums: &mut Squares<int32x4_t, X>| unsafe {
            let rows = self.load(at);
            let low = rows.map(|codes| vqtbl1q_s8(table, vandq_u8(codes, vdupq_n_u8(15))));
            multiply_squares(sums, low, x.codes.as_ptr().add(2 * at), row_bytes);
            let high = rows.map(|codes| vqtbl1q_s8(table, vshrq_n_u8::<4>(codes)));
            multiply_squares(sums, high, x.codes.as_ptr().add(2 * at + 1), row_bytes);
        };
        self.scaled(step, x.sums, to);
    }

    /// Half vector `at` of each two rows.
    ///
    /// # Safety
    /// The rows have it.
    #[inline(always)]
    unsafe fn load(&self, at: usize) -> [uint8x16_t; PAIRS] {
        std::array::from_fn(|pair| {
            // SAFETY: the caller's promise; every AArch64 machine has NEON.
            let [first, second] = [0, 1].map(|row| unsafe { vld1_u8(self.from[2 * pair + row].add(at * HALF)) });
            // SAFETY: every AArch64 machine has NEON.
            unsafe { vcombine_u8(first, second) }
        })
    }

    /// Sums each run by steps of half vectors, scales the sums and adds them up.
    #[inline(always)]
    fn scaled<const X: usize>(
        &self,
        step: impl Fn(usize, &mut Squares<int32x4_t, X>),
        x_sums: &[[i32; 4]],
        to: &mut [[f32; ROWS]; GROUP],
    ) {
        let Numbers { scales, biases, .. } = self.numbers;
        // SAFETY: every AArch64 machine has NEON.
        let mut totals: Squares<float32x4_t, X> = [[unsafe { vdupq_n_f32(0.0) }; PAIRS]; X];
        let mut at = 0;
        for (r, &run) in self.runs.iter().enumerate() {
            let x_sums: [int32x4_t; X] = std::array::from_fn(|i| {
                // SAFETY: an array of four; every AArch64 machine has NEON.
                unsafe { vld1q_s32(x_sums[i * self.runs.len() + r].as_ptr()) }
            });
            // SAFETY: every AArch64 machine has NEON.
            let mut sums: Squares<int32x4_t, X> = x_sums.map(|sum| [unsafe { vmulq_n_s32(sum, -self.above) }; PAIRS]);
            for half in at..at + run {
                // The next group's codes, a line of each row: a row is too short for the hardware to learn its stream.
                if half % 8 == 0 {
                    for from in self.from {
                        prefetch(from.wrapping_add(self.ahead + half * HALF));
                    }
                }
                step(half, &mut sums);
            }
            at += run;
            for ((totals, sums), x_sum) in totals.iter_mut().zip(sums).zip(x_sums) {
                for (pair, (total, sum)) in totals.iter_mut().zip(sums).enumerate() {
                    // SAFETY: there are 16 numbers, two for each pair; every AArch64 machine has NEON.
                    unsafe {
                        let scale = vld1_f32(scales[r].as_ptr().add(2 * pair));
                        let mut term = vmulq_f32(vcvtq_f32_s32(sum), vcombine_f32(scale, scale));
                        if let Some(biases) = biases {
                            let bias = vld1_f32(biases[r].as_ptr().add(2 * pair));
                            term = vaddq_f32(term, vmulq_f32(vcvtq_f32_s32(x_sum), vcombine_f32(bias, bias)));
                        }
                        *total = vaddq_f32(*total, term);
                    }
                }
            }
        }
        for (rows, totals) in to.as_chunks_mut::<2>().0.iter_mut().zip(totals) {
            for (pair, total) in totals.into_iter().enumerate() {
                // SAFETY: each row has room for two sums of each pair; every AArch64 machine has NEON.
                unsafe {
                    vst1_f32(rows[0].as_mut_ptr().add(2 * pair), vget_low_f32(total));
                    vst1_f32(rows[1].as_mut_ptr().add(2 * pair), vget_high_f32(total));
                }
            }
        }
    }
}

/// Adds the products of pairs of rows of the matrix with a vector of each pair of rows of activations, `each` vectors apart.
///
/// # Safety
/// The machine has `smmla`, what this is inlined into is compiled for it, and the vectors are readable.
#[inline(always)]
unsafe fn multiply_squares<const X: usize>(
    sums: &mut Squares<int32x4_t, X>,
    rows: [int8x16_t; PAIRS],
    x: *const [i8; 2 * HALF],
    each: usize,
) {
    for (i, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let x = unsafe { vld1q_s8(x.add(i * each).cast()) };
        for (sum, row) in sums.iter_mut().zip(rows) {
            // SAFETY: the caller's promise.
            *sum = unsafe { smmla(*sum, x, row) };
        }
    }
}

/// `vmmlaq_s32`, which Rust does not have for a stable compiler: adds the products of the halves of `a` with those of `b`.
///
/// # Safety
/// The machine has `smmla`, and what this is inlined into is compiled for it.
#[inline(always)]
unsafe fn smmla(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction works on registers alone, and the caller promises that it is there.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
