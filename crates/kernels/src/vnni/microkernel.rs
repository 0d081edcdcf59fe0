//! The register tile: some rows of activations against a panel.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use super::packed_b::WIDTH;
use crate::{
    amx::{Tiles, bytes},
    integers::{STEP, Start},
};

/// Bytes from row to row of activations within a step: off a power of two, or rows would share cache sets.
pub(super) const STRIDE: usize = STEP + 64;

/// Rows of activations of a register tile.
pub(super) const HEIGHT: usize = 12;

/// A register tile's part of the sum, for the runs of one step.
pub(super) struct Tile<'a> {
    /// For each four elements, 32 words.
    pub(super) panel: *const u8,
    pub(super) x: *const i8,
    pub(super) starts: *const Start,
    pub(super) ends: &'a [usize],
    pub(super) scales: &'a [[f32; WIDTH]],
    pub(super) biases: Option<&'a [[f32; WIDTH]]>,
    pub(super) sums: *mut f32,
}

impl Tile<'_> {
    /// # Safety
    /// The machine has the instructions, and all pointers are good for `rows` rows and all runs.
    pub(super) unsafe fn run(&self, rows: usize) {
        // Few rows are several sums each, or one would wait for the other.
        macro_rules! by_height {
            ($($height:literal: $chains:literal),*) => {
                match rows {
                    // SAFETY: the caller's promise.
                    $($height => unsafe { self.rows::<$height, $chains>() },)*
                    _ => unreachable!("tiles have at most {HEIGHT} rows"),
                }
            };
        }
        by_height!(1: 4, 2: 4, 3: 4, 4: 2, 5: 2, 6: 2, 7: 1, 8: 1, 9: 1, 10: 1, 11: 1, 12: 1);
    }

    /// As [`run`](Self::run), for up to [`bytes::ROWS`] rows and runs that are whole tiles.
    ///
    /// # Safety
    /// As for [`run`](Self::run); [`bytes::ROWS`] rows are readable at `x`.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn run_tiles(&self, tiles: &Tiles, rows: usize, products: &mut [[[i32; WIDTH]; bytes::ROWS]; 2]) {
        let multiply = |r: usize, to: &mut [[i32; WIDTH]; bytes::ROWS]| {
            let from = if r == 0 { 0 } else { self.ends[r - 1] };
            // SAFETY: the panel and the rows have all elements of the run.
            unsafe {
                let (x, panel) = (self.x.add(from), self.panel.add(from * WIDTH));
                let steps = (self.ends[r] - from) / bytes::BYTES;
                bytes::multiply_bytes(tiles, x, STRIDE, panel, steps, to.as_mut_ptr().cast());
            }
        };
        multiply(0, &mut products[0]);
        for r in 0..self.ends.len() {
            // The next run, so that its tiles are not waited for.
            if r + 1 < self.ends.len() {
                multiply(r + 1, &mut products[(r + 1) % 2]);
            }
            let products = &products[r % 2];
            for (i, products) in products.iter().enumerate().take(rows) {
                // SAFETY: the products are 32 words for each row, which has a start for the run.
                let sums = unsafe {
                    let start = _mm512_set1_epi32((*self.starts.add(i * self.ends.len() + r)).products);
                    let half = |half: usize| _mm512_loadu_si512(products.as_ptr().add(16 * half).cast());
                    [_mm512_add_epi32(half(0), start), _mm512_add_epi32(half(1), start)]
                };
                // SAFETY: the caller's promise.
                unsafe { self.add_scaled(r, i, sums) };
            }
        }
    }

    /// # Safety
    /// As for [`run`](Self::run).
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn rows<const ROWS: usize, const CHAINS: usize>(&self) {
        let mut from = 0;
        for (r, &end) in self.ends.iter().enumerate() {
            let mut sums = [[[_mm512_setzero_si512(); 2]; ROWS]; CHAINS];
            for (i, sums) in sums[0].iter_mut().enumerate() {
                // SAFETY: row i has a start for run r.
                *sums = [_mm512_set1_epi32(unsafe { (*self.starts.add(i * self.ends.len() + r)).products }); 2];
            }
            let mut at = from;
            while at < end {
                for sums in &mut sums {
                    if at >= end {
                        break;
                    }
                    // SAFETY: elements `at..at + 4` lie in the run, of which the panel and the rows have all.
                    unsafe {
                        let panel = self.panel.add(at * WIDTH);
                        let left = _mm512_load_si512(panel.cast());
                        let right = _mm512_load_si512(panel.add(64).cast());
                        for (i, [a, b]) in sums.iter_mut().enumerate() {
                            let x = _mm512_set1_epi32(self.x.add(i * STRIDE + at).cast::<i32>().read_unaligned());
                            *a = _mm512_dpbusd_epi32(*a, left, x);
                            *b = _mm512_dpbusd_epi32(*b, right, x);
                        }
                    }
                    at += 4;
                }
            }
            from = end;
            let mut totals = sums[0];
            for sums in &sums[1..] {
                for (total, sums) in totals.iter_mut().zip(sums) {
                    *total = [_mm512_add_epi32(total[0], sums[0]), _mm512_add_epi32(total[1], sums[1])];
                }
            }
            for (i, sums) in totals.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { self.add_scaled(r, i, sums) };
            }
        }
    }

    /// Adds the sums of products of run `r` of row `i` to the row's.
    ///
    /// # Safety
    /// As for [`run`](Self::run); there are such a run and row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn add_scaled(&self, r: usize, i: usize, sums: [__m512i; 2]) {
        for (half, sum) in sums.into_iter().enumerate() {
            // SAFETY: scales, biases and sums are 32 floats for each run or row, which has a start for the run.
            unsafe {
                let of = |numbers: &[[f32; WIDTH]]| _mm512_loadu_ps(numbers[r].as_ptr().add(16 * half));
                let mut term = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), of(self.scales));
                if let Some(biases) = self.biases {
                    let activations = (*self.starts.add(i * self.ends.len() + r)).activations;
                    term = _mm512_add_ps(term, _mm512_mul_ps(_mm512_set1_ps(activations), of(biases)));
                }
                let to = self.sums.add(i * WIDTH + 16 * half);
                _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), term));
            }
        }
    }
}
