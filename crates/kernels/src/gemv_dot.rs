//! `y = x W^T` with few rows of activations, from the codes.
//!
//! Per block, `sum(x * (s * c + b))` is `s * sum(x * c) + b * sum(x)`: the inner loop knows codes only, and the sums of
//! `x` are taken once for all rows of the matrix.

use crate::{
    Isa, Matrix,
    arranged::Arranged,
    output::Rectangle,
    scales::{Granularity, Numbers},
    simd::{Kernel, Simd, prefetch_second, run},
    unit::{Source, Units, unit},
    unit_products::{Ahead, Products, RowGroup},
};

/// Rows of the matrix that are multiplied side by side, at most.
const MOST_ROWS: usize = 4;

/// Groups of such rows that are multiplied with a part of the activations before the next part.
const GROUPS: usize = 8;

/// Floats of activations that stay in the first-level cache while rows of the matrix pass.
const RESIDENT: usize = 8192;

/// Columns that are decoded at a time; those of a group of rows stay in the first-level cache.
const CHUNK: usize = 960;

/// Floats from row to row of what is decoded: off a power of two, or the rows would share cache sets.
const STRIDE: usize = CHUNK + 16;

/// Bytes between what is read and what is asked for, at least: as many as memory gives a core while it waits for the first.
const AHEAD: usize = 8192;

#[repr(align(64))]
struct Scratch([f32; MOST_ROWS * STRIDE]);

/// `y = x W^T` for some rows of the matrix.
pub(crate) struct GemvDot<'a, U> {
    pub(crate) isa: Isa,
    /// Made by [`Arrange`](crate::arranged::Arrange) for this matrix, which was checked.
    pub(crate) x: &'a Arranged,
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) units: U,
    /// All rows of the output, and its columns for some rows of the matrix.
    pub(crate) out: Rectangle<'a, f32>,
}

