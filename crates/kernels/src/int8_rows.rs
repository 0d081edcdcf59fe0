//! Few rows of activations against rows of codes where they lie, on x86-64: each code is read once, and no panel is made.
//!
//! As many rows of the matrix as a vector has lanes go side by side. A vector of codes gives each of them a vector of sums, whose
//! lanes are then added across by transposing these vectors, so that a lane has one row's sum, as in a panel.

use crate::{
    Isa, Matrix, Order,
    codec::{Offset, Signed, Unsigned},
    int8_codes::{Bytes, Decode, LookedUp, Themselves},
    int8_numbers::{Numbers, ROWS},
    integers::{self, IntegerProduct, Integers, Kind, THEMSELVES, Work},
    machine::{Cycles, Machine},
    output::{Output, Rectangle},
    shape::Shape,
    simd::{Dot, DotKernel, LINE, run_dot},
};

/// Bytes whose sums are still apart when lanes have been added across.
const PART: usize = 16;

/// Whether rows are whole vectors of so many bytes, and each run of elements that share a scale is some vectors, or some of the
/// equal parts of a vector.
pub(crate) fn takes<const VECTOR: usize>(product: &IntegerProduct) -> bool {
    let Matrix { k, block, .. } = *product.matrix;
    let each = product.weights.codes.elements(VECTOR);
    let uniform = k.is_multiple_of(block) || block.is_multiple_of(k);
    let is_part = [2, 4].iter().any(|parts| parts * block == each && parts * PART <= VECTOR);
    uniform && k.is_multiple_of(each) && (block.is_multiple_of(each) || is_part)
}

/// The cycles of [`multiply`] with vectors of so many bytes.
pub(crate) fn cost<const VECTOR: usize>(work: &Work, machine: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    let Cycles { load, dot, lanes, .. } = *machine.cycles;
    // Codes of a byte are one step of the sum, and pairs of them two, which are looked up. Vectors of 64 bytes wait for their loads.
    let bytes = if VECTOR == 64 { 8.0 * load + 2.0 * dot } else { 2.0 * dot };
    let (each, step) = if work.pairs { (2 * VECTOR, 4.0 * load + 3.0 + 2.0 * dot) } else { (VECTOR, bytes) };
    let vectors = (columns * depth) as f64 / each as f64;
    // The vectors of sums are transposed and added, and scaled.
    let ends = columns.div_ceil(lanes as usize) as f64 * work.runs as f64 * (10.0 + 3.0 * work.numbers);
    // Numbers are widened by vectors.
    (columns * work.runs) as f64 * work.numbers * work.scale.min(1.0) + rows as f64 * (vectors * step + ends)
}

/// Computes all of a product that this module [`takes`], on a machine whose vectors have so many bytes.
pub(crate) fn multiply<const VECTOR: usize>(product: &IntegerProduct, isa: Isa, out: &mut Output<f32>) -> usize {
    let &IntegerProduct { rows, matrix, weights, threads } = product;
    let x = &Activations::new(&rows.codes, matrix, &weights.codes, VECTOR);
    out.for_each_run(threads, VECTOR / 4, &|out| {
        run_dot(isa, Part { isa, x, units: &rows.units, matrix, codes: &weights.codes, vector: VECTOR, out });
    });
    rows.units.len()
}

/// The activations in the order in which codes meet them.
struct Activations {
    /// `[m, k]`; for a vector of pairs of codes, those of the lower halves of its bytes and then those of the upper ones.
    codes: Vec<i8>,
    /// For each row of activations and each run, the sum.
    sums: Vec<i32>,
    /// The elements of each run.
    runs: Vec<usize>,
    /// The block of each run, counted from that of the row's first element.
    blocks: Vec<usize>,
}

