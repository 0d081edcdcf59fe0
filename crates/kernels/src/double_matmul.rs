//! Products of dense matrices in double precision: one plain loop, in blocks that stay in the caches.

use std::cell::Cell;

use crate::{
    Dense, Factors, Isa, KernelError, Operand,
    dense_matmul::check,
    factors::scale,
    machine::{Machine, threads_for},
    output::{Output, Rectangle},
    simd::{Kernel, Simd, run},
    threads,
};

/// Rows and columns of what is summed in registers.
const ROWS: usize = 6;
const COLUMNS: usize = 8;

/// Steps of the sum that are copied at a time.
const DEPTH: usize = 256;

/// Rows of a task, whole tiles; their copy is half of a usual second-level cache.
const TASK_ROWS: usize = 20 * ROWS;

/// Columns of a task.
const TASK_COLUMNS: usize = 32 * COLUMNS;

/// [`dense_matmul`](crate::dense_matmul()) in double precision, at about a half of what the machine could do.
///
/// # Errors
/// Sizes that do not fit each other, or the lengths.
pub fn double_matmul(
    a: Operand<f64>,
    b: Operand<f64>,
    out: Dense<&mut [f64]>,
    factors: Factors<f64>,
) -> Result<(), KernelError> {
    check(&a, &b, &out)?;
    let isa = Isa::detect();
    let Dense { values, rows, columns, stride } = out;
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let depth = if factors.alpha == 0.0 { 0 } else { a.columns() };
    // A vector of doubles has half the lanes, and takes half a cycle.
    let threads = threads_for((rows * columns) as f64 * depth as f64 / Machine::from_isa(isa).cycles.lanes);
    let width = threads::share(columns, threads, COLUMNS, TASK_COLUMNS);
    Output::strided(values, rows, columns, stride).for_each(threads, TASK_ROWS, width, &|out| {
        run(isa, Part { a, b, depth, factors, out });
    });
    Ok(())
}

struct Part<'a> {
    a: Operand<'a, f64>,
    b: Operand<'a, f64>,
    depth: usize,
    factors: Factors<f64>,
    out: Rectangle<'a, f64>,
}

/// Parts of both operands, step by step, a strip of rows or columns after the other.
struct Scratch {
    a: Vec<[f64; ROWS]>,
    b: Vec<[f64; COLUMNS]>,
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
}

impl Kernel for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { a, b, depth: whole_depth, factors: Factors { alpha, beta }, mut out } = self;
        let (rows, columns) = (out.rows(), out.columns());
        for row in rows.clone() {
            scale(out.row(row), beta);
        }
        let mut scratch = SCRATCH.take().unwrap_or_else(|| Scratch {
            a: vec![[0.0; ROWS]; DEPTH * TASK_ROWS / ROWS],
            b: vec![[0.0; COLUMNS]; DEPTH],
        });
        for start in (0..whole_depth).step_by(DEPTH) {
            let depth = DEPTH.min(whole_depth - start);
            for (strip, first) in scratch.a.chunks_mut(depth).zip(rows.clone().step_by(ROWS)) {
                copy(&a, first..rows.end, start, strip);
            }
            for column in columns.clone().step_by(COLUMNS) {
                let panel = &mut scratch.b[..depth];
                copy(&b.transposed(), column..columns.end, start, panel);
                for (strip, first) in scratch.a.chunks(depth).zip(rows.clone().step_by(ROWS)) {
                    let sums = multiply::<S>(strip, panel);
                    for (row, sums) in (first..rows.end).zip(sums) {
                        let row = &mut out.row(row)[column - columns.start..];
                        for (value, sum) in row.iter_mut().zip(sums) {
                            *value += alpha * sum;
                        }
                    }
                }
            }
        }
        SCRATCH.set(Some(scratch));
    }
}

/// Copies some steps of the first rows of a range, and zeros where it has fewer.
#[inline(always)]
fn copy<const ROWS: usize>(from: &Operand<f64>, rows: std::ops::Range<usize>, start: usize, to: &mut [[f64; ROWS]]) {
    let (next_row, next_step) = from.strides();
    let values = &from.matrix.values[rows.start * next_row + start * next_step..];
    let count = rows.len().min(ROWS);
    for (step, to) in to.iter_mut().enumerate() {
        for (row, to) in to.iter_mut().enumerate() {
            *to = if row < count { values[row * next_row + step * next_step] } else { 0.0 };
        }
    }
}

/// The products of a strip of rows with one of columns.
#[inline(always)]
fn multiply<S: Simd>(rows: &[[f64; ROWS]], columns: &[[f64; COLUMNS]]) -> [[f64; COLUMNS]; ROWS] {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (row, column) in rows.iter().zip(columns) {
        for (sums, a) in sums.iter_mut().zip(row) {
            for (sum, b) in sums.iter_mut().zip(column) {
                *sum = if S::FUSED { a.mul_add(*b, *sum) } else { *sum + a * b };
            }
        }
    }
    sums
}
