//! The blocked product: panels of floats, made as they are needed, against a register tile.
//!
//! `out (+)= x * w`, where only its [`Panels`] know how `w` is stored. Each output element is summed along the depth in
//! one order, [`DEPTH`] terms at a time, however the output is cut into tasks.

use std::cell::Cell;

use crate::{
    Dense, Isa,
    engine::Shape,
    machine::{Cycles, Machine},
    output::{Output, Rectangle},
    simd::{Kernel, Simd, panel_width, panel_width_of, run},
    threads,
};

/// The steps of the sum that one panel covers; its floats fill half of a usual first-level cache.
pub(crate) const DEPTH: usize = 256;

/// Output columns of one task; bounds the part of the output that a task goes back to.
pub(crate) const TASK_COLUMNS: usize = 512;

/// Rows of `x` of one task; bounds the copy of `x` that a task makes.
const TASK_ROWS: usize = 256;

/// Floats between the rows of the copy of `x`: off a power of two, or its rows would share cache sets.
const STRIDE: usize = DEPTH + 16;

/// The widest panel of any instruction set.
const MAX_WIDTH: usize = 32;

/// The most rows of a register tile of any instruction set.
const MAX_ROWS: usize = 14;

/// The right-hand side of a product, in the form in which the register tile reads it.
pub(crate) trait Panels: Sync {
    /// The cycles that making a vector of a panel takes.
    fn cycles(&self, machine: &Machine) -> f64;

    /// Writes the panel of output columns `first..first + columns` and steps `start..start + depth` of the sum: row `d`
    /// holds what those columns are multiplied with at step `start + d`, `panel_width` floats. Columns beyond `columns`
    /// may hold any numbers.
    ///
    /// # Safety
    /// The columns and steps lie in the matrix, `depth` is at most [`DEPTH`], `start` a multiple of it, `first` one of
    /// the panel's width, the panel holds `depth * panel_width` initialized floats, and this machine has `isa`.
    unsafe fn fill(&self, isa: Isa, start: usize, depth: usize, first: usize, columns: usize, panel: *mut f32);
}

/// `out: [m, columns] = x: [m, depth] * panels: [depth, columns]`.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) x: Dense<&'a [f32]>,
    /// Called once for each panel, so that the tile is compiled once for all formats.
    pub(crate) panels: &'a dyn Panels,
    /// Whether the product is added to what the output holds.
    pub(crate) accumulate: bool,
    pub(crate) threads: usize,
}

/// What of a product the costs of its engines depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panelled {
    pub(crate) shape: Shape,
    /// The cycles that a vector of a panel takes.
    pub(crate) panel: f64,
}

/// The cycles of [`multiply`].
pub(crate) fn cost(work: &Panelled, machine: &Machine) -> f64 {
    let Cycles { fma, load, latency, rows: most, lanes, tile, .. } = *machine.cycles;
    let Shape { rows, columns, depth } = work.shape;
    let tiles = rows.div_ceil(most);
    let height = rows as f64 / tiles as f64;
    // A step of a register tile: two vectors of a panel, and a number of each row.
    let step = (2.0 * height * fma).max((2.0 + height) * load).max(latency);
    let steps = (columns as f64 / (2.0 * lanes)).ceil() * depth as f64;
    let panels = rows.div_ceil(TASK_ROWS) as f64 * work.shape.vectors(machine) * work.panel;
    panels + tiles as f64 * steps * tile * step + rows as f64 * depth as f64 / lanes * load
}

/// Computes all rows of the product.
pub(crate) fn multiply(product: &Product, isa: Isa, out: &mut Output<f32>) -> usize {
    let (threads, m, columns) = (product.threads, product.x.rows, out.columns());
    let each = threads::share(columns, threads, panel_width_of(isa), TASK_COLUMNS);
    let column_tasks = columns.div_ceil(each);
    // Narrow outputs are split by rows as well, at the price of making the panels once for each part.
    let row_tasks = m.div_ceil(TASK_ROWS).max((threads / column_tasks).min(m.div_ceil(16)));
    out.for_each(threads, m.div_ceil(row_tasks), each, &|out| run(isa, Tile { product, isa, out }));
    m
}

/// A rectangle of the output, of at most [`TASK_ROWS`] rows.
struct Tile<'a> {
    product: &'a Product<'a>,
    isa: Isa,
    out: Rectangle<'a, f32>,
}

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // Taken out rather than borrowed in a closure, which would not be compiled for the instruction set.
        let mut scratch = SCRATCH.take().unwrap_or_else(Scratch::new);
        self.run_in(simd, &mut scratch);
        SCRATCH.set(Some(scratch));
    }
}

