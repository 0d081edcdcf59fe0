//! Rows of `x`, split into tiles.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;
use std::{cell::Cell, ops::Range};

use super::{PIECES, STEP, TILE, Tile, ZEROS, load, powers, split};
use crate::{
    Isa, Orientation,
    copy::{Block, copy},
    gemm::Product,
};

/// Steps that one panel covers; its pieces fill half of a usual first-level cache.
pub(super) const DEPTH: usize = 128;

/// Some rows of `x`, in bands of 16.
#[derive(Clone, Copy)]
pub(super) struct Bands {
    /// No others have the same.
    pub(super) id: usize,
    pub(super) first: usize,
    pub(super) rows: usize,
    /// How often there are two of them.
    pub(super) pairs: usize,
}

/// Tiles of rows of `x` that a thread keeps for smaller products: 16 MiB.
const KEPT: usize = 1 << 14;

thread_local! {
    pub(super) static SPLIT: Cell<Option<Split>> = const { Cell::new(None) };
}

/// What a thread has split of some rows of `x`.
///
/// Each thread splits for itself: what another one has just written takes longer to read than to make.
#[derive(Default)]
pub(super) struct Split {
    of: usize,
    /// In the order in which they are gone through: for each [`DEPTH`] steps, each two bands, each 32 steps and each of the
    /// bands a tile of each piece.
    pub(super) tiles: Vec<Tile>,
    /// What the sums of a row are multiplied with.
    pub(super) factors: Vec<f32>,
    /// What is known of each band.
    pub(super) bands: Vec<Band>,
    /// 16 rows that do not lie in one piece each.
    transposed: Vec<f32>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Band {
    Unseen,
    /// Its tiles hold its numbers.
    Finite,
    /// Not all its numbers are finite; its tiles hold zeros.
    Other,
}

/// Tiles of 32 steps of two bands.
pub(super) const PAIR: usize = 2 * PIECES;

impl Split {
    /// Forgets what belongs to other rows.
    pub(super) fn begin(&mut self, bands: Bands, depth: usize) {
        if self.of == bands.id {
            return;
        }
        self.of = bands.id;
        let tiles = bands.pairs * depth.div_ceil(STEP) * PAIR;
        if self.tiles.len() > tiles.max(KEPT) {
            self.tiles = Vec::new();
        }
        self.tiles.resize(tiles.max(self.tiles.len()), ZEROS);
        self.factors.resize(self.factors.len().max(2 * bands.pairs * TILE), 0.0);
        self.bands.clear();
        self.bands.resize(2 * bands.pairs, Band::Unseen);
    }

    /// Splits the bands of these rows that are not split yet.
    ///
    /// # Safety
    /// The rows lie in `x`, and the machine has AVX-512.
    pub(super) unsafe fn split(&mut self, product: &Product, isa: Isa, bands: Bands, rows: Range<usize>) {
        let (x, depth) = (product.x, product.x.columns());
        for band in rows.start / TILE..rows.end.div_ceil(TILE) {
            if self.bands[band] != Band::Unseen {
                continue;
            }
            let (first, count) = (bands.first + band * TILE, TILE.min(bands.rows - band * TILE));
            let (mut from, mut stride) = (x.at(first, 0), x.matrix.stride);
            if !x.is_plain() {
                let to_stride = depth.next_multiple_of(TILE);
                self.transposed.resize(self.transposed.len().max(TILE * to_stride), 0.0);
                let to = self.transposed.as_mut_ptr();
                let block = Block { from, stride, rows: depth, columns: count, to, to_stride, next: 0 };
                // SAFETY: the rows lie in `x`, and there is room for as many.
                unsafe { copy(isa, block, Orientation::Transposed) };
                (from, stride) = (to, to_stride);
            }
            self.bands[band] = Band::Finite;
            // SAFETY: rows beyond the last are not read, and the band has its tiles.
            unsafe {
                let tiles = self.tiles.as_mut_ptr().add(band % 2 * PIECES);
                for row in 0..TILE {
                    let from = (row < count).then(|| from.wrapping_add(row * stride));
                    let tiles = tiles.cast::<u32>().add(row * STEP / 2);
                    match split_row(from, depth, tiles, band / 2, bands.pairs) {
                        Some(factor) => self.factors[band * TILE + row] = factor * product.factors.alpha,
                        None => self.bands[band] = Band::Other,
                    }
                }
                if self.bands[band] == Band::Other {
                    for row in 0..TILE {
                        let _ = split_row(None, depth, tiles.cast::<u32>().add(row * STEP / 2), band / 2, bands.pairs);
                    }
                }
            }
        }
    }
}

/// The first tile of a pair of bands, of `pairs`, at a multiple of [`DEPTH`] in a sum of so many.
pub(super) fn first_tile(pair: usize, pairs: usize, start: usize, depth: usize) -> usize {
    let steps = (DEPTH / STEP).min((depth - start).div_ceil(STEP));
    (start / STEP * pairs + pair * steps) * PAIR
}

/// Splits a row, or zeros, into the same row of each tile; gives what its sums are to be multiplied with.
///
/// # Safety
/// `depth` floats are readable at `from`, and `tiles` is the row's place in the first tile that its band, one of a pair of
/// `pairs`, would have in the first of them.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split_row(from: Option<*const f32>, depth: usize, tiles: *mut u32, pair: usize, pairs: usize) -> Option<f32> {
    // SAFETY: the caller's promise.
    let (up, down) = unsafe { powers(from, depth) }?;
    let up = _mm512_set1_ps(up);
    for at in (0..depth).step_by(STEP) {
        let tile = first_tile(pair, pairs, at / DEPTH * DEPTH, depth) + at % DEPTH / STEP * PAIR;
        let mut halves = [_mm512_setzero_ps(); 2];
        if let Some(from) = from {
            for (half, at) in halves.iter_mut().zip([at, at + TILE]) {
                if at < depth {
                    // SAFETY: the caller's promise.
                    *half = _mm512_mul_ps(unsafe { load(from.add(at), depth - at) }, up);
                }
            }
        }
        let [low, high] = halves.map(|half| split(half));
        for piece in 0..PIECES {
            // SAFETY: each tile of the step has the row.
            unsafe {
                let to = tiles.add((tile + piece) * TILE * STEP / 2);
                let top = |words| _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words));
                _mm256_storeu_si256(to.cast(), top(low[piece]));
                _mm256_storeu_si256(to.add(8).cast(), top(high[piece]));
            }
        }
    }
    Some(down)
}
