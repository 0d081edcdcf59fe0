//! Matrices and activations as integers, and their product on every instruction set.

use std::cell::Cell;

use crate::{
    Codes, Floats, Isa, KernelError, Matrix, Order,
    int8_round::round_rows,
    machine::Machine,
    matrix::{bytes, offset},
    output::Output,
    shape::Shape,
    simd::{Kernel, Simd, run},
};

/// A product of integers, which has results and terms.
pub(crate) struct IntegerProduct<'a> {
    pub(crate) rows: &'a Rows,
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) weights: &'a Weights<'a>,
    pub(crate) threads: usize,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl IntegerProduct<'_> {
    /// Whether rows, and runs of elements that share a scale, are whole in so many bytes of codes.
    pub(crate) fn is_whole(&self, bytes: usize) -> bool {
        let Matrix { k, block, .. } = *self.matrix;
        let elements = self.weights.codes.elements(bytes);
        let uniform = k.is_multiple_of(block) || block.is_multiple_of(k);
        uniform && k.is_multiple_of(elements) && block.is_multiple_of(elements)
    }
}

/// What of a product the costs of its engines depend on.
pub(crate) struct Work {
    pub(crate) shape: Shape,
    /// Whether a byte holds two codes.
    pub(crate) pairs: bool,
    /// Runs of a row's elements that share a scale and are summed together.
    pub(crate) runs: usize,
    /// The numbers of a run: a scale, or a scale and a bias.
    pub(crate) numbers: f64,
    /// The cycles to read such a number one by one.
    pub(crate) scale: f64,
}

impl Work {
    pub(crate) fn new(product: &IntegerProduct, columns: usize) -> Self {
        let &IntegerProduct { rows, matrix, weights, .. } = product;
        let shape = Shape { rows: rows.units.len(), columns, depth: matrix.k };
        let pairs = matches!(weights.codes, Integers::Table { .. });
        let scale = if matrix.scales.floats().is_some() { 0.5 } else { 7.0 };
        let numbers = if matrix.biases.is_some() { 2.0 } else { 1.0 };
        Self { shape, pairs, runs: matrix.k.div_ceil(matrix.block.min(STEP)), numbers, scale }
    }
}

pub(crate) fn cost(work: &Work, machine: &Machine) -> f64 {
    let Shape { rows, columns, .. } = work.shape;
    let (rows, vectors) = (rows as f64, work.shape.vectors(machine));
    let codes = if work.pairs { 2.0 * machine.cycles.lanes } else { 1.0 };
    vectors * (codes + rows * 3.0 * machine.cycles.dot)
        + columns as f64 * rows * work.runs as f64 * (1.0 + work.numbers) * machine.cycles.sum
}

/// Elements of a row whose products are summed before they are scaled, at most. Every such sum is an `f32`: unsigned bytes, the
/// largest integers, have sums below 512 * 255 * 127 < 2^24.
pub(crate) const STEP: usize = 512;

/// The runs of a row's elements that share a scale and are summed together: for each how many elements it has, and which block
/// it lies in, counted from that of the row's first element. Blocks longer than a row start with one.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn runs(&Matrix { k, block, .. }: &Matrix) -> (Vec<usize>, Vec<usize>) {
    let (mut runs, mut blocks) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < k {
        let end = ((at / block + 1) * block).min((at / STEP + 1) * STEP).min(k);
        runs.push(end - at);
        blocks.push(at / block);
        at = end;
    }
    (runs, blocks)
}

/// For each row of `k` activations the sum of each run.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn run_sums(rows: &[i8], k: usize, runs: &[usize]) -> Vec<i32> {
    let mut sums = Vec::with_capacity(runs.len() * (rows.len() / k) + 1);
    for row in rows.chunks_exact(k) {
        let mut rest = row;
        for run in runs {
            let (these, others) = rest.split_at(*run);
            sums.push(these.iter().map(|x| i32::from(*x)).sum());
            rest = others;
        }
    }
    sums
}

