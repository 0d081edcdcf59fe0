//! A dense matrix times a vector: it takes as long as reading the matrix once.

use crate::{
    Factors, Isa, Operand, Orientation,
    machine::{FROM_MEMORY, threads_for},
    output::{Output, Rectangle},
    simd::{Kernel, Simd, prefetch, run},
    threads,
};

/// Elements of the result of one task; they stay in a first-level cache.
const TASK: usize = 512;

/// Computes `out = alpha * matrix * vector + beta * out`, where `vector` has a single row and `out` a single row or column.
pub(crate) fn multiply(isa: Isa, matrix: Operand, vector: Operand, factors: Factors, out: &mut Output<f32>) {
    let (len, depth) = (matrix.rows(), matrix.columns());
    let (_, step) = vector.strides();
    let spread: Vec<f32>;
    let x = if step == 1 {
        &vector.matrix.values[..depth]
    } else {
        spread = vector.matrix.values.iter().step_by(step.max(1)).copied().collect();
        &spread
    };
    let threads = threads_for(4.0 * (len * depth) as f64 / FROM_MEMORY);
    let share = threads::share(len, threads, 16, TASK);
    let (height, width) = if out.rows() == 1 { (1, share) } else { (share, 1) };
    let is_column = out.rows() > 1;
    out.for_each(threads, height, width, &|out| run(isa, Part { matrix, x, factors, is_column, out }));
}

struct Part<'a> {
    matrix: Operand<'a>,
    x: &'a [f32],
    factors: Factors,
    is_column: bool,
    out: Rectangle<'a, f32>,
}

impl Kernel for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { matrix, x, factors: Factors { alpha, beta }, is_column, mut out } = self;
        let (rows, columns) = (out.rows(), out.columns());
        let (range, step) = if is_column { (rows.clone(), out.stride()) } else { (columns.clone(), 1) };
        let mut sums = [0.0; TASK];
        // SAFETY: the range lies in the result, and `x` is as long as the matrix is deep.
        unsafe {
            match matrix.orientation {
                Orientation::Plain => dots(simd, &matrix, range.start, x, &mut sums[..range.len()]),
                Orientation::Transposed => combine(simd, &matrix, range.start, x, &mut sums, range.len()),
            }
        }
        let first = out.at(rows.start, columns.start);
        for (i, sum) in sums[..range.len()].iter().enumerate() {
            // SAFETY: the element is one of the rectangle's.
            unsafe {
                let out = first.add(i * step);
                *out = if beta == 0.0 { alpha * sum } else { alpha * sum + beta * *out };
            }
        }
    }
}

/// The products of rows that lie in one piece with `x`.
///
/// # Safety
/// The matrix has as many rows from `first` on as there are sums, each as long as `x`.
#[inline(always)]
unsafe fn dots<S: Simd>(simd: S, matrix: &Operand, first: usize, x: &[f32], sums: &mut [f32]) {
    let (fours, rest) = sums.as_chunks_mut::<4>();
    let ones = first + 4 * fours.len();
    for (i, sums) in fours.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { rows(simd, matrix, first + 4 * i, x, sums) };
    }
    for (i, sum) in rest.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { rows(simd, matrix, ones + i, x, std::array::from_mut(sum)) };
    }
}

/// A few rows at a time. A row's sum is taken in the same order beside any others.
///
/// # Safety
/// As for [`dots`].
#[inline(always)]
unsafe fn rows<S: Simd, const ROWS: usize>(simd: S, matrix: &Operand, first: usize, x: &[f32], out: &mut [f32; ROWS]) {
    let (from, stride) = (matrix.at(first, 0), matrix.matrix.stride);
    let mut sums = [[simd.splat(0.0); 2]; ROWS];
    let mut at = 0;
    while at < x.len() {
        for half in 0..2 {
            let place = at + half * S::LANES;
            let left = x.len().saturating_sub(place);
            for (row, sums) in sums.iter_mut().enumerate() {
                let from = from.wrapping_add(row * stride + place);
                // SAFETY: so many floats are left of the row and of `x`.
                unsafe {
                    if left >= S::LANES {
                        sums[half] = simd.fma(simd.load(x.as_ptr().add(place)), simd.load(from), sums[half]);
                    } else if left > 0 {
                        let x = simd.load_some(x.as_ptr().add(place), left);
                        sums[half] = simd.fma(x, simd.load_some(from, left), sums[half]);
                    }
                }
            }
        }
        at += 2 * S::LANES;
    }
    for (out, [even, odd]) in out.iter_mut().zip(sums) {
        *out = simd.sum(simd.add(even, odd));
    }
}

/// Rows of the stored matrix whose multiples are added in one go.
const GO: usize = 4;

/// Rows between one that is read and one that is asked for.
const AHEAD: usize = 8;

/// The products of columns that lie across the rows of the stored matrix: multiples of these rows, added up.
///
/// # Safety
/// The stored matrix has a row for each element of `x`, with `len` elements from `first` on. As many of the sums are zeros.
#[inline(always)]
unsafe fn combine<S: Simd>(simd: S, matrix: &Operand, first: usize, x: &[f32], sums: &mut [f32; TASK], len: usize) {
    let stride = matrix.matrix.stride;
    let (gos, rest) = x.as_chunks::<GO>();
    for (go, x) in gos.iter().enumerate() {
        let from = matrix.at(first, GO * go);
        for at in (0..len).step_by(S::LANES) {
            // SAFETY: the rows have `len` elements; the sums are whole vectors, of which `len` may not fill the last.
            unsafe {
                let to = sums.as_mut_ptr().add(at);
                let mut sum = simd.load(to);
                for (row, x) in x.iter().enumerate() {
                    let from = from.wrapping_add(row * stride + at);
                    prefetch(from.wrapping_add(AHEAD * stride).cast());
                    let values = if len - at >= S::LANES { simd.load(from) } else { simd.load_some(from, len - at) };
                    sum = simd.fma(values, simd.splat(*x), sum);
                }
                simd.store(to, sum);
            }
        }
    }
    for (row, x) in rest.iter().enumerate() {
        let from = matrix.at(first, GO * gos.len() + row);
        for at in (0..len).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let to = sums.as_mut_ptr().add(at);
                let from = from.add(at);
                let values = if len - at >= S::LANES { simd.load(from) } else { simd.load_some(from, len - at) };
                simd.store(to, simd.fma(values, simd.splat(*x), simd.load(to)));
            }
        }
    }
}
