//! Few rows of activations against rows of codes where they lie, on x86-64: each code is read once, and no panel is made.
//!
//! As many rows of the matrix as a vector has lanes go side by side. A vector of codes gives each of them a vector of sums, whose
//! lanes are then added across by transposing these vectors, so that a lane has one row's sum, as in a panel.

use crate::{
    Isa, Matrix, Order,
    codec::{Offset, Signed, Unsigned},
    int8_codes::{Bytes, Decode, LookedUp, Packed, Themselves},
    int8_numbers::{Numbers, ROWS},
    integers::{self, IntegerProduct, Integers, Kind, Rows, Stream, THEMSELVES, Work},
    machine::{Cycles, Machine},
    output::{Output, Rectangle},
    shape::Shape,
    simd::{Dot, DotKernel, LINE, SLACK, prefetch_second, run_dot},
    vnni,
};

/// Bytes whose sums are still apart when lanes have been added across.
const PART: usize = 16;

/// Whether rows are whole vectors of so many bytes, and each run of elements that share a scale is some vectors, or some of the
/// equal parts of a vector.
pub(crate) fn takes<const VECTOR: usize>(product: &IntegerProduct) -> bool {
    fits(product.matrix, product.weights.codes.elements(VECTOR), VECTOR)
}

/// The same of vectors of codes that have so many elements.
fn fits(&Matrix { k, block, .. }: &Matrix, each: usize, vector: usize) -> bool {
    let uniform = k.is_multiple_of(block) || block.is_multiple_of(k);
    let is_part = [2, 4].iter().any(|parts| block.saturating_mul(*parts) == each && parts * PART <= vector);
    uniform && k.is_multiple_of(each) && (block.is_multiple_of(each) || is_part)
}

/// The cycles of [`multiply`] with vectors of so many bytes.
pub(crate) fn cost<const VECTOR: usize>(work: &Work, machine: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    let Cycles { load, dot, lanes, .. } = *machine.cycles;
    // Codes of a byte are one step of the sum, and pairs of them two, which are looked up. Vectors of 64 bytes wait for their loads.
    let bytes = if VECTOR == 64 { 8.0 * load + 2.0 * dot } else { 2.0 * dot };
    let (elements, step) = if work.pairs { (2 * VECTOR, 4.0 * load + 3.0 + 2.0 * dot) } else { (VECTOR, bytes) };
    let vectors = (columns * depth) as f64 / elements as f64;
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
        let codes = &Source::Integers(&weights.codes);
        run_dot(isa, Part { isa, x, units: &rows.units, matrix, codes, vector: VECTOR, out });
    });
    rows.units.len()
}

/// Computes all of a product with a stream of codes that are no bytes, if it is one like those that this module [`takes`].
pub(crate) fn multiply_stream(
    stream: &Stream,
    rows: &Rows,
    matrix: &Matrix,
    threads: usize,
    isa: Isa,
    out: &mut Output<f32>,
) -> bool {
    let vector = if vnni::is_there(&Machine::from_isa(isa)) { 64 } else { 32 };
    let row_bytes = matrix.k * stream.bits as usize / 8;
    if isa == Isa::Scalar || row_bytes < SLACK || !fits(matrix, vector, vector) {
        return false;
    }
    // More is read than the row has.
    let mut last = stream.bytes[(matrix.n - 1) * row_bytes..].to_vec();
    last.resize(row_bytes + SLACK, 0);
    let signed = Integers::Bytes { bytes: &[], kind: Kind::Signed };
    let x = &Activations::new(&rows.codes, matrix, &signed, vector);
    out.for_each_run(threads, vector / 4, &|out| {
        let codes = &Source::Stream { stream, last: &last };
        run_dot(isa, Part { isa, x, units: &rows.units, matrix, codes, vector, out });
    });
    true
}