/// What the sum over a run of a row's elements begins with, and the sum of the run's activations, which its bias is multiplied
/// with.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Default)]
pub(crate) struct Start {
    pub(crate) products: i32,
    pub(crate) activations: f32,
}

#[cfg(target_arch = "x86_64")]
impl Start {
    /// The start of a run of activations that meet weights which are so much above what they stand for.
    #[inline(always)]
    pub(crate) fn new(x: &[i8], above: i32) -> Self {
        let sum = x.iter().map(|x| i32::from(*x)).sum::<i32>();
        Self { products: -above * sum, activations: sum as f32 }
    }
}

/// A matrix's codes as integers.
pub(crate) struct Weights<'a> {
    pub(crate) codes: Integers<'a>,
    /// What an integer is worth, in units of its block's scale.
    pub(crate) unit: f32,
}

/// Integers of a matrix, as they are stored.
pub(crate) enum Integers<'a> {
    /// Codes of four bits, and what they stand for.
    Table { bytes: &'a [u8], order: Order, values: [i8; 16] },
    /// Integers of eight bits.
    Bytes { bytes: &'a [u8], kind: Kind },
}

/// What a byte stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Itself.
    Unsigned,
    /// Itself less 128.
    Offset,
    /// Itself, signed.
    Signed,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Kind {
    /// Whether bytes have their [`SIGN`] flipped to be weights: signed ones where weights are unsigned, and the others where they
    /// are signed. Weights are above signed integers by `signed`, as [`Integers::above`] says.
    pub(crate) const fn flips_sign(self, signed: i32) -> bool {
        matches!(self, Self::Signed) == (signed != 0)
    }

    /// What the weights are above the integers.
    pub(crate) const fn above(self, signed: i32) -> i32 {
        if let Self::Unsigned = self { signed - 128 } else { signed }
    }
}

/// A stream of integers that are no bytes.
#[derive(Clone, Copy)]
pub(crate) struct Stream<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) bits: u32,
    /// What a code is more than its integer.
    pub(crate) above: u8,
}

impl<'a> Stream<'a> {
    /// The stream of codes that have to be unpacked.
    pub(crate) fn from_codes(codes: &Codes<'a>) -> Option<Self> {
        match *codes {
            Codes::Unsigned { bytes, bits: bits @ (2 | 3 | 5..=7) } => Some(Self { bytes, bits, above: 0 }),
            Codes::Offset { bytes, bits: bits @ (2 | 3 | 5..=7) } => {
                Some(Self { bytes, bits, above: offset(bits) as u8 })
            }
            _ => None,
        }
    }
}

/// The table of codes of four bits that stand for themselves.
pub(crate) const THEMSELVES: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// The bit that turns a signed byte into the unsigned one that is 128 more, and back.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) const SIGN: u8 = 0x80;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Integers<'_> {
    /// Elements of so many bytes of codes.
    pub(crate) fn elements(&self, bytes: usize) -> usize {
        match self {
            Integers::Table { .. } => 2 * bytes,
            Integers::Bytes { .. } => bytes,
        }
    }

    /// What the weights are above the integers. `signed` is that for signed integers: 128 on a machine that multiplies
    /// unsigned bytes, and 0 on one that multiplies signed ones.
    pub(crate) fn above(&self, signed: i32) -> i32 {
        if let Integers::Bytes { kind, .. } = self { kind.above(signed) } else { signed }
    }

    /// Whether bytes have their [`SIGN`] flipped to be weights.
    pub(crate) fn flips_sign(&self, signed: i32) -> bool {
        matches!(self, Integers::Bytes { kind, .. } if kind.flips_sign(signed))
    }
}

impl<'a> Weights<'a> {
    /// The weights of signed bytes.
    pub(crate) fn signed(codes: &'a [i8]) -> Self {
        Self { codes: Integers::Bytes { bytes: bytes(codes), kind: Kind::Signed }, unit: 1.0 }
    }