impl Tile<'_> {
    #[inline(always)]
    fn run_in<S: Simd>(self, simd: S, scratch: &mut Scratch) {
        let Self { product, isa, mut out } = self;
        let (rows, columns) = (out.rows(), out.columns());
        // Tiles of nearly equal height waste less of the registers than full ones and a rest.
        let tiles = rows.len().div_ceil(S::ROWS);
        let mut beyond = [0.0; MAX_ROWS * MAX_WIDTH];
        for start in (0..product.x.columns).step_by(DEPTH) {
            let depth = DEPTH.min(product.x.columns - start);
            for (copy, row) in scratch.x.chunks_exact_mut(STRIDE).zip(rows.clone()) {
                copy[..depth].copy_from_slice(&product.x.row(row)[start..start + depth]);
            }
            let (begins, ends) = (start == 0, start + depth == product.x.columns);
            for first in columns.clone().step_by(panel_width::<S>()) {
                let width = panel_width::<S>().min(columns.end - first);
                let panel = scratch.panel.as_mut_ptr().cast::<f32>();
                // SAFETY: the ranges lie in the product; the panel holds DEPTH of the widest rows; `isa` is that of `simd`.
                unsafe { product.panels.fill(isa, start, depth, first, width, panel) };
                for tile in 0..tiles {
                    let from = tile * rows.len() / tiles;
                    let end = (tile + 1) * rows.len() / tiles;
                    // What is not complete yet lies in the order in which it is gone through.
                    let sums = Rows {
                        at: scratch.sums[(first - columns.start) * rows.len() + from * panel_width::<S>()..]
                            .as_mut_ptr(),
                        stride: panel_width::<S>(),
                    };
                    let place = Rows { at: out.at(rows.start + from, first), stride: out.stride() };
                    let before = if begins { product.accumulate.then_some(place) } else { Some(sums) };
                    let to = if ends { place } else { sums };
                    let whole = width == panel_width::<S>();
                    let step = Step {
                        x: scratch.x[from * STRIDE..].as_ptr(),
                        panel,
                        depth,
                        before: before.filter(|_| whole),
                        to: if whole { to } else { Rows { at: beyond.as_mut_ptr(), stride: MAX_WIDTH } },
                    };
                    // SAFETY: the rows and columns of the step lie in this tile, which no other task touches, and in the
                    // sums, which have TASK_ROWS rows of TASK_COLUMNS.
                    unsafe {
                        step.run(simd, end - from);
                        if !whole {
                            narrow(&beyond, end - from, width, before, to);
                        }
                    }
                }
            }
        }
    }
}

/// What a thread keeps between tiles.
struct Scratch {
    /// One panel.
    panel: Vec<Line>,
    /// The copy of a part of `x`.
    x: Vec<f32>,
    /// The sums so far. The rows of the output itself may lie a power of two apart, and share a few cache sets.
    sums: Vec<f32>,
}

/// A cache line, so that no vector of a panel spans two.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through a pointer")] [f32; 16]);

impl Scratch {
    fn new() -> Self {
        Self {
            panel: vec![Line([0.0; 16]); DEPTH * MAX_WIDTH / 16],
            x: vec![0.0; TASK_ROWS * STRIDE],
            sums: vec![0.0; TASK_ROWS * TASK_COLUMNS],
        }
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
}

/// Some columns of consecutive rows.
#[derive(Clone, Copy)]
struct Rows {
    at: *mut f32,
    /// Floats from row to row.
    stride: usize,
}

/// A register tile's part of the sum: `to[i][j] = before[i][j] + sum over d of x[i][d] * panel[d][j]`.
#[derive(Clone, Copy)]
struct Step {
    x: *const f32,
    panel: *const f32,
    depth: usize,
    /// Nothing, or where the sums so far are.
    before: Option<Rows>,
    to: Rows,
}

/// Adds and writes the first `width` columns of a tile that reaches beyond the output.
///
/// # Safety
/// `before` is readable and `to` writable, `rows` rows of `width` columns.
unsafe fn narrow(tile: &[f32; MAX_ROWS * MAX_WIDTH], rows: usize, width: usize, before: Option<Rows>, to: Rows) {
    for (i, row) in tile.chunks_exact(MAX_WIDTH).enumerate().take(rows) {
        for (j, sum) in row.iter().enumerate().take(width) {
            // SAFETY: the caller's promise.
            unsafe {
                let before = before.map(|before| *before.at.add(i * before.stride + j));
                *to.at.add(i * to.stride + j) = before.map_or(*sum, |before| before + sum);
            }
        }
    }
}

impl Step {
    /// # Safety
    /// `rows` rows are readable at `x` and `before` and writable at `to`, these as wide as a panel; `depth` panel rows
    /// are readable.
    #[inline(always)]
    unsafe fn run<S: Simd>(self, simd: S, rows: usize) {
        macro_rules! by_height {
            ($($height:literal)*) => {
                match rows {
                    // SAFETY: the caller's promise.
                    $($height if $height <= S::ROWS => unsafe { self.rows::<S, $height>(simd) },)*
                    _ => unreachable!("tiles have at most S::ROWS rows"),
                }
            };
        }
        by_height!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    }

    /// # Safety
    /// As for [`run`](Self::run).
    #[inline(always)]
    unsafe fn rows<S: Simd, const ROWS: usize>(self, simd: S) {
        let mut sums = [[simd.splat(0.0); 2]; ROWS];
        for d in 0..self.depth {
            // SAFETY: row d of the panel and step d of each row of x, as the caller promises.
            unsafe {
                let panel = self.panel.add(d * panel_width::<S>());
                let (left, right) = (simd.load(panel), simd.load(panel.add(S::LANES)));
                for (i, [a, b]) in sums.iter_mut().enumerate() {
                    let x = simd.splat(*self.x.add(i * STRIDE + d));
                    *a = simd.fma(x, left, *a);
                    *b = simd.fma(x, right, *b);
                }
            }
        }
        if let Some(before) = self.before {
            for (i, halves) in sums.iter_mut().enumerate() {
                for (half, sum) in halves.iter_mut().enumerate() {
                    // SAFETY: as above.
                    *sum = unsafe { simd.add(simd.load(before.at.add(i * before.stride + half * S::LANES)), *sum) };
                }
            }
        }
        for (i, halves) in sums.iter().enumerate() {
            for (half, sum) in halves.iter().enumerate() {
                // SAFETY: as above.
                unsafe { simd.store(self.to.at.add(i * self.to.stride + half * S::LANES), *sum) };
            }
        }
    }
}
