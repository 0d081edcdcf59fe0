//! Packed codes to panels of floats, laid out as the register tile reads them.
//!
//! For `W^T`, an output column is a row of the weight and the depth runs along it; for `W`, it is the other way round.

use super::{gather::decode_range, matmul::Orientation, weight::Weight};
use crate::{
    simd::{Simd, panel_width},
    tile::{DEPTH, Panels},
};

/// A weight, whose lengths were checked, with the way round that it is multiplied.
#[derive(Clone, Copy)]
pub(super) struct Decoded<'a> {
    pub(super) weight: &'a Weight<'a>,
    pub(super) orientation: Orientation,
}

impl Panels for Decoded<'_> {
    #[inline(always)]
    unsafe fn fill<S: Simd>(self, simd: S, start: usize, depth: usize, first: usize, columns: usize, panel: *mut f32) {
        let Self { weight, orientation } = self;
        // SAFETY: the caller's promise.
        unsafe {
            match orientation {
                Orientation::Transposed => fill_transposed(simd, weight, start, depth, first, columns, panel),
                Orientation::Plain => fill_plain(simd, weight, start, depth, first, columns, panel),
            }
        }
    }
}

/// How many rows ahead of its use [`fill_plain`] asks for memory.
const AHEAD: usize = 16;

/// Fills the panel of `W^T`: output column `j` is row `first + j` of the weight, step `d` its element `start + d`.
///
/// # Safety
/// Rows `first..first + columns` and elements `start..start + depth` lie in a weight whose lengths were checked,
/// `depth` is at most [`DEPTH`], `start` a multiple of it, and the panel holds `depth * panel_width` floats.
#[inline(always)]
unsafe fn fill_transposed<S: Simd>(
    simd: S,
    weight: &Weight,
    start: usize,
    depth: usize,
    first: usize,
    columns: usize,
    panel: *mut f32,
) {
    for half in 0..2 {
        let group = half * S::LANES;
        let rows = columns.saturating_sub(group).min(S::LANES);
        let (first, panel) = (first + group, panel.wrapping_add(group));
        if weight.rows_are_words() {
            // SAFETY: the caller's promise; the group's columns start at `panel`, `panel_width` apart.
            unsafe { fill_words(simd, weight, start, depth, first, rows, panel) };
        } else {
            let mut values = [0.0; DEPTH];
            for row in 0..S::LANES {
                if row < rows {
                    decode_range(simd, weight, (first + row) * weight.k + start, &mut values[..depth]);
                }
                for (d, value) in values[..depth].iter().enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe { *panel.add(d * panel_width::<S>() + row) = *value };
                }
            }
        }
    }
}

/// One vector's width of [`fill_transposed`], for rows that are whole words.
///
/// Words, not floats, are transposed: eight times less to move.
///
/// # Safety
/// As there, for `rows` rows; the columns of the panel start at `panel`.
#[inline(always)]
unsafe fn fill_words<S: Simd>(
    simd: S,
    weight: &Weight,
    start: usize,
    depth: usize,
    first: usize,
    rows: usize,
    panel: *mut f32,
) {
    let (k, shift) = (weight.k, weight.shift());
    let packed = weight.packed.as_ptr();
    let row_start = |row: usize| (first + row) * k + start;
    let block_words = if weight.rows_are_blocks() { weight.block / 8 } else { 1 };
    let mut words = [0_u32; 256];
    let mut scales = [0.0_f32; 16];
    let mut scale = simd.splat(0.0);
    let all = depth / 8;
    for chunk in (0..all).step_by(S::LANES) {
        let count = S::LANES.min(all - chunk);
        if count == S::LANES && rows == S::LANES {
            // SAFETY: LANES rows of LANES words lie in the weight, and rows are k / 2 bytes apart.
            unsafe { simd.transpose(packed.add(row_start(0) / 2 + 4 * chunk), k / 2, words.as_mut_ptr()) };
        } else {
            for row in 0..rows {
                for d in 0..count {
                    // SAFETY: the word lies in the weight, as the caller promises.
                    let word =
                        unsafe { packed.add(row_start(row) / 2 + 4 * (chunk + d)).cast::<u32>().read_unaligned() };
                    words[d * S::LANES + row] = u32::from_le(word);
                }
            }
        }
        for d in 0..count {
            let word = chunk + d;
            if word == 0 || (start / 8 + word).is_multiple_of(block_words) {
                for (row, scale) in scales.iter_mut().enumerate().take(rows) {
                    // SAFETY: the element lies in the weight, so its block has an absmax.
                    *scale = unsafe { *weight.absmax.get_unchecked((row_start(row) + 8 * word) >> shift) };
                }
                // SAFETY: `scales` has 16 floats, the most that a vector holds.
                scale = unsafe { simd.load(scales.as_ptr()) };
            }
            // SAFETY: word d of the chunk lies in `words`; steps 8 * word to 8 * word + 7 lie in the panel.
            unsafe {
                let codes = simd.load_words(words.as_ptr().add(d * S::LANES).cast());
                for nibble in 0..8 {
                    // The high nibble of a byte is the earlier element.
                    let step = 8 * word + (nibble ^ 1);
                    let values = simd.mul(simd.lookup(simd.shift(codes, 4 * nibble as u32)), scale);
                    simd.store(panel.add(step * panel_width::<S>()), values);
                }
            }
        }
    }
}

/// Fills the panel of `W`: output column `j` is element `first + j` of each row of the weight, step `d` row `start + d`.
///
/// # Safety
/// Rows `start..start + depth` and elements `first..first + columns` lie in a weight whose lengths were checked,
/// `first` is a multiple of the panel's width, and the panel holds `depth * panel_width` floats.
#[inline(always)]
unsafe fn fill_plain<S: Simd>(
    simd: S,
    weight: &Weight,
    start: usize,
    depth: usize,
    first: usize,
    columns: usize,
    panel: *mut f32,
) {
    let width = panel_width::<S>();
    let (block, shift) = (weight.block, weight.shift());
    let whole = columns == width && weight.rows_are_words();
    for d in 0..depth {
        let row = panel.wrapping_add(d * width);
        let element = (start + d) * weight.k + first;
        if !whole {
            // SAFETY: the row holds `width` floats, and whoever made the panel wrote them before.
            let values = unsafe { std::slice::from_raw_parts_mut(row, width) };
            decode_range(simd, weight, element, &mut values[..columns]);
            values[columns..].fill(0.0);
            continue;
        }
        // Rows are too far apart for the hardware to see where the next ones are.
        simd.prefetch(weight.packed.as_ptr().wrapping_add(element / 2 + AHEAD * weight.k / 2));
        for half in 0..2 {
            let element = element + half * S::LANES;
            // SAFETY: the elements lie in the weight and start a word; LANES is at most two words, so that they lie
            // in one block, or in two that meet in the middle.
            unsafe {
                let absmax = weight.absmax.as_ptr().add(element >> shift);
                let scale =
                    if element % block + S::LANES <= block { simd.splat(*absmax) } else { simd.spread(absmax, 8) };
                let values = simd.decode(weight.packed.as_ptr().add(element / 2));
                simd.store(row.add(half * S::LANES), simd.mul(values, scale));
            }
        }
    }
}