    pub(crate) fn new(matrix: &Matrix<'a>) -> Result<Self, KernelError> {
        let low_first = |bytes, values| Integers::Table { bytes, order: Order::LowFirst, values };
        let refused = |what| Err(KernelError::Int8 { what });
        let codes = match matrix.codes {
            Codes::Table { values, .. } if !values.iter().all(|value| value.is_finite()) => {
                return refused("tables with values that are not finite");
            }
            // A sum of activations would have to be in units of the table.
            Codes::Table { .. } if matrix.biases.is_some() => return refused("biases of a table"),
            Codes::Table { bytes, bits: 4, order, values } => {
                let (values, unit) = rounded_table(values);
                return Ok(Self { codes: Integers::Table { bytes, order, values }, unit });
            }
            Codes::Unsigned { bytes, bits: 4 } => low_first(bytes, THEMSELVES),
            Codes::Offset { bytes, bits: 4 } => low_first(bytes, THEMSELVES.map(|code| code - 8)),
            Codes::Unsigned { bytes, bits: 8 } => Integers::Bytes { bytes, kind: Kind::Unsigned },
            Codes::Offset { bytes, bits: 8 } => Integers::Bytes { bytes, kind: Kind::Offset },
            Codes::Signed { codes } => return Ok(Self::signed(codes)),
            Codes::Table { .. } => return refused("tables of fewer than 4 bits"),
            Codes::Unsigned { .. } | Codes::Offset { .. } => return refused("integers of one bit"),
            Codes::E4m3 { .. } => return refused("E4M3 codes"),
            Codes::F16 { .. } | Codes::Bf16 { .. } => return refused("half floats"),
            Codes::Bytes { .. } => return refused("tables of 256 values"),
        };
        Ok(Self { codes, unit: 1.0 })
    }
}

/// A table's values as integers, and their unit.
type Rounded = ([i8; 16], f32);

/// [`round_table`], which takes longer than a small product, of a table that is mostly the latest one again.
fn rounded_table(values: &[f32; 16]) -> Rounded {
    thread_local! {
        static LATEST: Cell<Option<([u32; 16], Rounded)>> = const { Cell::new(None) };
    }
    let bits = values.map(f32::to_bits);
    if let Some((_, rounded)) = LATEST.get().filter(|(of, _)| *of == bits) {
        return rounded;
    }
    let rounded = round_table(values);
    LATEST.set(Some((bits, rounded)));
    rounded
}

/// The integers nearest to a table's values in the unit that the squares of their errors are least in, and the unit.
fn round_table(values: &[f32; 16]) -> Rounded {
    let top = f64::from(values.iter().fold(0.0_f32, |top, value| top.max(value.abs())));
    let round = |steps: u8| values.map(|value| (f64::from(value) * (f64::from(steps) / top)).round_ties_even());
    let error = |steps: u8| -> f64 {
        let exact = values.iter().map(|value| f64::from(*value) / top);
        exact.zip(round(steps)).map(|(value, integer)| (value - integer / f64::from(steps)).powi(2)).sum()
    };
    // A table of zeros, or with a NaN, has no error that compares; any number of steps will do.
    let steps = (64..=127).min_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap_or(127);
    (round(steps).map(|integer| integer as i8), (top / f64::from(steps)) as f32)
}

/// Activations as integers.
pub(crate) struct Rows {
    /// `[m, k]`.
    pub(crate) codes: Vec<i8>,
    /// What a sum of products is worth in each row, in units of the block's scale.
    pub(crate) units: Vec<f32>,
}

impl Rows {
    /// Rounds rows of `k` floats.
    pub(crate) fn new(isa: Isa, x: &Floats, k: usize) -> Self {
        let mut codes = CODES.take();
        codes.resize(x.len(), 0);
        let mut units = vec![0.0; x.len().checked_div(k).unwrap_or(0)];
        round_rows(isa, x, None, &mut codes, &mut units);
        Self { codes, units }
    }

    /// Rows that are integers already.
    pub(crate) fn from_codes(codes: &[i8], units: &[f32]) -> Self {
        let mut buffer = CODES.take();
        buffer.clear();
        buffer.extend_from_slice(codes);
        Self { codes: buffer, units: units.to_vec() }
    }
}

