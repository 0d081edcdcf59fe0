//! The product of integers on AVX-512's VNNI: sums of four products of an unsigned and a signed byte.
//!
//! The weights are the unsigned side, 128 above what they stand for; sums start at -128 times the sum of the
//! activations, which takes that away again. Unsigned codes of eight bits are weights as they are, whose sums start at
//! zero. Panels of 32 rows are transposed by words, so that each lane sums one row's products and no sum ever crosses
//! lanes. The even and the odd elements of a word of eight 4-bit codes are two of the steps of the sum, and the activations
//! are laid out likewise.

mod microkernel;
mod packed_b;

use std::cell::Cell;

use microkernel::{STRIDE, Tile};
use packed_b::{Line, PANEL, Transpose, WIDTH, Words, decode};

use crate::{
    Isa, Matrix, Order, Scales, amx,
    integers::{IntegerProduct, Integers, KEPT, SIGN, STEP, Start, Work},
    machine::{Cycles, Machine, threads_for},
    output::{Output, Rectangle},
    shape::Shape,
    simd::{ByteSums, Kernel, Simd, run},
    threads,
};

/// Rows of activations of a task; bounds what it goes back to for each panel.
const TASK_ROWS: usize = 504;

/// Whether a machine has VNNI.
pub(crate) fn is_there(machine: &Machine) -> bool {
    matches!(machine.isa, Isa::Avx512 | Isa::Amx) && machine.byte_sums >= ByteSums::Fours
}

/// Whether rows and blocks are whole words.
pub(crate) fn takes(product: &IntegerProduct) -> bool {
    let Matrix { k, block, .. } = *product.matrix;
    let uniform = k.is_multiple_of(block) || block.is_multiple_of(k);
    uniform && k.is_multiple_of(8) && block.is_multiple_of(8)
}

/// Whether runs of elements that share a scale are whole tiles of AMX.
pub(crate) fn is_whole_tiles(product: &IntegerProduct) -> bool {
    Step::all(product.matrix).iter().all(|step| step.ends.iter().all(|end| end.is_multiple_of(amx::bytes::BYTES)))
}

pub(crate) fn cost(work: &Work, machine: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    let Cycles { load, dot, latency, .. } = *machine.cycles;
    let (parts, pairs) = (rows.div_ceil(microkernel::HEIGHT) as f64, columns.div_ceil(WIDTH) as f64);
    let height = rows as f64 / parts;
    // Two vectors of a panel, and four numbers of each row.
    let step = (2.0 * height * dot).max((2.0 + height) * load).max(latency / 4.0);
    let run = height * (8.0 + 4.0 * work.numbers) * load;
    panels_cost(work) + 1.6 * parts * pairs * (depth as f64 / 4.0 * step + work.runs as f64 * run)
}

pub(crate) fn tiles_cost(work: &Work, _: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    let squares = rows.div_ceil(amx::bytes::ROWS) as f64 * columns.div_ceil(WIDTH) as f64;
    // Measured: four products of tiles, which wait for the activations, and the scaling of a run.
    let (step, run) = (500.0, 250.0 + 100.0 * work.numbers);
    panels_cost(work) + squares * ((depth / amx::bytes::BYTES) as f64 * step + work.runs as f64 * run)
}

/// The cycles of making the panels, and of arranging the activations.
fn panels_cost(work: &Work) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    let times = rows.div_ceil(TASK_ROWS) as f64;
    // Words of 16 rows are transposed, and looked up.
    let step_cost = if work.pairs { 0.15 } else { 0.28 };
    times * columns as f64 * (depth as f64 * step_cost + work.runs as f64 * work.numbers * (2.5 + work.scale))
        + (rows * depth) as f64 * IN_ORDER
}

/// Computes all of a product that this module [`takes`], on a machine [with VNNI](Machine), or on AMX in whole tiles.
pub(crate) fn multiply<const TILES: bool>(product: &IntegerProduct, _: Isa, out: &mut Output<f32>) -> usize {
    let &IntegerProduct { rows, matrix, weights, threads } = product;
    let steps = &Step::all(matrix);
    let x = &Activations::new(product, steps);
    let m = rows.units.len();
    // Narrow enough to be shared evenly, wide enough that a thread's scratch memory is worth making.
    let width = matrix.n.div_ceil(8 * threads).next_multiple_of(WIDTH);
    out.for_each(threads, m.div_ceil(m.div_ceil(TASK_ROWS)), width, &|out| {
        let part = Part { x, units: &rows.units, steps, matrix, codes: &weights.codes, tiles: TILES };
        // SAFETY: the instructions are there.
        unsafe { part.run(out) };
    });
    m
}

