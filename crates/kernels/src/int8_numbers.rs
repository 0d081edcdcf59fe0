//! Scales and biases of rows of a matrix that go side by side, a row to a lane.

use std::ops::Range;

use crate::{
    Isa, Matrix, Scales,
    simd::{Kernel, Simd, run},
};

/// Rows of a matrix side by side, at most.
pub(crate) const ROWS: usize = 16;

/// The scales of some rows of a matrix, and the biases, run by run: for each run those of each row.
pub(crate) struct Numbers {
    pub(crate) scales: Vec<[f32; ROWS]>,
    /// Nothing if the matrix has none.
    pub(crate) biases: Option<Vec<[f32; ROWS]>>,
    /// The numbers of other types than `f32`, widened.
    widened: Vec<f32>,
}

impl Numbers {
    /// Room for those of rows of so many runs.
    pub(crate) fn new(matrix: &Matrix, runs: usize) -> Self {
        let room = vec![[0.0; ROWS]; runs.next_multiple_of(ROWS)];
        Self { biases: matrix.biases.map(|_| room.clone()), scales: room, widened: Vec::new() }
    }

    /// Reads those of at most [`ROWS`] rows, whose runs lie in these blocks, counted from that of a row's first element.
    pub(crate) fn transpose(&mut self, isa: Isa, matrix: &Matrix, blocks: &[usize], rows: &Range<usize>) {
        let Self { scales, biases, widened } = self;
        transpose(isa, matrix, &matrix.scales, blocks, rows, widened, scales);
        if let (Some(numbers), Some(to)) = (&matrix.biases, biases) {
            transpose(isa, matrix, numbers, blocks, rows, widened, to);
        }
    }
}

/// Writes the scales, or the biases, of some rows.
fn transpose(
    isa: Isa,
    &Matrix { k, block, .. }: &Matrix,
    numbers: &Scales,
    runs: &[usize],
    rows: &Range<usize>,
    widened: &mut Vec<f32>,
    to: &mut [[f32; ROWS]],
) {
    // Several blocks to a row, or several rows to a block.
    let (blocks, shared) = ((k / block).max(1), (block / k).max(1));
    let first = rows.start / shared * blocks;
    let count = (rows.end - 1) / shared * blocks + blocks - first;
    let values = if let Some(values) = numbers.floats() {
        &values[first..first + count]
    } else {
        widened.resize(count, 0.0);
        numbers.widen(isa, first, widened);
        &widened[..]
    };
    run(isa, Transpose { values, runs, blocks, rows: rows.clone(), shared, to });
}

struct Transpose<'a> {
    /// The scales of all blocks of the rows.
    values: &'a [f32],
    /// The block of each run.
    runs: &'a [usize],
    /// The blocks of a row.
    blocks: usize,
    rows: Range<usize>,
    /// Rows that share a block.
    shared: usize,
    to: &'a mut [[f32; ROWS]],
}

impl Kernel for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { values, runs, blocks, rows, shared, to } = self;
        let mut done = 0;
        if rows.len() == S::LANES && shared == 1 && runs.len() == blocks {
            while blocks - done >= S::LANES {
                // SAFETY: as many rows as a vector has lanes have as many scales from run `done` on, and there is room for them.
                unsafe {
                    let to = to[done..][..S::LANES].as_mut_ptr().cast();
                    simd.transpose_to(values[done..].as_ptr().cast(), 4 * blocks, to, ROWS);
                }
                done += S::LANES;
            }
        }
        let begin = rows.start / shared;
        for (lane, row) in rows.enumerate() {
            let values = &values[(row / shared - begin) * blocks..][..blocks];
            for (at, to) in runs.iter().zip(&mut *to).skip(done) {
                to[lane] = values[*at];
            }
        }
    }
}
