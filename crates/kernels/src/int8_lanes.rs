//! Integer products with few rows of activations, from codes where they lie: each is read and decoded once for up to eight of
//! them, with VNNI or with AVX2 alone, with `sdot` or with NEON alone.
//!
//! As many rows of the matrix as a vector has lanes go side by side. Squares of their words are transposed, so that a lane sums
//! a row of its own, and no sum crosses lanes.

use crate::{
    Isa, Matrix, Order,
    codec::{Offset, Signed, Unsigned},
    int8_codes::{Bytes, Decode, LookedUp, Themselves},
    int8_numbers::{Numbers, ROWS},
    integers::{self, IntegerProduct, Integers, Kind, THEMSELVES, Work},
    machine::{Cycles, Machine},
    output::{Output, Rectangle},
    shape::Shape,
    simd::{Dot, DotKernel, prefetch_second, run_dot},
};

/// Rows of activations that are multiplied at a time, at most.
const GROUP: usize = 8;

/// Bytes of a word of codes.
const WORD: usize = 4;

/// Whether rows, and runs of elements that share a scale, are whole words.
pub(crate) fn takes(product: &IntegerProduct) -> bool {
    product.is_whole(WORD)
}

pub(crate) fn cost(work: &Work, machine: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    let Cycles { load, dot, lanes, .. } = *machine.cycles;
    // Words of a square are transposed, and pairs of codes looked up, once for a group of rows.
    let (elements, decode, steps) = if work.pairs { (8.0, 5.5, 2.0) } else { (4.0, 4.0, 1.0) };
    let vectors = (columns * depth) as f64 / (elements * lanes);
    let groups = rows.div_ceil(GROUP) as f64;
    let ends = columns as f64 * work.runs as f64 / lanes * 4.0 * work.numbers;
    vectors * (groups * (decode + 4.0 * load) + rows as f64 * steps * (dot + load))
        + (groups + rows as f64) * ends
        + (columns * work.runs) as f64 * work.numbers * work.scale.min(1.0) / 2.0
}

/// Computes all of a product that this module [`takes`], on any instruction set but the portable one.
pub(crate) fn multiply(product: &IntegerProduct, isa: Isa, out: &mut Output<f32>) -> usize {
    let &IntegerProduct { rows, matrix, weights, threads } = product;
    let m = rows.units.len();
    let x = &Activations::new(&rows.codes, matrix, &weights.codes);
    out.for_each_run(threads, ROWS, &|out| {
        run_dot(isa, Part { isa, x, units: &rows.units, matrix, codes: &weights.codes, out });
    });
    m
}

/// The activations in the order in which codes meet them.
struct Activations {
    /// For each row the words that those of codes are multiplied with; for words of eight codes two, for what is in the lower
    /// halves of bytes and in the upper ones.
    words: Vec<u32>,
    /// For each row and each run, the sum of its activations; one more at the end.
    sums: Vec<i32>,
    /// The same as floats, for the biases.
    floats: Vec<f32>,
    /// The words of codes of each run.
    runs: Vec<usize>,
    /// The block of each run, counted from that of the row's first element.
    blocks: Vec<usize>,
}

impl Activations {
    fn new(rows: &[i8], matrix: &Matrix, weights: &Integers) -> Self {
        let per_word = weights.elements(WORD);
        let (mut runs, blocks) = integers::runs(matrix);
        let mut sums = integers::run_sums(rows, matrix.k, &runs);
        for run in &mut runs {
            *run /= per_word;
        }
        sums.push(0);
        let word = |x: [i8; 4]| u32::from_le_bytes(x.map(i8::cast_unsigned));
        let words = match weights {
            Integers::Bytes { .. } => rows.as_chunks().0.iter().map(|x| word(*x)).collect(),
            Integers::Table { order, .. } => {
                let eights = rows.as_chunks::<8>().0.iter();
                let halves = |x: &[i8; 8]| {
                    let (even, odd) = (word([x[0], x[2], x[4], x[6]]), word([x[1], x[3], x[5], x[7]]));
                    if *order == Order::LowFirst { [even, odd] } else { [odd, even] }
                };
                eights.flat_map(halves).collect()
            }
        };
        let floats = sums.iter().map(|sum| *sum as f32).collect();
        Self { words, sums, floats, runs, blocks }
    }
}

/// The product with some rows of the matrix.
struct Part<'a> {
    isa: Isa,
    x: &'a Activations,
    units: &'a [f32],
    matrix: &'a Matrix<'a>,
    codes: &'a Integers<'a>,
    /// All rows of the output, and its columns for some rows of the matrix.
    out: Rectangle<'a, f32>,
}

impl DotKernel for Part<'_> {
    #[inline(always)]
    fn run<S: Dot>(mut self, simd: S) {
        match self.codes {
            Integers::Table { values: THEMSELVES, .. } => self.all::<S, Themselves>(simd),
            Integers::Table { .. } => self.all::<S, LookedUp>(simd),
            Integers::Bytes { kind: Kind::Unsigned, .. } => self.all::<S, Bytes<Unsigned>>(simd),
            Integers::Bytes { kind: Kind::Offset, .. } => self.all::<S, Bytes<Offset>>(simd),
            Integers::Bytes { kind: Kind::Signed, .. } => self.all::<S, Bytes<Signed>>(simd),
        }
    }
}

