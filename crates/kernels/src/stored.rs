//! Products with few rows of activations, read where the codes are stored, or decoded a part of a row at a time.

use crate::{
    Codes, Isa, Matrix, Orientation,
    arranged::Arrange,
    codec::Codec,
    codec_of::{Job, dispatch},
    decode::Parts,
    gemm::PackedWork,
    gemv_axpy::{GemvAxpy, MAX_COLUMNS, Step},
    gemv_dot::GemvDot,
    machine::{Cycles, FROM_MEMORY, Machine},
    output::{Output, Rectangle},
    packed_b,
    shape::Shape,
    simd::{Kernel, Simd, panel_width_of, run},
    unit::{Decode, Decoded, Layout, Units},
};

/// A product with a stored matrix, whose lengths were checked, none of them 0.
pub(crate) struct StoredProduct<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) m: usize,
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) orientation: Orientation,
    pub(crate) threads: usize,
    /// The columns of the product that this one is cut from, if the number of threads decides where: an engine is chosen for
    /// all of it.
    pub(crate) cut_from: Option<usize>,
}

/// What of a product the costs of its engines depend on.
pub(crate) struct Work {
    pub(crate) shape: Shape,
    pub(crate) orientation: Orientation,
    /// Cycles to decode a vector.
    pub(crate) decode: f64,
    /// Whether codes are multiplied where they lie, and not decoded to memory first.
    stored: bool,
    /// Bytes of the codes.
    bytes: f64,
    /// Vectors of codes that are scaled by themselves: as many as there are blocks, or units.
    scaled: f64,
    /// Numbers of all blocks: their scales, and their biases.
    pub(crate) numbers: f64,
    pub(crate) biased: bool,
    /// The `bf16` numbers that a value is the sum of, in tiles of codes.
    #[cfg(target_arch = "x86_64")]
    pub(crate) pieces: usize,
    /// The same with panels.
    pub(crate) packed: PackedWork,
}

impl Work {
    pub(crate) fn new(product: &StoredProduct, columns: usize, machine: &Machine) -> Self {
        let &StoredProduct { m, matrix, orientation, .. } = product;
        let Matrix { n, k, block, ref codes, ref biases, .. } = *matrix;
        let (depth, _) = orientation.sides(n, k);
        let shape = Shape { rows: m, columns: product.cut_from.unwrap_or(columns), depth };
        let blocks = (shape.columns as f64 * depth as f64 / block as f64).max(1.0);
        // A unit has a word of each lane; wide ones of bytes have too few steps to scale the one before meanwhile.
        let lanes = machine.cycles.lanes;
        let unit = lanes * 32.0 / f64::from(codes.bits());
        let slowly = if codes.bits() == 8 { lanes / 8.0 } else { 1.0 };
        let scaled = shape.columns as f64 * depth as f64 / unit * slowly;
        let numbers = if biases.is_some() { 2.0 * blocks } else { blocks };
        Self {
            shape,
            orientation,
            decode: machine.decode(codes),
            stored: machine.isa != Isa::Scalar && !matches!(codes, Codes::Bytes { .. }),
            bytes: shape.columns as f64 * depth as f64 * f64::from(codes.bits()) / 8.0,
            scaled: if block < k { scaled } else { 0.0 },
            numbers,
            biased: biases.is_some(),
            #[cfg(target_arch = "x86_64")]
            pieces: codes.pieces(),
            packed: PackedWork { shape, panel: packed_b::cycles(matrix, orientation, machine) },
        }
    }
}

pub(crate) fn cost(work: &Work, machine: &Machine) -> f64 {
    let Cycles { fma, load, store, sum, lanes, tile, .. } = *machine.cycles;
    let vectors = work.shape.vectors(machine);
    // Floats are written and read again, a row's part at a time.
    let decode = work.decode + if work.stored { 0.0 } else { 3.0 * (store + load) };
    let from_memory = work.bytes / FROM_MEMORY;
    match work.orientation {
        // Four rows of the matrix share what is loaded of the activations.
        Orientation::Transposed => {
            // Codes of a byte and more keep the loads busier than those that a register has many of.
            let wide = work.bytes >= vectors * lanes;
            let slow = tile * if wide { 1.15 } else { 0.92 };
            let pass = |rows: f64| {
                let steps = vectors * (decode + rows * (fma + load / 4.0));
                slow * steps + rows * work.shape.columns as f64 * sum + work.scaled * 1.7 * rows
            };
            work.shape.by_eights(pass).max(from_memory)
        }
        // Sums are loaded and stored again for every 16 rows of the matrix.
        Orientation::Plain => {
            let strip = work.bytes / work.shape.columns as f64 * MAX_COLUMNS.min(work.shape.columns) as f64;
            let again = if strip < machine.cache as f64 { 0.0 } else { from_memory };
            // A block's bias is added up for each row of activations beside its products.
            let biases = if work.biased { work.numbers / 2.0 * 0.42 * lanes } else { 0.0 };
            let pass = |rows: f64| {
                let steps = vectors * (decode + 1.65 * rows * (fma + (load + store) / 16.0));
                1.75 * steps + work.scaled * (1.0 + rows) + rows * biases + again
            };
            work.shape.by_fours(pass).max(from_memory)
        }
    }
}

pub(crate) fn multiply(product: &StoredProduct, isa: Isa, out: &mut Output<f32>) -> usize {
    dispatch(isa, product.matrix.codes, Multiply { product, isa, out });
    product.m
}

