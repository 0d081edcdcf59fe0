//! The blocked product: packed A against packed B, a panel of each at a time, by a microkernel.
//!
//! `out (+)= x * w`, where only its [`PackB`] know how `w` is stored. Each output element is summed along the depth in
//! one order, [`DEPTH`] terms at a time, however the output is cut into tasks.

use std::{
    cell::Cell,
    slice,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    Factors, Isa, Operand,
    copy::{Block, copy},
    factors::scale,
    machine::{Cycles, Machine},
    output::{Output, Rectangle},
    shape::Shape,
    simd::{Kernel, Simd, panel_width, panel_width_of, run},
    threads,
};

/// The steps of the sum that one panel covers; its floats fill half of a usual first-level cache.
pub(crate) const DEPTH: usize = 256;

/// Output columns of one task that goes through all rows of a matrix.
pub(crate) const TASK_COLUMNS: usize = 512;

/// Output columns of one task here; bounds the part of the output that a task goes back to.
const TASK_WIDTH: usize = 256;

/// Rows of `x` that are copied, and multiplied, at a time.
const ROWS: usize = 512;

/// Floats of such a copy beyond which it has fewer rows.
const COPIED: usize = 1 << 21;

/// Steps between one that is multiplied and one that is asked for.
const AHEAD: usize = 8;

/// The widest panel of any instruction set.
const MAX_WIDTH: usize = 32;

/// The most rows of a register tile of any instruction set.
const MAX_ROWS: usize = 14;

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

/// The cycles of [`multiply`].
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

/// Computes all rows of the product.
pub(crate) fn multiply(product: &Product, isa: Isa, out: &mut Output<f32>) -> usize {
    let (threads, m) = (product.threads, product.x.rows());
    let chunks = m.div_ceil((COPIED / product.x.columns()).clamp(16, ROWS));
    for first in (0..m).step_by(m.div_ceil(chunks)) {
        let packed_rows = PackedRows::new(isa, first, m.div_ceil(chunks).min(m - first));
        let each = threads::share(product.columns, threads, panel_width_of(isa), TASK_WIDTH);
        // Narrow outputs are split by rows as well, at the price of making the panels once for each part.
        let tasks = (threads / product.columns.div_ceil(each)).clamp(1, packed_rows.count);
        let height = packed_rows.count.div_ceil(tasks) * packed_rows.height;
        out.rows_from(first, packed_rows.rows).for_each(threads, height, each, &|out| {
            run(isa, Tile { product, isa, packed_rows, out });
        });
    }
    m
}

/// Some rows of `x`, and how they are cut into panels of A, each as high as a microkernel.
#[derive(Clone, Copy)]
struct PackedRows {
    /// No others have the same.
    id: usize,
    first: usize,
    rows: usize,
    count: usize,
    /// Rows of a panel of A, of which the last may have fewer.
    height: usize,
}

impl PackedRows {
    fn new(isa: Isa, first: usize, rows: usize) -> Self {
        // Tiles of nearly equal height waste less of the registers than full ones and a rest.
        let height = rows.div_ceil(rows.div_ceil(run(isa, Height)));
        Self { id: unique(), first, rows, count: rows.div_ceil(height), height }
    }
}

/// A number that nothing else gets in this process.
pub(crate) fn unique() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Packed A: what a thread has copied of some rows of `x`, times `alpha`, in the order in which the microkernel reads it.
///
/// Each thread has its own: what another one has just written takes longer to read than to copy.
#[derive(Default)]
struct PackedA {
    rows_id: usize,
    /// For each [`DEPTH`] steps and each panel of A: step by step a vector, which holds the number of each row.
    lines: Vec<Line>,
    /// Whether the part of a panel of A for these steps is there.
    done: Vec<bool>,
}

impl PackedA {
    /// Forgets what belongs to other rows.
    fn begin(&mut self, packed_rows: PackedRows, lanes: usize, depth: usize) {
        if self.rows_id != packed_rows.id {
            self.rows_id = packed_rows.id;
            let lines = (packed_rows.count * lanes * depth).div_ceil(LINE);
            if self.lines.len() > lines.max(2 * COPIED / LINE) {
                self.lines = Vec::new();
            }
            self.lines.resize(lines.max(self.lines.len()), Line([0.0; LINE]));
            self.done.clear();
            self.done.resize(packed_rows.count * depth.div_ceil(DEPTH), false);
        }
    }

    /// The panel of A that starts with this row, of so many steps from `start` on.
    #[inline(always)]
    fn panel_a<S: Simd>(
        &mut self,
        product: &Product,
        packed_rows: PackedRows,
        isa: Isa,
        row: usize,
        start: usize,
        depth: usize,
    ) -> *const f32 {
        let panel_a = row / packed_rows.height;
        let to = self
            .lines
            .as_mut_ptr()
            .cast::<f32>()
            .wrapping_add((start * packed_rows.count + panel_a * depth) * S::LANES);
        let done = &mut self.done[start / DEPTH * packed_rows.count + panel_a];
        if !*done {
            *done = true;
            let x = product.x;
            let row = packed_rows.first + row;
            // Whole vectors are copied faster; what belongs to the next panel of A is not looked at.
            let height = S::LANES.min(x.rows() - row);
            let (rows, columns) = if x.is_plain() { (height, depth) } else { (depth, height) };
            let from = x.at(row, start);
            let block = Block { from, stride: x.matrix.stride, rows, columns, to, to_stride: S::LANES, next: 0 };
            // SAFETY: the rows and steps lie in `x`, and there is a vector for each of the steps.
            unsafe { copy(isa, block, x.transposed().orientation) };
            if product.factors.alpha.to_bits() != 1.0_f32.to_bits() {
                // SAFETY: they were just written.
                scale(unsafe { slice::from_raw_parts_mut(to, depth * S::LANES) }, product.factors.alpha);
            }
        }
        to
    }
}

