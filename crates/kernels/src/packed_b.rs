//! Codes to panels of floats, laid out as the register tile reads them.
//!
//! For `W^T`, an output column is a row of the matrix and the depth runs along it; for `W`, it is the other way round.

use crate::{
    Isa, Matrix, Orientation,
    codec::Codec,
    decode::Range,
    gemm::PackB,
    machine::{Cycles, FROM_MEMORY, Machine},
    microkernel::DEPTH,
    simd::{Kernel, SLACK, Simd, panel_width, prefetch, run},
};

/// How many rows ahead of its use a panel of `W` asks for memory.
const AHEAD: usize = 16;

/// Blocks along a panel whose scales are read before anything else.
const EARLY: usize = 8;

/// The cycles that a vector of a panel takes.
pub(crate) fn cycles(matrix: &Matrix, orientation: Orientation, machine: &Machine) -> f64 {
    let Cycles { fma, load, store, lanes, panel, .. } = *machine.cycles;
    let codes = &matrix.codes;
    let numbers = if matrix.biases.is_some() { 2.0 } else { 1.0 } * lanes / matrix.block as f64;
    let bytes = lanes * f64::from(codes.bits()) / 8.0;
    // Words of codes are transposed, which are few, or floats.
    let transposed = match codes.bits() {
        _ if orientation == Orientation::Plain => 0.0,
        4 | 8 => 0.0,
        16 => lanes / 32.0,
        _ => lanes * 0.7,
    };
    panel * (machine.decode(codes) + fma + store + load) + transposed + numbers + bytes / FROM_MEMORY
}

/// A matrix, whose lengths were checked, with the way round that it is multiplied.
#[derive(Clone, Copy)]
pub(crate) struct StoredB<'a, C> {
    pub(crate) range: Range<'a, C>,
    pub(crate) orientation: Orientation,
}

impl<C: Codec> PackB for StoredB<'_, C> {
    fn cycles(&self, machine: &Machine) -> f64 {
        cycles(self.range.matrix, self.orientation, machine)
    }

    unsafe fn fill(&self, isa: Isa, start: usize, depth: usize, first: usize, columns: usize, panel: *mut f32) {
        run(isa, Fill { isa, stored: self, start, depth, first, columns, panel });
    }
}

/// The arguments of [`PackB::fill`], which are what its caller promises.
struct Fill<'a, C> {
    isa: Isa,
    stored: &'a StoredB<'a, C>,
    start: usize,
    depth: usize,
    first: usize,
    columns: usize,
    panel: *mut f32,
}

impl<C: Codec> Kernel for Fill<'_, C> {
    type Output = ();
    const VECTORS: bool = !C::PORTABLE;
    const PORTABLE: bool = C::PORTABLE;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.stored.orientation == Orientation::Plain {
            return self.plain(simd);
        }
        for group in [0, S::LANES] {
            let rows = self.columns.saturating_sub(group).min(S::LANES);
            let panel = self.panel.wrapping_add(group);
            if rows == 0 {
                continue;
            }
            let matrix = self.stored.range.matrix;
            let words = C::WORD > 0 && matrix.k.is_multiple_of(C::WORD.max(1));
            // SAFETY: the group's rows lie in the matrix, its columns start at `panel`, `panel_width` apart.
            unsafe {
                if words && matrix.block.is_multiple_of(C::WORD) {
                    self.words(simd, self.first + group, rows, panel);
                } else {
                    self.floats(simd, self.first + group, rows, panel);
                }
            }
        }
    }
}

