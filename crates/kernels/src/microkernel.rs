//! The microkernel of products of floats: a register tile's part of the sums.

use crate::simd::{Simd, panel_width, prefetch};

/// The steps of the sum that one panel covers; its floats fill half of a usual first-level cache.
pub(crate) const DEPTH: usize = 256;

/// The widest panel of any instruction set.
pub(crate) const MAX_WIDTH: usize = 32;

/// The most rows of a register tile of any instruction set.
const MAX_ROWS: usize = 14;

/// Rows of A.
#[derive(Clone, Copy)]
pub(crate) enum PanelA {
    /// For each step a vector, which holds the number of each row.
    Packed(*const f32),
    /// Where they lie, so many floats from row to row.
    InPlace(*const f32, usize),
}

/// Columns of B, where they lie or packed: step `d` has two vectors at `at[d * stride]`.
#[derive(Clone, Copy)]
pub(crate) struct PanelB {
    pub(crate) at: *const f32,
    pub(crate) stride: usize,
}

/// Some columns of consecutive rows.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) at: *mut f32,
    /// Floats from row to row.
    pub(crate) stride: usize,
}

/// Steps between one that is multiplied and one that is asked for.
const AHEAD: usize = 8;

/// `to[i][j] = before[i][j] + sum over d of a[i][d] * b[d][j]`.
#[derive(Clone, Copy)]
pub(crate) struct Microkernel {
    pub(crate) a: PanelA,
    pub(crate) b: PanelB,
    pub(crate) depth: usize,
    /// Nothing, or where the sums so far are, and what they are multiplied by.
    pub(crate) before: Option<(Rows, f32)>,
    pub(crate) to: Rows,
    /// Columns of the sums: of a tile that reaches beyond the output, fewer than a panel has.
    pub(crate) width: usize,
}

impl Microkernel {
    /// Computes `rows` rows.
    ///
    /// # Safety
    /// So many rows and `depth` steps are readable at `a` and `b`, and `rows` rows of `width` columns at `before`; those at
    /// `to` are writable.
    #[inline(always)]
    pub(crate) unsafe fn run<S: Simd>(self, simd: S, rows: usize) {
        macro_rules! by_height {
            ($($height:literal)*) => {
                match rows {
                    // SAFETY: the caller's promise.
                    $($height if $height <= S::ROWS => unsafe {
                        match self.a {
                            PanelA::Packed(at) => self.rows::<S, $height, true>(simd, at, 1),
                            PanelA::InPlace(at, stride) => self.rows::<S, $height, false>(simd, at, stride),
                        }
                    },)*
                    _ => unreachable!("tiles have at most S::ROWS rows"),
                }
            };
        }
        by_height!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    }

    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn rows<S: Simd, const ROWS: usize, const PACKED: bool>(self, simd: S, a: *const f32, stride: usize) {
        let Self { b, depth, before, to, width, .. } = self;
        let mut sums = [[simd.splat(0.0); 2]; ROWS];
        for d in 0..depth {
            // SAFETY: step d, as the caller promises.
            unsafe {
                let panel = b.at.add(d * b.stride);
                let (left, right) = (simd.load(panel), simd.load(panel.add(S::LANES)));
                if PACKED {
                    // A panel of A comes from a farther cache than one of B.
                    prefetch(a.wrapping_add((d + AHEAD) * S::LANES).cast());
                }
                for (i, [to_left, to_right]) in sums.iter_mut().enumerate() {
                    let x = simd.splat(*if PACKED { a.add(d * S::LANES + i) } else { a.add(i * stride + d) });
                    *to_left = simd.fma(x, left, *to_left);
                    *to_right = simd.fma(x, right, *to_right);
                }
            }
        }
        if width < panel_width::<S>() {
            let mut tile = [0.0; MAX_ROWS * MAX_WIDTH];
            for (i, halves) in sums.iter().enumerate() {
                for (half, sum) in halves.iter().enumerate() {
                    // SAFETY: the tile has room for the most rows of the most columns.
                    unsafe { simd.store(tile.as_mut_ptr().add(i * MAX_WIDTH + half * S::LANES), *sum) };
                }
            }
            // SAFETY: the caller's promise.
            return unsafe { self.narrow(simd, &tile, ROWS) };
        }
        if let Some((before, factor)) = before {
            let factor = simd.splat(factor);
            for (i, halves) in sums.iter_mut().enumerate() {
                for (half, sum) in halves.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    let before = unsafe { simd.load(before.at.add(i * before.stride + half * S::LANES)) };
                    *sum = simd.fma(before, factor, *sum);
                }
            }
        }
        for (i, halves) in sums.iter().enumerate() {
            for (half, sum) in halves.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { simd.store(to.at.add(i * to.stride + half * S::LANES), *sum) };
            }
        }
    }

    /// Adds and writes the first columns of a tile.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn narrow<S: Simd>(&self, simd: S, tile: &[f32; MAX_ROWS * MAX_WIDTH], rows: usize) {
        for (i, row) in tile.chunks_exact(MAX_WIDTH).enumerate().take(rows) {
            for first in (0..self.width).step_by(S::LANES) {
                let count = S::LANES.min(self.width - first);
                // SAFETY: the columns lie in the row, and the caller promises so many in `before` and `to`.
                unsafe {
                    let mut sum = simd.load(row.as_ptr().add(first));
                    if let Some((before, factor)) = self.before {
                        let before = simd.load_some(before.at.add(i * before.stride + first), count);
                        sum = simd.fma(before, simd.splat(factor), sum);
                    }
                    simd.store_some(self.to.at.add(i * self.to.stride + first), count, sum);
                }
            }
        }
    }
}