/// Fresh pages take longer than rounding.
impl Drop for Rows {
    fn drop(&mut self) {
        if self.codes.len() <= KEPT {
            CODES.set(std::mem::take(&mut self.codes));
        }
    }
}

thread_local! {
    static CODES: Cell<Vec<i8>> = const { Cell::new(Vec::new()) };
}

/// Bytes that a thread keeps for the activations of its next product.
pub(crate) const KEPT: usize = 1 << 24;

/// Computes all of the product, by rows of the matrix, each of which is decoded once.
pub(crate) fn multiply(product: &IntegerProduct, isa: Isa, out: &mut Output<f32>) -> usize {
    let &IntegerProduct { rows, matrix, threads, .. } = product;
    let (m, n, k) = (rows.units.len(), matrix.n, matrix.k);
    let mut transposed = vec![0.0; m * n];
    let totals = &if matrix.biases.is_some() { totals(&rows.codes, k) } else { Vec::new() };
    let share = (1_usize << 16).div_ceil(k * m).clamp(1, n.div_ceil(4 * threads));
    Output::new(&mut transposed, m).for_each(threads, share, m, &|mut part| {
        for row in part.rows() {
            run(isa, Row { product, totals, index: row, sums: part.row(row) });
        }
    });
    out.for_each(1, 1, n, &|mut out| {
        let i = out.rows().start;
        for (j, y) in out.row(i).iter_mut().enumerate() {
            *y = transposed[j * m + i] * rows.units[i];
        }
    });
    m
}

/// For each row of `k` activations the sums of the first none to `k` of them, modulo 2^32: blocks may begin anywhere.
fn totals(rows: &[i8], k: usize) -> Vec<i32> {
    let mut totals = Vec::with_capacity(rows.len() / k * (k + 1));
    for row in rows.chunks_exact(k) {
        let mut total = 0_i32;
        totals.push(total);
        totals.extend(row.iter().map(|x| {
            total = total.wrapping_add(i32::from(*x));
            total
        }));
    }
    totals
}

/// A row of a matrix against all rows of activations, in any layout.
struct Row<'a> {
    product: &'a IntegerProduct<'a>,
    /// [`totals`] of the activations, where there are biases.
    totals: &'a [i32],
    index: usize,
    /// From zero on.
    sums: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { product: IntegerProduct { rows, matrix, weights, .. }, totals, index, sums } = self;
        let k = matrix.k;
        let start = index * k;
        let mut integers = vec![0_i16; k];
        match &weights.codes {
            Integers::Bytes { bytes, kind } => {
                for (value, byte) in integers.iter_mut().zip(&bytes[start..start + k]) {
                    *value = match kind {
                        Kind::Unsigned => i16::from(*byte),
                        Kind::Offset => i16::from(*byte) - 128,
                        Kind::Signed => i16::from(byte.cast_signed()),
                    };
                }
            }
            Integers::Table { bytes, order, values } => {
                for (e, value) in (start..).zip(&mut integers) {
                    let high = (e % 2 == 0) == (*order == Order::HighFirst);
                    let byte = bytes[e / 2];
                    *value = i16::from(values[usize::from(if high { byte >> 4 } else { byte & 15 })]);
                }
            }
        }
        for (i, (out, x)) in sums.iter_mut().zip(rows.codes.chunks_exact(k)).enumerate() {
            let mut at = 0;
            while at < k {
                let block = (start + at) / matrix.block;
                let end = ((block + 1) * matrix.block - start).min((at / STEP + 1) * STEP).min(k);
                let products = x[at..end].iter().zip(&integers[at..end]);
                let sum: i32 = products.map(|(x, w)| i32::from(*x) * i32::from(*w)).sum();
                let mut term = sum as f32 * matrix.scales.get(block);
                if let Some(biases) = &matrix.biases {
                    let totals = &totals[i * (k + 1)..];
                    term += totals[end].wrapping_sub(totals[at]) as f32 * biases.get(block);
                }
                *out += term;
                at = end;
            }
        }
    }
}