/// A stretch of the rows that is summed at a time, cut where the scale changes.
pub(crate) struct Step {
    start: usize,
    len: usize,
    /// Where each run of elements that share a scale ends, from `start`.
    pub(crate) ends: Vec<usize>,
    /// The block of each run, counted from that of the row's first element.
    pub(crate) blocks: Vec<usize>,
}

impl Step {
    pub(crate) fn all(&Matrix { k, block, .. }: &Matrix) -> Vec<Self> {
        (0..k).step_by(STEP).map(|start| Self::new(start, k, block)).collect()
    }

    fn new(start: usize, k: usize, block: usize) -> Self {
        let len = STEP.min(k - start);
        let (mut ends, mut blocks) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < len {
            // Blocks longer than a row start with one.
            blocks.push((start + at) / block);
            at = ((start + at) / block * block + block - start).min(len);
            ends.push(at);
        }
        Self { start, len, ends, blocks }
    }
}

/// The activations in the order in which the tile reads them.
struct Activations {
    /// For each step and each row, [`STRIDE`] bytes; as many rows more as AMX may read beyond the last.
    codes: Vec<i8>,
    /// For each step and each row, where the sum of each run starts.
    starts: Vec<Start>,
    /// Where a step's part of `starts` begins.
    offsets: Vec<usize>,
}

impl Activations {
    fn new(product: &IntegerProduct, steps: &[Step]) -> Self {
        let &IntegerProduct { rows, matrix, weights, threads } = product;
        let (m, k, pairs) = (rows.units.len(), matrix.k, matches!(weights.codes, Integers::Table { .. }));
        let above = weights.codes.above(128);
        let mut offsets = Vec::with_capacity(steps.len());
        let mut total = 0;
        for step in steps {
            offsets.push(total);
            total += m * step.ends.len();
        }
        let (mut codes, mut starts) = ARRANGED.take();
        codes.resize((steps.len() * m + amx::bytes::ROWS) * STRIDE, 0);
        starts.resize(total, Start::default());
        let mut arranged = Self { codes, starts, offsets };
        let mut starts = &mut arranged.starts[..];
        let mut tasks = Vec::with_capacity(steps.len());
        for (step, codes) in steps.iter().zip(arranged.codes.chunks_exact_mut(m * STRIDE)) {
            let (these, rest) = starts.split_at_mut(m * step.ends.len());
            tasks.push(Arrange { rows: &rows.codes, k, step, pairs, above, codes, starts: these });
            starts = rest;
        }
        let threads = threads.min(threads_for((m * k) as f64 * IN_ORDER));
        threads::for_each_part(threads, tasks.into_iter(), &|task| run(Isa::Avx512, task));
        arranged
    }
}

impl Drop for Activations {
    fn drop(&mut self) {
        if self.codes.len() <= KEPT {
            ARRANGED.set((std::mem::take(&mut self.codes), std::mem::take(&mut self.starts)));
        }
    }
}

thread_local! {
    /// What a thread keeps of its latest product's.
    static ARRANGED: Cell<(Vec<i8>, Vec<Start>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// The cycles in which a number of the activations is brought in order.
const IN_ORDER: f64 = 0.25;

struct Arrange<'a> {
    rows: &'a [i8],
    k: usize,
    step: &'a Step,
    pairs: bool,
    /// What weights are above what they stand for.
    above: i32,
    codes: &'a mut [i8],
    starts: &'a mut [Start],
}

impl Kernel for Arrange<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { rows, k, step, pairs, above, codes, starts } = self;
        let starts = starts.chunks_exact_mut(step.ends.len());
        for ((row, to), starts) in rows.chunks_exact(k).zip(codes.chunks_exact_mut(STRIDE)).zip(starts) {
            let row = &row[step.start..step.start + step.len];
            if pairs {
                for (to, from) in to.as_chunks_mut::<8>().0.iter_mut().zip(row.as_chunks::<8>().0) {
                    *to = [from[0], from[2], from[4], from[6], from[1], from[3], from[5], from[7]];
                }
            } else {
                to[..step.len].copy_from_slice(row);
            }
            let mut from = 0;
            for (start, &end) in starts.iter_mut().zip(&step.ends) {
                *start = Start::new(&row[from..end], above);
                from = end;
            }
        }
    }
}

struct Part<'a> {
    x: &'a Activations,
    units: &'a [f32],
    steps: &'a [Step],
    matrix: &'a Matrix<'a>,
    codes: &'a Integers<'a>,
    /// Whether there is AMX, and runs are whole tiles.
    tiles: bool,
}