/// Where codes come from.
enum Source<'a> {
    Integers(&'a Integers<'a>),
    Stream {
        stream: &'a Stream<'a>,
        /// The codes of the last row, and some bytes behind them.
        last: &'a [u8],
    },
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
    codes: &'a Source<'a>,
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
            Source::Integers(&Integers::Table { bytes, values: THEMSELVES, .. }) => {
                self.all::<S, Themselves>(simd, bytes, None, THEMSELVES);
            }
            Source::Integers(&Integers::Table { bytes, values, .. }) => {
                self.all::<S, LookedUp>(simd, bytes, None, values);
            }
            Source::Integers(&Integers::Bytes { bytes, kind }) => match kind {
                Kind::Unsigned => self.all::<S, Bytes<Unsigned>>(simd, bytes, None, [0; 16]),
                Kind::Offset => self.all::<S, Bytes<Offset>>(simd, bytes, None, [0; 16]),
                Kind::Signed => self.all::<S, Bytes<Signed>>(simd, bytes, None, [0; 16]),
            },
            Source::Stream { stream, last } => match stream.bits {
                2 => self.stream::<S, 2>(simd, stream, last),
                3 => self.stream::<S, 3>(simd, stream, last),
                5 => self.stream::<S, 5>(simd, stream, last),
                6 => self.stream::<S, 6>(simd, stream, last),
                _ => self.stream::<S, 7>(simd, stream, last),
            },
        }
    }
}

impl Part<'_> {
    #[inline(always)]
    fn stream<S: Dot, const BITS: usize>(&mut self, simd: S, stream: &Stream, last: &[u8]) {
        match stream.above {
            0 => self.all::<S, Packed<BITS, false>>(simd, stream.bytes, Some(last), [0; 16]),
            _ => self.all::<S, Packed<BITS, true>>(simd, stream.bytes, Some(last), [0; 16]),
        }
    }

    #[inline(always)]
    fn all<S: Dot, D: Decode>(&mut self, simd: S, bytes: &[u8], last: Option<&[u8]>, table: [i8; 16]) {
        let Matrix { n, k, .. } = *self.matrix;
        let table = simd.weights_table(table);
        let row_bytes = k * D::BITS / if D::PAIRS { 16 } else { 8 };
        let runs = self.x.runs.len();
        let mut numbers = Numbers::new(self.matrix, runs);
        let columns = self.out.columns();
        for first in columns.clone().step_by(S::LANES) {
            let count = S::LANES.min(columns.end - first);
            // Not of the next rows: theirs are waited for before any of their codes, and would not be there yet.
            let after = [first + 2 * S::LANES, first + 3 * S::LANES].map(|row| columns.end.min(row));
            self.matrix.each_line_of_numbers(after[0]..after[1], prefetch_second);
            numbers.transpose(self.isa, self.matrix, &self.x.blocks, &(first..first + count));
            // Rows that are not there are the last one again.
            let from = std::array::from_fn(|r| {
                let row = (first + r).min(n - 1);
                // With all that lies behind it: codes that are no bytes are read with some of that.
                let codes = last.filter(|_| row == n - 1).unwrap_or_else(|| &bytes[row * row_bytes..]);
                assert!(codes.len() >= row_bytes, "a row that is not whole");
                codes.as_ptr()
            });
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
    /// The sums of the activations of each run.
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
        let per_vector = vector_elements::<S, D>();
        let mut total = simd.splat(0.0);
        let (mut at, mut run) = (0, 0);
        while run < self.runs.len() {
            let (vectors, parts) = ((self.runs[run] / per_vector).max(1), per_vector / self.runs[run]);
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
        let (bytes, code_bytes) = (4 * S::LANES, S::LANES * D::BITS / 2);
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
                if r * code_bytes % LINE < code_bytes {
                    prefetch_second(self.next.wrapping_add((vector * S::LANES + r) * code_bytes));
                }
                // SAFETY: as above.
                let codes = unsafe { D::load(simd, self.from[r].add(vector * code_bytes)) };
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
