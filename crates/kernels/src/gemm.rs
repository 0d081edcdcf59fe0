//! The blocked product: packed A against packed B, a panel of each at a time, by a microkernel.
//!
//! `out (+)= x * w`, where only its [`PackB`] know how `w` is stored. Each output element is summed along the depth in
//! one order, [`DEPTH`] terms at a time, however the output is cut into tasks.

use std::cell::Cell;

use crate::{
    Factors, Isa, Operand,
    machine::{Cycles, Machine},
    microkernel::{DEPTH, MAX_WIDTH, Microkernel, PanelB, Rows},
    output::{Output, Rectangle},
    packed_a::{Line, PackedA, PackedRows},
    shape::Shape,
    simd::{Kernel, LINE_FLOATS, Simd, panel_width, panel_width_of, run},
    threads,
};

/// Output columns of one task here; bounds the part of the output that a task goes back to.
const TASK_WIDTH: usize = 256;

/// Rows of `x` that are copied, and multiplied, at a time.
const ROWS: usize = 512;

/// Floats of such a copy beyond which it has fewer rows.
const COPIED: usize = 1 << 21;

/// Panels of A up to which a panel of B is read where it lies.
const FEW_PANELS: usize = 6;

/// What packs the right-hand side of a product: panels of B, in the order in which the microkernel reads them.
pub(crate) trait PackB: Sync {
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

    /// Where a panel's steps from `start` on lie as the microkernel reads them, if they do.
    fn in_place(&self, _start: usize, _first: usize) -> Option<PanelB> {
        None
    }
}

/// `out = alpha * x * panels + beta * out`, with `x: [m, depth]`, `panels: [depth, columns]` and `out: [m, columns]`.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) x: Operand<'a>,
    /// Called once for each panel, so that the tile is compiled once for all formats.
    pub(crate) panels: &'a dyn PackB,
    pub(crate) columns: usize,
    pub(crate) factors: Factors,
    pub(crate) threads: usize,
}

/// What of a product the costs of its engines depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedWork {
    pub(crate) shape: Shape,
    /// The cycles that a vector of a panel takes.
    pub(crate) panel: f64,
}

pub(crate) fn cost(work: &PackedWork, machine: &Machine) -> f64 {
    let Cycles { fma, load, latency, rows: height_max, lanes, tile, .. } = *machine.cycles;
    let Shape { rows, columns, depth } = work.shape;
    let tiles = rows.div_ceil(height_max);
    let height = rows as f64 / tiles as f64;
    // A step of a register tile: two vectors of a panel, and a number of each row.
    let step = (2.0 * height * fma).max((2.0 + height) * load).max(latency);
    let steps = (columns as f64 / (2.0 * lanes)).ceil() * depth as f64;
    let panels = rows.div_ceil(ROWS) as f64 * work.shape.vectors(machine) * work.panel;
    panels + tiles as f64 * steps * tile * step + rows as f64 * depth as f64 / lanes * load
}

pub(crate) fn multiply(product: &Product, isa: Isa, out: &mut Output<f32>) -> usize {
    let (threads, x, m) = (product.threads, product.x, product.x.rows());
    let cache = Machine::from_isa(isa).cache;
    let chunks = m.div_ceil((COPIED / x.columns()).clamp(16, ROWS));
    for first in (0..m).step_by(m.div_ceil(chunks)) {
        let rows = m.div_ceil(chunks).min(m - first);
        let packed_rows = PackedRows::new(isa, x, product.factors.alpha, first, rows, cache);
        let width = threads::share(product.columns, threads, panel_width_of(isa), TASK_WIDTH);
        // Narrow outputs are split by rows as well, at the price of making the panels once for each part.
        let tasks = (threads / product.columns.div_ceil(width)).clamp(1, packed_rows.count);
        let height = packed_rows.count.div_ceil(tasks) * packed_rows.height;
        out.rows_from(first, rows).for_each(threads, height, width, &|out| {
            run(isa, Tile { product, isa, packed_rows, out });
        });
    }
    m
}

/// A rectangle of the output, of whole panels of A.
struct Tile<'a> {
    product: &'a Product<'a>,
    isa: Isa,
    packed_rows: PackedRows<'a>,
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
        let Self { product, isa, packed_rows, mut out } = self;
        let (rows, columns) = (out.rows(), out.columns());
        let whole_depth = product.x.columns();
        if whole_depth > DEPTH {
            scratch.sums.resize(scratch.sums.len().max(rows.len() * columns.len().next_multiple_of(MAX_WIDTH)), 0.0);
        }
        scratch.a.begin(&packed_rows, S::LANES);
        let panels_a = rows.len().div_ceil(packed_rows.height);
        for start in (0..whole_depth).step_by(DEPTH) {
            let depth = DEPTH.min(whole_depth - start);
            let (begins, ends) = (start == 0, start + depth == whole_depth);
            for first in columns.clone().step_by(panel_width::<S>()) {
                let width = panel_width::<S>().min(columns.end - first);
                let whole = width == panel_width::<S>();
                let b = if whole && panels_a <= FEW_PANELS { product.panels.in_place(start, first) } else { None };
                let b = b.unwrap_or_else(|| {
                    let panel = scratch.panel.as_mut_ptr().cast::<f32>();
                    // SAFETY: the ranges lie in the product; the panel holds DEPTH of the widest rows; `isa` is that of `simd`.
                    unsafe { product.panels.fill(isa, start, depth, first, width, panel) };
                    PanelB { at: panel, stride: panel_width::<S>() }
                });
                for row in rows.clone().step_by(packed_rows.height) {
                    let height = packed_rows.height.min(rows.end - row);
                    // What is not complete yet lies in the order in which it is gone through.
                    let at = (first - columns.start) * rows.len() + (row - rows.start) * panel_width::<S>();
                    let sums = Rows { at: scratch.sums.as_mut_ptr().wrapping_add(at), stride: panel_width::<S>() };
                    let place = Rows { at: out.at(row, first), stride: out.stride() };
                    let before = if begins { (place, product.factors.beta) } else { (sums, 1.0) };
                    let step = Microkernel {
                        a: scratch.a.panel::<S>(&packed_rows, isa, row, start, depth),
                        b,
                        depth,
                        before: Some(before).filter(|(_, factor)| *factor != 0.0),
                        to: if ends { place } else { sums },
                        width,
                    };
                    // SAFETY: the rows and columns of the step lie in this tile, which no other task touches, and in the
                    // sums, which have as many columns of all rows.
                    unsafe { step.run(simd, height) };
                }
            }
        }
    }
}

/// What a thread keeps between tiles.
struct Scratch {
    /// One panel.
    panel: Vec<Line>,
    a: PackedA,
    /// The sums so far. The rows of the output itself may lie a power of two apart, and share a few cache sets.
    sums: Vec<f32>,
}

impl Scratch {
    fn new() -> Self {
        let panel = vec![Line([0.0; LINE_FLOATS]); DEPTH * MAX_WIDTH / LINE_FLOATS];
        Self { panel, a: PackedA::default(), sums: Vec::new() }
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
}