impl Part<'_> {
    #[inline(always)]
    fn all<S: Dot, D: Decode>(&mut self, simd: S) {
        let m = self.units.len();
        let columns = self.out.columns();
        let mut numbers = Numbers::new(self.matrix, self.x.runs.len());
        for start in columns.clone().step_by(S::LANES) {
            let rows = start..columns.end.min(start + S::LANES);
            numbers.transpose(self.isa, self.matrix, &self.x.blocks, &rows);
            let mut first = 0;
            while first < m {
                first += match m - first {
                    1 => self.group::<S, D, 1>(simd, rows.start, rows.len(), &numbers, first),
                    2 => self.group::<S, D, 2>(simd, rows.start, rows.len(), &numbers, first),
                    3 | 4 => self.group::<S, D, 4>(simd, rows.start, rows.len(), &numbers, first),
                    _ => self.group::<S, D, GROUP>(simd, rows.start, rows.len(), &numbers, first),
                };
            }
        }
    }

    /// Multiplies at most `M` rows of activations, from row `first`, with `count` rows from `start`; gives how many. Where
    /// there are fewer, the last one is multiplied again.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    fn group<S: Dot, D: Decode, const M: usize>(
        &mut self,
        simd: S,
        start: usize,
        count: usize,
        Numbers { scales, biases, .. }: &Numbers,
        first: usize,
    ) -> usize {
        let (bytes, table) = match *self.codes {
            Integers::Table { bytes, values, .. } => (bytes, simd.weights_table(values)),
            Integers::Bytes { bytes, .. } => (bytes, simd.weights_table([0; 16])),
        };
        let Activations { words: x, sums, floats, runs, .. } = self.x;
        let in_row = self.matrix.k / self.codes.elements(WORD);
        let halves = if D::PAIRS { 2 } else { 1 };
        let above = D::above(S::ABOVE);
        let inputs: [usize; M] = std::array::from_fn(|m| (first + m).min(self.units.len() - 1));
        let from = bytes[start * in_row * 4..].as_ptr();
        let next = from.wrapping_add(4 * S::LANES * in_row);
        let x: [*const u32; M] = std::array::from_fn(|m| x[inputs[m] * in_row * halves..].as_ptr());
        let sums: [*const i32; M] = std::array::from_fn(|m| sums[inputs[m] * runs.len()..].as_ptr());
        let floats: [*const f32; M] = std::array::from_fn(|m| floats[inputs[m] * runs.len()..].as_ptr());
        let mut square = [0_u32; ROWS * ROWS];
        let mut totals = [simd.splat(0.0); M];
        // Two chains for pairs of codes, so that fewer products wait for the one before them.
        let mut parts = [[simd.splat_words(0); M]; 2];
        for m in 0..M {
            // SAFETY: there is a sum for each run.
            parts[0][m] = simd.splat_words((-above * unsafe { *sums[m] }) as u32);
        }
        let (mut run, mut left) = (0, runs[0]);
        for chunk in (0..in_row).step_by(S::LANES) {
            let len = S::LANES.min(in_row - chunk);
            let from = from.wrapping_add(4 * chunk);
            if len == S::LANES && count == S::LANES {
                for row in 0..S::LANES {
                    // The next rows' codes, in the order of their addresses: a row is too short for the hardware to learn its
                    // stream.
                    prefetch_second(next.wrapping_add(4 * S::LANES * (chunk + row)));
                }
            }
            // SAFETY: the words lie in the rows.
            unsafe { simd.transpose_some(from, 4 * in_row, count, len, &mut square) };
            for d in 0..len {
                // SAFETY: the square has a vector for each word.
                let codes = unsafe { simd.load_words(square.as_ptr().add(d * S::LANES).cast()) };
                let weights = D::weights(simd, table, codes);
                let at = x.map(|x| x.wrapping_add(halves * (chunk + d)));
                for m in 0..M {
                    // SAFETY: each row of activations has as many words, or two for each.
                    let low = simd.splat_words(unsafe { *at[m] });
                    // SAFETY: as above.
                    let high = if D::PAIRS { simd.splat_words(unsafe { *at[m].add(1) }) } else { low };
                    [parts[0][m], parts[1][m]] = D::dot(simd, [parts[0][m], parts[1][m]], weights, [low, high]);
                }
                left -= 1;
                if left > 0 {
                    continue;
                }
                // SAFETY: there are 16 scales, the most that a vector holds.
                let scale = unsafe { simd.load(scales[run].as_ptr()) };
                let mut terms = [scale; M];
                for m in 0..M {
                    terms[m] = simd.mul(simd.to_float(simd.add_words(parts[0][m], parts[1][m])), scale);
                }
                if let Some(biases) = biases {
                    // SAFETY: as above.
                    let bias = unsafe { simd.load(biases[run].as_ptr()) };
                    for m in 0..M {
                        // SAFETY: there is a sum for each run.
                        let sum = simd.splat(unsafe { *floats[m].add(run) });
                        terms[m] = simd.add(terms[m], simd.mul(sum, bias));
                    }
                }
                run += 1;
                for m in 0..M {
                    totals[m] = simd.add(totals[m], terms[m]);
                    parts[1][m] = simd.splat_words(0);
                    // SAFETY: behind those of all runs there is one more.
                    parts[0][m] = simd.splat_words((-above * unsafe { *sums[m].add(run) }) as u32);
                }
                left = runs.get(run).copied().unwrap_or(0);
            }
        }
        let within = start - self.out.columns().start;
        for m in 0..M {
            let mut lanes = [0.0; ROWS];
            // SAFETY: as above.
            unsafe { simd.store(lanes.as_mut_ptr(), totals[m]) };
            for (out, sum) in self.out.row(inputs[m])[within..].iter_mut().zip(&lanes[..count]) {
                *out = sum * self.units[inputs[m]];
            }
        }
        M.min(self.units.len() - first)
    }
}
