//! Panels of bytes: rows of codes, transposed so that each lane has its own row, and looked up.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

use crate::{
    integers::STEP,
    simd::{Kernel, Simd, prefetch},
};

/// Rows of the matrix in a panel: two vectors of sums.
pub(super) const WIDTH: usize = 32;

/// Bytes of a panel: the integers of [`STEP`] elements of its rows.
pub(super) const PANEL: usize = STEP * WIDTH;

/// A cache line, so that no vector of a panel spans two.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// Words of 16 rows: [`STEP`] bytes of each, at most.
pub(super) type Words = [u32; PANEL / 8];

/// Words of rows, transposed, each half of the panel by itself: word `d` of its row `r` goes to `words[half][d * 16 + r]`.
pub(super) struct Transpose<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) row_bytes: usize,
    pub(super) rows: usize,
    pub(super) count: usize,
    pub(super) words: &'a mut [Words; 2],
}

impl Kernel for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (half, words) in self.words.iter_mut().enumerate() {
            let first = 16 * half;
            for d in (0..self.count).step_by(16) {
                if S::LANES == 16 && self.count - d >= 16 && self.rows >= first + 16 {
                    let from = self.bytes[first * self.row_bytes + 4 * d..].as_ptr();
                    // The same place of the next step: rows are too many for the hardware to foresee it.
                    for row in 0..16 {
                        prefetch(from.wrapping_add(row * self.row_bytes + 4 * self.count));
                    }
                    // SAFETY: 16 rows have 16 words from word `d` on, and there is room for them.
                    unsafe { simd.transpose(from, self.row_bytes, words[16 * d..][..256].as_mut_ptr()) };
                    continue;
                }
                for row in first..self.rows.min(first + 16) {
                    let from = &self.bytes[row * self.row_bytes..];
                    for (d, word) in from.as_chunks::<4>().0.iter().enumerate().take(self.count).skip(d).take(16) {
                        words[16 * d + row - first] = u32::from_le_bytes(*word);
                    }
                }
            }
        }
    }
}

/// Looks the codes of each word up: the even elements of all rows, then the odd ones.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn decode(words: &[Words; 2], count: usize, table: [u8; 16], high_first: bool, panel: &mut [Line]) {
    // SAFETY: an array of 16 bytes.
    let table = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())) };
    let low = _mm512_set1_epi8(15);
    for (half, words) in words.iter().enumerate() {
        let words = words.as_chunks::<16>().0.iter().take(count);
        for (words, lines) in words.zip(panel.as_chunks_mut::<4>().0) {
            // SAFETY: 16 words; a line is as long as a vector and as aligned.
            unsafe {
                let codes = _mm512_loadu_si512(words.as_ptr().cast());
                let bottom = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, low));
                let top = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low));
                let (even, odd) = if high_first { (top, bottom) } else { (bottom, top) };
                _mm512_store_si512(lines[half].0.as_mut_ptr().cast(), even);
                _mm512_store_si512(lines[2 + half].0.as_mut_ptr().cast(), odd);
            }
        }
    }
}
