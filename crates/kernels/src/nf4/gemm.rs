//! The blocked product: panels of decoded weight against a register tile.

use std::{cell::Cell, ops::Range};

use super::{
    matmul::{Orientation, TASK_ROWS},
    panel::{DEPTH, fill_plain, fill_transposed},
    weight::Weight,
};
use crate::simd::{Kernel, Simd, panel_width};

/// Floats between the rows of the copy of `x`: off a power of two, or its rows would share cache sets.
const STRIDE: usize = DEPTH + 16;

/// The widest panel of any instruction set.
const MAX_WIDTH: usize = 32;

/// A rectangle of the output.
pub(super) struct Tile<'a> {
    x: &'a [f32],
    rows: Range<usize>,
    columns: Range<usize>,
    weight: &'a Weight<'a>,
    orientation: Orientation,
    out: *mut f32,
}

impl<'a> Tile<'a> {
    /// # Safety
    /// The lengths of the weight, of `x` and of the output were checked, the rectangle lies in the output and belongs
    /// to the caller alone, it has at most [`TASK_ROWS`] rows, and its first column is a multiple of the panel's width.
    pub(super) unsafe fn new(
        x: &'a [f32],
        rows: Range<usize>,
        columns: Range<usize>,
        weight: &'a Weight<'a>,
        orientation: Orientation,
        out: *mut f32,
    ) -> Self {
        Self { x, rows, columns, weight, orientation, out }
    }
}

/// What a thread keeps between tiles: one panel, and its copy of a part of `x`.
struct Scratch {
    panel: Vec<Line>,
    x: Vec<f32>,
}

/// A cache line, so that no vector of a panel spans two.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through a pointer")] [f32; 16]);

impl Scratch {
    fn new() -> Self {
        Self { panel: vec![Line([0.0; 16]); DEPTH * MAX_WIDTH / 16], x: vec![0.0; TASK_ROWS * STRIDE] }
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
}

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // Taken out rather than borrowed in a closure, which would not be compiled for the instruction set.
        let mut scratch = SCRATCH.take().unwrap_or_else(Scratch::new);
        self.run_in(simd, &mut scratch);
        SCRATCH.set(Some(scratch));
    }
}

impl Tile<'_> {
    #[inline(always)]
    fn run_in<S: Simd>(self, simd: S, scratch: &mut Scratch) {
        let Self { x, rows, columns, weight, orientation, out } = self;
        let (total, stride) = match orientation {
            Orientation::Transposed => (weight.k, weight.n),
            Orientation::Plain => (weight.n, weight.k),
        };
        // Tiles of nearly equal height waste less of the registers than full ones and a rest.
        let tiles = rows.len().div_ceil(S::ROWS);
        for start in (0..total).step_by(DEPTH) {
            let depth = DEPTH.min(total - start);
            for (copy, row) in scratch.x.chunks_exact_mut(STRIDE).zip(rows.clone()) {
                copy[..depth].copy_from_slice(&x[row * total + start..][..depth]);
            }
            for first in columns.clone().step_by(panel_width::<S>()) {
                let width = panel_width::<S>().min(columns.end - first);
                let panel = scratch.panel.as_mut_ptr().cast::<f32>();
                // SAFETY: the ranges lie in the weight, whose lengths were checked; the panel holds DEPTH of the
                // widest rows.
                unsafe {
                    match orientation {
                        Orientation::Transposed => fill_transposed(simd, weight, start, depth, first, width, panel),
                        Orientation::Plain => fill_plain(simd, weight, start, depth, first, width, panel),
                    }
                }
                for tile in 0..tiles {
                    let from = tile * rows.len() / tiles;
                    let to = (tile + 1) * rows.len() / tiles;
                    let step = Step {
                        x: scratch.x[from * STRIDE..].as_ptr(),
                        panel,
                        depth,
                        // SAFETY: row `rows.start + from`, column `first` lies in the output.
                        out: unsafe { out.add((rows.start + from) * stride + first) },
                        stride,
                        width,
                        first: start == 0,
                    };
                    // SAFETY: the rows and columns of the step lie in this tile, which the caller of `new` owns.
                    unsafe { step.run(simd, to - from) };
                }
            }
        }
    }
}

/// A register tile's part of the sum: `out[i][j] (+)= sum over d of x[i][d] * panel[d][j]`.
#[derive(Clone, Copy)]
struct Step {
    x: *const f32,
    panel: *const f32,
    depth: usize,
    out: *mut f32,
    stride: usize,
    width: usize,
    first: bool,
}

impl Step {
    /// # Safety
    /// `rows` rows are readable at `x` and writable at `out`, `width` columns wide; `depth` panel rows are readable.
    #[inline(always)]
    unsafe fn run<S: Simd>(self, simd: S, rows: usize) {
        macro_rules! by_height {
            ($($height:literal)*) => {
                match rows {
                    // SAFETY: the caller's promise.
                    $($height if $height <= S::ROWS => unsafe { self.rows::<S, $height>(simd) },)*
                    _ => unreachable!("tiles have at most S::ROWS rows"),
                }
            };
        }
        by_height!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    }

    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn rows<S: Simd, const ROWS: usize>(self, simd: S) {
        let mut sums = [[simd.splat(0.0); 2]; ROWS];
        for d in 0..self.depth {
            // SAFETY: row d of the panel and step d of each row of x, as the caller promises.
            unsafe {
                let panel = self.panel.add(d * panel_width::<S>());
                let (left, right) = (simd.load(panel), simd.load(panel.add(S::LANES)));
                for (i, [a, b]) in sums.iter_mut().enumerate() {
                    let x = simd.splat(*self.x.add(i * STRIDE + d));
                    *a = simd.fma(x, left, *a);
                    *b = simd.fma(x, right, *b);
                }
            }
        }
        for (i, halves) in sums.into_iter().enumerate() {
            let out = self.out.wrapping_add(i * self.stride);
            if self.width == panel_width::<S>() {
                for (half, sum) in halves.into_iter().enumerate() {
                    // SAFETY: the row has `width` columns, two vectors.
                    unsafe {
                        let out = out.add(half * S::LANES);
                        simd.store(out, if self.first { sum } else { simd.add(simd.load(out), sum) });
                    }
                }
            } else {
                let mut row = [0.0; MAX_WIDTH];
                // SAFETY: `row` holds the widest panel's row.
                unsafe {
                    simd.store(row.as_mut_ptr(), halves[0]);
                    simd.store(row.as_mut_ptr().add(S::LANES), halves[1]);
                }
                for (j, sum) in row.into_iter().enumerate().take(self.width) {
                    // SAFETY: j is below `width`.
                    unsafe {
                        let out = out.add(j);
                        *out = if self.first { sum } else { *out + sum };
                    }
                }
            }
        }
    }
}