impl Activations {
    /// For vectors of so many bytes.
    fn new(rows: &[i8], matrix: &Matrix, weights: &Integers, vector: usize) -> Self {
        let (runs, blocks) = integers::runs(matrix);
        let sums = integers::run_sums(rows, matrix.k, &runs);
        let mut codes = rows.to_vec();
        if let Integers::Table { order, .. } = weights {
            for (to, from) in codes.chunks_exact_mut(2 * vector).zip(rows.chunks_exact(2 * vector)) {
                let (low, high) = to.split_at_mut(vector);
                for ((low, high), pair) in low.iter_mut().zip(high).zip(from.as_chunks().0) {
                    let [first, second] = *pair;
                    (*low, *high) = if *order == Order::LowFirst { (first, second) } else { (second, first) };
                }
            }
        }
        Self { codes, sums, runs, blocks }
    }
}

/// The product with some rows of the matrix.
struct Part<'a> {
    isa: Isa,
    x: &'a Activations,
    units: &'a [f32],
    matrix: &'a Matrix<'a>,
    codes: &'a Integers<'a>,
    /// Bytes of a vector, for which the activations lie in order.
    vector: usize,
    /// All rows of the output, and its columns for some rows of the matrix.
    out: Rectangle<'a, f32>,
}

impl DotKernel for Part<'_> {
    #[inline(always)]
    fn run<S: Dot>(mut self, simd: S) {
        assert!(self.vector == 4 * S::LANES, "activations for vectors of another machine");
        match *self.codes {
            Integers::Table { bytes, values: THEMSELVES, .. } => self.all::<S, Themselves>(simd, bytes, THEMSELVES),
            Integers::Table { bytes, values, .. } => self.all::<S, LookedUp>(simd, bytes, values),
            Integers::Bytes { bytes, kind } => match kind {
                Kind::Unsigned => self.all::<S, Bytes<Unsigned>>(simd, bytes, [0; 16]),
                Kind::Offset => self.all::<S, Bytes<Offset>>(simd, bytes, [0; 16]),
                Kind::Signed => self.all::<S, Bytes<Signed>>(simd, bytes, [0; 16]),
            },
        }
    }
}

impl Part<'_> {
    #[inline(always)]
    fn all<S: Dot, D: Decode>(&mut self, simd: S, bytes: &[u8], table: [i8; 16]) {
        let Matrix { n, k, .. } = *self.matrix;
        let table = simd.weights_table(table);
        let row_bytes = k / self.codes.elements(1);
        let runs = self.x.runs.len();
        let mut numbers = Numbers::new(self.matrix, runs);
        let columns = self.out.columns();
        for first in columns.clone().step_by(S::LANES) {
            let count = S::LANES.min(columns.end - first);
            let after = [first + S::LANES, first + 2 * S::LANES].map(|row| columns.end.min(row));
            self.matrix.each_line_of_numbers(after[0]..after[1], |line| simd.prefetch_second(line));
            numbers.transpose(self.isa, self.matrix, &self.x.blocks, &(first..first + count));
            // Rows that are not there are the last one again.
            let from = std::array::from_fn(|r| bytes[(first + r).min(n - 1) * row_bytes..][..row_bytes].as_ptr());
            let next = bytes.as_ptr().wrapping_add((first + S::LANES) * row_bytes);
            for row in self.out.rows() {
                let group = Group {
                    from,
                    next,
                    runs: &self.x.runs,
                    numbers: &numbers,
                    x: &self.x.codes[row * k..(row + 1) * k],
                    sums: &self.x.sums[row * runs..(row + 1) * runs],
                };
                let mut lanes = [0.0; ROWS];
                // SAFETY: runs are what [`takes`] says, and fill the rows; there are 16 floats, the most that a vector holds.
                unsafe { simd.store(lanes.as_mut_ptr(), group.sums::<S, D>(simd, table)) };
                for (out, sum) in self.out.row(row)[first - columns.start..].iter_mut().zip(&lanes[..count]) {
                    *out = sum * self.units[row];
                }
            }
        }
    }
}

/// Rows of the matrix side by side, and a row of activations.
struct Group<'a> {
    from: [*const u8; ROWS],
    /// Where the codes of the next group begin.
    next: *const u8,
    runs: &'a [usize],
    numbers: &'a Numbers,
    x: &'a [i8],
    /// Of the activations of each run.
    sums: &'a [i32],
}