impl<U: Units> GemvDot<'_, U> {
    /// Multiplies at most `M` rows of activations, from row `first`, with all rows; gives how many.
    ///
    /// A part of the columns is gone through for some groups of rows before the next part, so that the activations stay in
    /// the first-level cache. Where there are fewer rows of activations than `M`, the last one is multiplied again.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    fn group<S: Simd, const M: usize, const ROWS: usize>(&mut self, simd: S, first: usize) -> usize {
        let (isa, matrix, spread) = (self.isa, self.matrix, self.x.spread);
        let columns = 0..matrix.k;
        let inputs: [usize; M] = std::array::from_fn(|m| (first + m).min(self.x.m - 1));
        let numbers = Numbers::new(spread, Granularity::Shared, &columns);
        let biased = Numbers::new(spread, Granularity::Number, &columns);
        let given = matrix.biases.as_ref().filter(|_| !U::DECODED);
        let mut scratch = [Vec::new(), Vec::new()];
        let mut decoded = U::DECODED.then(|| Box::new(Scratch([0.0; MOST_ROWS * STRIDE])));
        let decoded = decoded.as_mut().map_or(&mut [][..], |decoded| &mut decoded.0);
        let mut groups = [RowGroup::<M, ROWS>::EMPTY; GROUPS];
        let elements = unit::<S, U>();
        let part_columns = if U::DECODED { CHUNK } else { (RESIDENT / M / elements).max(1) * elements };
        let rows = self.out.columns();
        for block in rows.clone().step_by(GROUPS * ROWS) {
            let end = rows.end.min(block + GROUPS * ROWS);
            let count = (end - block).div_ceil(ROWS);
            let [scales, biases] = &mut scratch;
            let scales = (!U::DECODED).then(|| numbers.rows(isa, &matrix.scales, block..end, scales));
            let biases = given.map(|given| biased.rows(isa, given, block..end, biases));
            if !U::DECODED {
                matrix.each_line_of_numbers(end..(2 * end - block).min(matrix.n), prefetch_second);
            }
            for g in 0..count {
                let group = &mut groups[g];
                *group = RowGroup::EMPTY;
                for r in 0..ROWS {
                    group.rows[r] = (block + g * ROWS + r).min(rows.end - 1);
                    if let Some(scales) = scales {
                        group.scales[r] = scales.row(group.rows[r] - block);
                    }
                }
            }
            for start in columns.clone().step_by(part_columns) {
                let part = start..columns.end.min(start + part_columns);
                let x = std::array::from_fn(|m| self.x.row(inputs[m], start));
                match self.units.source() {
                    Source::Stored(bytes) => {
                        let row_bytes = columns.end * U::BITS / 8;
                        for group in &mut groups[..count] {
                            let starts = group.rows.map(|row| row * row_bytes + start * U::BITS / 8);
                            group.from = starts.map(|start| bytes[start..].as_ptr());
                            // The last row is the one with the fewest bytes behind it.
                            group.readable = bytes.len() - starts[ROWS - 1];
                        }
                        let ahead = if part.len() == columns.len() {
                            // In the order of the addresses, as the hardware reads ahead.
                            Ahead::InOrder(AHEAD)
                        } else {
                            let group_bytes = ROWS * part.len() * U::BITS / 8;
                            Ahead::Rows(ROWS * row_bytes * AHEAD.div_ceil(group_bytes + 1))
                        };
                        let (groups, columns) = (&mut groups[..count], part);
                        run(isa, Products { units: self.units, groups, numbers: &numbers, x, columns, ahead });
                    }
                    Source::Decode(decoder) => {
                        for group in &mut groups[..count] {
                            for (r, out) in decoded.chunks_exact_mut(STRIDE).enumerate().take(ROWS) {
                                let from = group.rows[r] * columns.end + start;
                                decoder.decode(isa, from, &mut out[..part.len()], ROWS * columns.end);
                                // Zeros, lest what was there before is no number.
                                let end = part.len().next_multiple_of(S::LANES);
                                out[part.len()..end].fill(0.0);
                            }
                            group.from = std::array::from_fn(|r| decoded[r * STRIDE..].as_ptr().cast());
                            group.readable = 4 * STRIDE;
                            let (groups, ahead) = (std::slice::from_mut(group), Ahead::Rows(0));
                            let columns = part.start..part.end.next_multiple_of(S::LANES);
                            run(isa, Products { units: self.units, groups, numbers: &numbers, x, columns, ahead });
                        }
                    }
                }
            }
            for group in &mut groups[..count] {
                if let Some(biases) = biases {
                    let count = spread.count(&columns);
                    for r in 0..ROWS {
                        let biases = biases.row(group.rows[r] - block);
                        for (m, sum) in group.sums[r].iter_mut().enumerate() {
                            let mut total = sum.load(simd);
                            for i in (0..count).step_by(S::LANES) {
                                // SAFETY: there are `count` biases, and the sums are padded to whole vectors.
                                unsafe {
                                    let bias = simd.load_some(biases.add(i), S::LANES.min(count - i));
                                    total = simd.fma(bias, simd.load(self.x.sums(inputs[m], i).as_ptr()), total);
                                }
                            }
                            sum.store(simd, total);
                        }
                    }
                }
                for m in 0..M {
                    let out = self.out.row(inputs[m]);
                    // Fewer rows than four are added up with copies of them.
                    let mut sums = [simd.splat(0.0); MOST_ROWS];
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = group.sums[r % ROWS][m].load(simd);
                    }
                    let sums = simd.sum_four(sums);
                    for r in 0..ROWS {
                        out[group.rows[r] - rows.start] = sums[r];
                    }
                }
            }
        }
        M.min(self.x.m - first)
    }
}

impl<U: Units> Kernel for GemvDot<'_, U> {
    type Output = ();
    /// The portable reference has no stored units.
    const PORTABLE: bool = U::DECODED;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut first = 0;
        while first < self.x.m {
            let left = self.x.m - first;
            first += match left {
                // Row by row: the values of one unit are all that the registers hold.
                1 if U::is_read_whole::<S>() => self.group::<S, 1, 1>(simd, first),
                2 | 3 if U::is_read_whole::<S>() => self.group::<S, 2, 1>(simd, first),
                4..7 if U::is_read_whole::<S>() => self.group::<S, 4, 1>(simd, first),
                1 => self.group::<S, 1, MOST_ROWS>(simd, first),
                2 => self.group::<S, 2, MOST_ROWS>(simd, first),
                // One group of many is less work than two: what is decoded serves all of it.
                7.. if S::LANES == 16 => self.group::<S, 8, 2>(simd, first),
                7.. => self.group::<S, 8, 1>(simd, first),
                // Sixteen sums at a time leave no room in fewer registers.
                _ if S::LANES == 16 => self.group::<S, 4, MOST_ROWS>(simd, first),
                _ => self.group::<S, 4, 2>(simd, first),
            }
        }
    }
}