/// Rows of the register tile.
struct Height;

impl Kernel for Height {
    type Output = usize;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::ROWS
    }
}

/// A rectangle of the output, of whole panels of A.
struct Tile<'a> {
    product: &'a Product<'a>,
    isa: Isa,
    packed_rows: PackedRows,
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
        let mut beyond = [0.0; MAX_ROWS * MAX_WIDTH];
        let all = product.x.columns();
        if all > DEPTH {
            scratch.sums.resize(scratch.sums.len().max(rows.len() * TASK_WIDTH), 0.0);
        }
        scratch.x.begin(packed_rows, S::LANES, all);
        for start in (0..all).step_by(DEPTH) {
            let depth = DEPTH.min(all - start);
            let (begins, ends) = (start == 0, start + depth == all);
            for first in columns.clone().step_by(panel_width::<S>()) {
                let width = panel_width::<S>().min(columns.end - first);
                let panel = scratch.panel.as_mut_ptr().cast::<f32>();
                // SAFETY: the ranges lie in the product; the panel holds DEPTH of the widest rows; `isa` is that of `simd`.
                unsafe { product.panels.fill(isa, start, depth, first, width, panel) };
                for row in rows.clone().step_by(packed_rows.height) {
                    let height = packed_rows.height.min(rows.end - row);
                    // What is not complete yet lies in the order in which it is gone through.
                    let at = (first - columns.start) * rows.len() + (row - rows.start) * panel_width::<S>();
                    let sums = Rows { at: scratch.sums.as_mut_ptr().wrapping_add(at), stride: panel_width::<S>() };
                    let place = Rows { at: out.at(row, first), stride: out.stride() };
                    let before = if begins { (place, product.factors.beta) } else { (sums, 1.0) };
                    let before = Some(before).filter(|(_, factor)| *factor != 0.0);
                    let to = if ends { place } else { sums };
                    let whole = width == panel_width::<S>();
                    let step = Microkernel {
                        x: scratch.x.panel_a::<S>(product, packed_rows, isa, row, start, depth),
                        panel,
                        depth,
                        before: before.filter(|_| whole),
                        to: if whole { to } else { Rows { at: beyond.as_mut_ptr(), stride: MAX_WIDTH } },
                    };
                    // SAFETY: the rows and columns of the step lie in this tile, which no other task touches, and in the
                    // sums, which have TASK_WIDTH columns of all rows.
                    unsafe {
                        step.run(simd, height);
                        if !whole {
                            narrow(&beyond, height, width, before, to);
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
    x: PackedA,
    /// The sums so far. The rows of the output itself may lie a power of two apart, and share a few cache sets.
    sums: Vec<f32>,
}

/// A cache line, so that no vector of a panel spans two.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through a pointer")] [f32; LINE]);

/// Floats of a cache line.
const LINE: usize = 16;

impl Scratch {
    fn new() -> Self {
        Self { panel: vec![Line([0.0; LINE]); DEPTH * MAX_WIDTH / LINE], x: PackedA::default(), sums: Vec::new() }
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

/// The microkernel: a register tile's part of the sum, `to[i][j] = before[i][j] + sum over d of x[d][i] * panel[d][j]`.
#[derive(Clone, Copy)]
struct Microkernel {
    x: *const f32,
    panel: *const f32,
    depth: usize,
    /// Nothing, or where the sums so far are, and what they are multiplied by.
    before: Option<(Rows, f32)>,
    to: Rows,
}

/// Adds and writes the first `width` columns of a tile that reaches beyond the output.
///
/// # Safety
/// `before` is readable and `to` writable, `rows` rows of `width` columns.
unsafe fn narrow(tile: &[f32; MAX_ROWS * MAX_WIDTH], rows: usize, width: usize, before: Option<(Rows, f32)>, to: Rows) {
    for (i, row) in tile.chunks_exact(MAX_WIDTH).enumerate().take(rows) {
        for (j, sum) in row.iter().enumerate().take(width) {
            // SAFETY: the caller's promise.
            unsafe {
                let before = before.map(|(before, factor)| factor * *before.at.add(i * before.stride + j));
                *to.at.add(i * to.stride + j) = before.map_or(*sum, |before| before + sum);
            }
        }
    }
}

impl Microkernel {
    /// # Safety
    /// `depth` vectors of `rows` numbers are readable at `x`, as many rows at `panel`, and `rows` rows of a panel's width are
    /// readable at `before` and writable at `to`.
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
            // SAFETY: row d of the panel and vector d of `x`, as the caller promises.
            unsafe {
                let panel = self.panel.add(d * panel_width::<S>());
                let (left, right) = (simd.load(panel), simd.load(panel.add(S::LANES)));
                // A panel of A comes from a farther cache than one of B.
                simd.prefetch(self.x.wrapping_add((d + AHEAD) * S::LANES).cast());
                for (i, [a, b]) in sums.iter_mut().enumerate() {
                    let x = simd.splat(*self.x.add(d * S::LANES + i));
                    *a = simd.fma(x, left, *a);
                    *b = simd.fma(x, right, *b);
                }
            }
        }
        if let Some((before, factor)) = self.before {
            let factor = simd.splat(factor);
            for (i, halves) in sums.iter_mut().enumerate() {
                for (half, sum) in halves.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let before = unsafe { simd.load(before.at.add(i * before.stride + half * S::LANES)) };
                    *sum = simd.fma(before, factor, *sum);
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