impl Group<'_> {
    /// The scaled sums of the rows' products with the activations.
    ///
    /// # Safety
    /// The rows have as many codes as there are activations, which the runs fill; each run is some vectors, or one of two or four
    /// equal parts of a vector.
    #[inline(always)]
    unsafe fn sums<S: Dot, D: Decode>(&self, simd: S, table: S::B) -> S::F {
        let each = vector_elements::<S, D>();
        let mut total = simd.splat(0.0);
        let (mut at, mut run) = (0, 0);
        while run < self.runs.len() {
            let (vectors, parts) = ((self.runs[run] / each).max(1), each / self.runs[run]);
            // SAFETY: the vectors lie in the rows and in the activations, and there are numbers for the runs.
            unsafe {
                let [a, b, c, d] = self.parts::<S, D>(simd, table, at, vectors);
                let two = [simd.add_words(a, b), simd.add_words(c, d)];
                if S::LANES == 16 && parts == 4 {
                    for (i, sum) in [a, b, c, d].into_iter().enumerate() {
                        total = self.add_scaled::<S, D>(simd, total, sum, run + i);
                    }
                    run += 4;
                } else if parts == 2 {
                    for (i, sum) in (if S::LANES == 16 { two } else { [a, b] }).into_iter().enumerate() {
                        total = self.add_scaled::<S, D>(simd, total, sum, run + i);
                    }
                    run += 2;
                } else {
                    let sum = if S::LANES == 16 { simd.add_words(two[0], two[1]) } else { two[0] };
                    total = self.add_scaled::<S, D>(simd, total, sum, run);
                    run += 1;
                }
            }
            at += vectors;
        }
        total
    }

    /// The total with the sums of a run, scaled and biased.
    ///
    /// # Safety
    /// There are numbers for the run.
    #[inline(always)]
    unsafe fn add_scaled<S: Dot, D: Decode>(&self, simd: S, total: S::F, sum: S::I, run: usize) -> S::F {
        let Numbers { scales, biases, .. } = self.numbers;
        let activations = self.sums[run];
        let sum = match D::above(S::ABOVE) {
            0 => sum,
            above => simd.add_words(sum, simd.splat_words((-above * activations).cast_unsigned())),
        };
        // SAFETY: the caller's promise; there are 16 numbers, the most that a vector holds.
        unsafe {
            let mut term = simd.mul(simd.to_float(sum), simd.load(scales.get_unchecked(run).as_ptr()));
            if let Some(biases) = biases {
                let bias = simd.load(biases.get_unchecked(run).as_ptr());
                term = simd.add(term, simd.mul(simd.splat(activations as f32), bias));
            }
            simd.add(total, term)
        }
    }

    /// Sums of the rows' products over the parts of `vectors` vectors, from vector `at` on: lane `r` is row `r`'s.
    ///
    /// # Safety
    /// The vectors lie in the rows and in the activations.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    unsafe fn parts<S: Dot, D: Decode>(&self, simd: S, table: S::B, at: usize, vectors: usize) -> [S::I; 4] {
        let bytes = 4 * S::LANES;
        let mut sums = [simd.splat_words(0); ROWS];
        for vector in at..at + vectors {
            // SAFETY: the caller's promise.
            let x = unsafe {
                let x = self.x.as_ptr().add(vector * vector_elements::<S, D>()).cast::<u8>();
                let low = simd.load_words(x);
                [low, if D::PAIRS { simd.load_words(x.add(bytes)) } else { low }]
            };
            for r in 0..S::LANES {
                // The next group's codes, in the order of their addresses: a row is too short for the hardware to learn its
                // stream.
                if r * bytes % LINE == 0 {
                    simd.prefetch_second(self.next.wrapping_add((vector * S::LANES + r) * bytes));
                }
                // SAFETY: as above.
                let codes = unsafe { simd.load_words(self.from[r].add(vector * bytes)) };
                sums[r] = D::dot_all(simd, sums[r], D::weights(simd, table, codes), x);
            }
        }
        simd.add_across(&sums)
    }
}

/// Elements of a vector of codes.
#[inline(always)]
const fn vector_elements<S: Dot, D: Decode>() -> usize {
    4 * S::LANES * if D::PAIRS { 2 } else { 1 }
}