/// The same with rows that begin anywhere in a matrix, from element `first`; `product.matrix` has their number, and the
/// codes and scales of all.
pub(crate) fn multiply_from(product: &StoredProduct, first: usize, isa: Isa, out: &mut Output<f32>) {
    struct From<'a, 'o>(Multiply<'a, 'o>, usize);
    impl Job for From<'_, '_> {
        type Output = ();
        fn run<C: Codec>(self, codes: C) {
            let Self(mut multiply, first) = self;
            let parts = Parts { matrix: multiply.product.matrix, codes };
            let done = multiply.by_units(Decoded(&Shifted { parts: &parts, first }));
            debug_assert!(done, "floats fit every matrix");
        }
    }
    dispatch(isa, product.matrix.codes, From(Multiply { product, isa, out }, first));
}

/// Elements counted from one of a matrix.
struct Shifted<'a> {
    parts: &'a dyn Decode,
    first: usize,
}

impl Decode for Shifted<'_> {
    fn decode(&self, isa: Isa, start: usize, out: &mut [f32], ahead: usize) {
        self.parts.decode(isa, self.first + start, out, ahead);
    }
}

struct Multiply<'a, 'o> {
    product: &'a StoredProduct<'a>,
    isa: Isa,
    out: &'a mut Output<'o, f32>,
}

impl Job for Multiply<'_, '_> {
    type Output = ();

    fn run<C: Codec>(mut self, codes: C) {
        let &StoredProduct { x, matrix, .. } = self.product;
        // The sum with the codes and the one with the biases of a block could be opposite infinities.
        let apart = matrix.biases.is_none() || x.iter().all(|x| x.is_finite());
        // A table of sixteen floats takes several registers of eight.
        let computed = || codes.integers().filter(|_| panel_width_of(self.isa) == 16);
        let stored = apart
            && match computed() {
                Some(units) => self.by_units(units),
                None => codes.stored().is_some_and(|units| self.by_units(units)),
            };
        // Floats fit every matrix.
        let done = stored || self.by_units(Decoded(&Parts { matrix, codes }));
        debug_assert!(done, "a matrix that no kernel takes");
    }
}

impl Multiply<'_, '_> {
    /// Computes the product and says so, if rows are whole bytes, and rows and blocks whole spans of these units.
    fn by_units<U: Units>(&mut self, units: U) -> bool {
        let Self { isa, product, .. } = *self;
        let &StoredProduct { x, m, matrix, orientation, threads, .. } = product;
        if !(matrix.k * U::BITS).is_multiple_of(8) {
            return false;
        }
        let layout = &Layout::from_units(units);
        match orientation {
            Orientation::Transposed => {
                let Some(x) = &run(isa, Arrange { x, m, matrix, layout }) else { return false };
                self.out.for_each_run(threads, 16, &|out| run(isa, GemvDot { isa, x, matrix, units, out }));
            }
            Orientation::Plain => {
                let Some(step) = run(isa, Step(matrix, layout)) else { return false };
                let Plain { width, height, parts } = Plain::new(matrix, step);
                let rows = |part: usize| part * height..matrix.n.min((part + 1) * height);
                if parts == 1 {
                    self.out.for_each(threads, m, width, &|out| {
                        run(isa, GemvAxpy { isa, x, matrix, units, layout, rows: rows(0), out });
                    });
                    return true;
                }
                let mut sums = vec![0.0; parts * m * matrix.k];
                Output::new(&mut sums, matrix.k).for_each(threads, m, width, &|out| {
                    let rows = rows(out.rows().start / m);
                    run(isa, GemvAxpy { isa, x, matrix, units, layout, rows, out });
                });
                self.out.for_each(threads, m, self.out.columns().div_ceil(threads).next_multiple_of(16), &|out| {
                    run(isa, AddParts { sums: &sums, m, k: matrix.k, out });
                });
            }
        }
        true
    }
}

/// How `x W` is cut into tasks: rows of the matrix lie one after the other, so that as many of them as may be are read in one
/// go, and sums over parts of the rows are added up at the end. It depends on the sizes alone, as the sums do.
struct Plain {
    /// Columns of a task.
    width: usize,
    /// Rows of the matrix of a task.
    height: usize,
    /// Tasks for the same columns.
    parts: usize,
}

/// Tasks, where there are fewer for the columns alone: enough for the threads of most machines, and sums that are soon added.
const PARTS: usize = 32;

/// The fewest rows of the matrix of a task.
const FEWEST: usize = 64;

impl Plain {
    /// For columns whose tasks start at multiples of `step`.
    fn new(&Matrix { n, k, .. }: &Matrix, step: usize) -> Self {
        let tiles = k.div_ceil(MAX_COLUMNS);
        let width = k.div_ceil(tiles).next_multiple_of(step).min(MAX_COLUMNS);
        let height = n.div_ceil(PARTS.div_ceil(tiles)).max(FEWEST);
        Self { width, height, parts: n.div_ceil(height) }
    }
}

/// Adds the sums over parts of the rows of a matrix.
struct AddParts<'a> {
    /// For each part, `[m, k]`.
    sums: &'a [f32],
    m: usize,
    k: usize,
    /// All rows of the output, and some of its columns.
    out: Rectangle<'a, f32>,
}

impl Kernel for AddParts<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { sums, m, k, mut out } = self;
        let columns = out.columns();
        for (i, row) in out.rows().enumerate() {
            let out = out.row(row);
            for (part, sums) in sums.chunks_exact(m * k).enumerate() {
                let sums = &sums[i * k..][columns.clone()];
                if part == 0 {
                    out.copy_from_slice(sums);
                } else {
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
                }
            }
        }
    }
}