impl Part<'_> {
    /// Computes a rectangle of the output.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn run(&self, mut out: Rectangle<f32>) {
        let (m, rows, columns) = (self.units.len(), out.rows(), out.columns());
        let (row, height) = (rows.start, rows.len());
        let mut panel = vec![Line([0; 64]); PANEL / 64];
        let mut words = Box::new([[0; PANEL / 8]; 2]);
        let mut scales = vec![[0.0_f32; WIDTH]; STEP / 8];
        let mut biases = self.matrix.biases.map(|_| scales.clone());
        let mut sums = vec![[0.0_f32; WIDTH]; height];
        let mut products = Box::new([[[0_i32; WIDTH]; amx::bytes::ROWS]; 2]);
        // SAFETY: AMX is there if `tiles` says so.
        let tiles = self.tiles.then(|| unsafe { amx::Tiles::new() });
        for first in columns.clone().step_by(WIDTH) {
            let within = first - columns.start..columns.len().min(first - columns.start + WIDTH);
            sums.fill([0.0; WIDTH]);
            for (s, step) in self.steps.iter().enumerate() {
                self.fill(step, first, within.len(), &mut words, &mut panel);
                self.transpose(&self.matrix.scales, step, first, within.len(), &mut scales);
                if let (Some(numbers), Some(biases)) = (&self.matrix.biases, &mut biases) {
                    self.transpose(numbers, step, first, within.len(), biases);
                }
                let parts = height.div_ceil(if tiles.is_some() { amx::bytes::ROWS } else { microkernel::HEIGHT });
                for part in 0..parts {
                    let (from, to) = (part * height / parts, (part + 1) * height / parts);
                    let tile = Tile {
                        panel: panel.as_ptr().cast(),
                        x: self.x.codes[(s * m + row + from) * STRIDE..].as_ptr(),
                        starts: self.x.starts[self.x.offsets[s] + (row + from) * step.ends.len()..].as_ptr(),
                        ends: &step.ends,
                        scales: &scales,
                        biases: biases.as_deref(),
                        sums: sums[from..to].as_mut_ptr().cast(),
                    };
                    // SAFETY: all of it was made for `to - from` rows and the runs of the step, and more rows can be read.
                    unsafe {
                        match &tiles {
                            Some(tiles) => tile.run_tiles(tiles, to - from, &mut products),
                            None => tile.run(to - from),
                        }
                    }
                }
            }
            for (i, sums) in rows.clone().zip(&sums) {
                for (out, sum) in out.row(i)[within.clone()].iter_mut().zip(sums) {
                    *out = sum * self.units[i];
                }
            }
        }
    }

    /// Makes the panel of one step: bytes of four elements for each of its rows.
    fn fill(&self, step: &Step, first: usize, columns: usize, words: &mut [Words; 2], panel: &mut [Line]) {
        let k = self.matrix.k;
        let (bytes, per_word) = match *self.codes {
            Integers::Table { bytes, .. } => (bytes, 8),
            Integers::Bytes { bytes, .. } => (bytes, 4),
        };
        let row_bytes = k / per_word * 4;
        let count = step.len / per_word;
        let bytes = &bytes[first * row_bytes + step.start / per_word * 4..];
        run(Isa::Avx512, Transpose { bytes, row_bytes, rows: columns, count, words });
        match self.codes {
            Integers::Table { order, values, .. } => {
                let table = values.map(|value| value.cast_unsigned() ^ SIGN);
                // SAFETY: VNNI was detected, which no machine has without the rest of AVX-512 that is used here.
                unsafe { decode(words, count, table, *order == Order::HighFirst, panel) };
            }
            Integers::Bytes { .. } => {
                let flip = u32::from_le_bytes([if self.codes.flips_sign(128) { SIGN } else { 0 }; 4]);
                for (half, words) in words.iter().enumerate() {
                    let lines = panel.iter_mut().skip(half).step_by(2);
                    for (line, words) in lines.zip(words.as_chunks::<16>().0).take(count) {
                        for (bytes, word) in line.0.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                            *bytes = (word ^ flip).to_le_bytes();
                        }
                    }
                }
            }
        }
    }

    /// Writes the scales, or the biases, of the runs of one step.
    fn transpose(&self, numbers: &Scales, step: &Step, first: usize, columns: usize, to: &mut [[f32; WIDTH]]) {
        let Matrix { k, block, .. } = *self.matrix;
        // Several blocks to a row, or several rows to a block.
        let (blocks, rows) = ((k / block).max(1), (block / k).max(1));
        for row in 0..columns {
            let base = (first + row) * blocks / rows;
            for (at, to) in step.blocks.iter().zip(&mut *to) {
                to[row] = match numbers {
                    Scales::F32(numbers) => numbers[base + at],
                    other => other.get(base + at),
                };
            }
        }
    }
}