impl<C: Codec> Fill<'_, C> {
    /// One vector's width of a panel of `W^T`, where rows and blocks are whole words.
    ///
    /// Words, not floats, are transposed: there are fewer.
    ///
    /// # Safety
    /// Rows `first..first + rows`, at most LANES, lie in the matrix, and columns from `panel` in the panel.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    unsafe fn words<S: Simd>(&self, simd: S, first: usize, rows: usize, panel: *mut f32) {
        let Range { matrix, codes, scales, biases, .. } = self.stored.range;
        let (k, block, bits) = (matrix.k, matrix.block, codes.bits());
        let (ready, bytes) = (codes.ready(simd), codes.bytes().as_ptr());
        let row_bytes = k * bits / 8;
        let row_start = |row: usize| (first + row) * row_bytes + self.start * bits / 8;
        let per_row = k.is_multiple_of(block).then(|| k / block);
        let aligned = per_row.is_some() || block.is_multiple_of(k);
        // Rows are too far apart for the hardware to see where those of the next panel are.
        for row in panel_width::<S>()..panel_width::<S>() + rows {
            for line in (0..self.depth * bits / 8).step_by(64) {
                prefetch(bytes.wrapping_add(row_start(row) + line));
            }
        }
        let mut words = [0_u32; 256];
        // Long before they are loaded: a vector that was just written by its floats is waited for.
        let mut early = [[[0.0_f32; 16]; 2]; EARLY];
        let blocks = (self.start + self.depth - 1) / block - self.start / block + 1;
        let early = match per_row {
            Some(per_row) if blocks <= EARLY => {
                for row in 0..rows {
                    let from = (first + row) * per_row + self.start / block;
                    for (at, [row_scales, row_biases]) in (from..).zip(&mut early).take(blocks) {
                        row_scales[row] = scales[at];
                        row_biases[row] = biases.map_or(-0.0, |biases| biases[at]);
                    }
                }
                &early[..]
            }
            _ => &[],
        };
        let mut numbers = [[0.0_f32; 16]; 2];
        let (mut scale, mut bias) = (simd.splat(0.0), simd.splat(-0.0));
        // The depth at which the next block of any row starts.
        let mut until = 0;
        let words_deep = self.depth / C::WORD;
        for chunk in (0..words_deep).step_by(S::LANES) {
            let count = S::LANES.min(words_deep - chunk);
            // SAFETY: the words lie in the matrix, as the caller promises.
            unsafe { simd.transpose_some(bytes.add(row_start(0) + 4 * chunk), row_bytes, rows, count, &mut words) };
            for d in 0..count {
                let at = (chunk + d) * C::WORD;
                if at >= until {
                    let within = (self.start + at) / block;
                    let [row_scales, row_biases] = &mut numbers;
                    let late = if early.is_empty() { rows } else { 0 };
                    for (row, (scale, bias)) in row_scales.iter_mut().zip(row_biases).enumerate().take(late) {
                        let index = match per_row {
                            Some(per_row) => (first + row) * per_row + within,
                            None => ((first + row) * k + self.start + at) / block,
                        };
                        *scale = scales[index];
                        *bias = biases.map_or(-0.0, |biases| biases[index]);
                    }
                    let [row_scales, row_biases] = early.get(within - self.start / block).unwrap_or(&numbers);
                    // SAFETY: there are 16 floats, the most that a vector holds.
                    unsafe {
                        scale = simd.load(row_scales.as_ptr());
                        bias = simd.load(row_biases.as_ptr());
                    }
                    // Rows that do not start with a block change theirs at any word.
                    until = if aligned { at + block - (self.start + at) % block } else { at + C::WORD };
                }
                // SAFETY: word d of the chunk lies in `words`, and its codes' steps in the panel.
                unsafe {
                    let codes = simd.load_words(words.as_ptr().add(d * S::LANES).cast());
                    let whole = C::whole_words(ready, simd, codes);
                    for place in 0..C::WORD {
                        let step = at + self.stored.range.codes.place(place);
                        let values = match whole {
                            Some(whole) => whole[place],
                            None => C::word_values(ready, simd, codes, place),
                        };
                        let mut values = simd.mul(values, scale);
                        if biases.is_some() {
                            values = simd.add(values, bias);
                        }
                        simd.store(panel.add(step * panel_width::<S>()), values);
                    }
                }
            }
        }
    }

    /// One vector's width of a panel of `W^T`, for any matrix.
    ///
    /// # Safety
    /// As for [`words`](Self::words).
    #[inline(always)]
    unsafe fn floats<S: Simd>(&self, simd: S, first: usize, rows: usize, panel: *mut f32) {
        let Self { depth, start, stored, .. } = *self;
        let mut values = [0.0; 16 * DEPTH];
        for row in 0..rows {
            let from = (first + row) * stored.range.matrix.k + start;
            stored.range.decode(self.isa, from, &mut values[row * DEPTH..][..depth], DEPTH);
        }
        let mut words = [0_u32; 256];
        for d in (0..depth).step_by(S::LANES) {
            // SAFETY: `values` has LANES rows, and DEPTH is a multiple of LANES.
            unsafe { simd.transpose(values.as_ptr().add(d).cast(), 4 * DEPTH, words.as_mut_ptr()) };
            for step in 0..S::LANES.min(depth - d) {
                // SAFETY: `words` holds LANES vectors, and the panel has a row for each step.
                unsafe {
                    let values = simd.load(words.as_ptr().add(step * S::LANES).cast());
                    simd.store(panel.add((d + step) * panel_width::<S>()), values);
                }
            }
        }
    }

    /// A panel of `W`.
    #[inline(always)]
    fn plain<S: Simd>(&self, simd: S) {
        let Self { stored, start, depth, first, columns, panel, .. } = *self;
        let Range { matrix, codes, scales, biases, .. } = stored.range;
        let (k, block, bits) = (matrix.k, matrix.block, codes.bits());
        let (ready, bytes) = (codes.ready(simd), codes.bytes());
        let width = panel_width::<S>();
        // Vectors that lie in one block, which is the same one in each row.
        let aligned = columns == width
            && (k * bits).is_multiple_of(8)
            && (block.is_multiple_of(k) || (k.is_multiple_of(block) && block.is_multiple_of(S::LANES)));
        let per_row = if block.is_multiple_of(k) { 0 } else { k / block };
        let halves = if per_row == 0 { [0; 2] } else { [first / block, (first + S::LANES) / block] };
        for d in 0..depth {
            let row = panel.wrapping_add(d * width);
            let element = (start + d) * k + first;
            let byte = element * bits / 8;
            if !aligned || byte + width * bits / 8 + SLACK > bytes.len() {
                // SAFETY: the row holds `width` floats, and whoever made the panel wrote them before.
                let values = unsafe { std::slice::from_raw_parts_mut(row, width) };
                stored.range.decode(self.isa, element, &mut values[..columns], AHEAD * k);
                continue;
            }
            let from = bytes.as_ptr().wrapping_add(byte);
            // Rows are too far apart for the hardware to see where the next ones are.
            prefetch(from.wrapping_add(AHEAD * k * bits / 8));
            let base = if per_row == 0 { element / block } else { (start + d) * per_row };
            for (half, number) in halves.into_iter().enumerate() {
                // SAFETY: the codes and the slack lie in `bytes`, and the vector in the panel.
                unsafe {
                    let values = C::decode(ready, simd, from.add(half * S::LANES * bits / 8));
                    let mut values = simd.mul(values, simd.splat(scales[base + number]));
                    if let Some(biases) = biases {
                        values = simd.add(values, simd.splat(biases[base + number]));
                    }
                    simd.store(row.add(half * S::LANES), values);
                }
            }
        }
    }
}
