//! The blocked product: panels of floats, made as they are needed and split.
//!
//! Where a column of a panel is too small, too large or not finite, the columns of that panel are multiplied by fused
//! multiply-adds.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;
use std::{
    arch::asm,
    cell::Cell,
    ops::Range,
    slice,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    EXPONENTS, PIECES, PRODUCT, Place, STEP, Shared, TILE, Tile, Tiles, WIDTH, ZEROS, add_pair, load, magnitude,
    powers, split,
};
use crate::{
    Isa,
    engine::{FEW, Shape},
    machine::{Machine, threads_for},
    output::{Output, Rectangle},
    threads,
    tile::{Panelled, Product},
};

/// Steps that one panel covers; its pieces fill half of a usual first-level cache.
const DEPTH: usize = 128;

/// Rows of `x` that are split at a time; bounds what a task goes back to for each panel.
const TASK_ROWS: usize = 512;

/// Output columns of one task.
const TASK_COLUMNS: usize = 128;

/// The cycles of [`multiply`].
pub(crate) fn cost(work: &Panelled, machine: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    if rows <= FEW {
        return f64::INFINITY;
    }
    // A vector of a panel in pieces.
    let split = 14.0;
    let panels = rows.div_ceil(TASK_ROWS) as f64 * work.shape.vectors(machine) * (work.panel + split);
    let squares = rows.div_ceil(2 * TILE) as f64 * columns.div_ceil(WIDTH) as f64 * depth.div_ceil(STEP) as f64;
    panels + squares * 24.0 * 2.3 * PRODUCT + (rows * depth) as f64
}

/// Computes the product, as many of its rows as are finite and fill whole parts of `x`.
pub(crate) fn multiply(product: &Product, isa: Isa, out: &mut Output<f32>) -> usize {
    let (m, threads) = (product.x.rows, product.threads);
    let mut x = SPLIT.take().unwrap_or_default();
    let mut done = 0;
    while done < m {
        let rows = done..m.min(done + TASK_ROWS);
        // SAFETY: the engine is called where there is AMX; the rows are those of the product.
        if !unsafe { x.fill(product, rows.clone(), threads) } {
            break;
        }
        let mut out = out.rows_from(done, rows.len());
        let width = out.columns().div_ceil(4 * threads).next_multiple_of(WIDTH).min(TASK_COLUMNS);
        // Narrow outputs are split by rows as well, at the price of making the panels once for each part.
        let row_tasks = (threads / out.columns().div_ceil(width)).max(1);
        let height = rows.len().div_ceil(row_tasks).next_multiple_of(2 * TILE);
        out.for_each(threads, height, width, &|out| {
            let task = Task { product, isa, x: &x, first: rows.start, out };
            let mut scratch = SCRATCH.take().unwrap_or_else(Scratch::new);
            // SAFETY: the instructions are there.
            unsafe { task.run(&mut scratch) };
            SCRATCH.set(Some(scratch));
        });
        done = rows.end;
    }
    if x.tiles.len() <= KEPT {
        SPLIT.set(Some(x));
    }
    done
}

/// Tiles of a part of `x` that a thread keeps for its next product: 16 MiB.
const KEPT: usize = 1 << 14;

thread_local! {
    static SPLIT: Cell<Option<Split>> = const { Cell::new(None) };
}

/// Rows of `x` in pieces.
#[derive(Default)]
struct Split {
    /// For each 16 rows and each 32 steps a tile of each piece.
    tiles: Vec<Tile>,
    /// What the sums of a row are multiplied with.
    factors: Vec<f32>,
}

impl Split {
    /// Splits these rows of the product, or says that they are not finite.
    ///
    /// # Safety
    /// The rows lie in `x`, and the machine has AVX-512.
    unsafe fn fill(&mut self, product: &Product, rows: Range<usize>, threads: usize) -> bool {
        let steps = product.x.columns.div_ceil(STEP);
        let bands = rows.len().div_ceil(TILE);
        let tiles = bands * steps * PIECES;
        self.tiles.resize(tiles.max(self.tiles.len()), ZEROS);
        self.factors.resize(self.factors.len().max(bands * TILE), 0.0);
        let (tiles, factors) = (Shared(self.tiles.as_mut_ptr()), Shared(self.factors.as_mut_ptr()));
        let finite = AtomicBool::new(true);
        let threads = threads.min(threads_for((rows.len() * product.x.columns) as f64));
        threads::for_each_on(threads, bands, &|band| {
            let first = rows.start + band * TILE;
            for row in 0..TILE {
                // SAFETY: the tiles and factors of a band belong to one task; rows beyond the last are not read.
                unsafe {
                    let tiles = tiles.at(band * steps * PIECES).cast::<u32>().add(row * STEP / 2);
                    let from = (first + row < rows.end).then(|| product.x.row(first + row).as_ptr());
                    match split_row(from, product.x.columns, tiles) {
                        Some(factor) => *factors.at(band * TILE + row) = factor,
                        None => finite.store(false, Ordering::Relaxed),
                    }
                }
            }
        });
        finite.load(Ordering::Relaxed)
    }
}

/// Splits a row, or zeros, into the same row of each tile; gives what its sums are to be multiplied with.
///
/// # Safety
/// `depth` floats are readable at `from`, and `tiles` is the row's place in the first of its tiles.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split_row(from: Option<*const f32>, depth: usize, tiles: *mut u32) -> Option<f32> {
    // SAFETY: the caller's promise.
    let (up, down) = unsafe { powers(from, depth) }?;
    let up = _mm512_set1_ps(up);
    for (step, at) in (0..depth).step_by(STEP).enumerate() {
        let mut halves = [_mm512_setzero_ps(); 2];
        if let Some(from) = from {
            for (half, at) in halves.iter_mut().zip([at, at + TILE]) {
                if at < depth {
                    // SAFETY: the caller's promise.
                    *half = _mm512_mul_ps(unsafe { load(from.add(at), depth - at) }, up);
                }
            }
        }
        let [low, high] = halves.map(|half| split(half));
        for piece in 0..PIECES {
            // SAFETY: each tile of the step has the row.
            unsafe {
                let to = tiles.add((step * PIECES + piece) * TILE * STEP / 2);
                let top = |words| _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(words));
                _mm256_storeu_si256(to.cast(), top(low[piece]));
                _mm256_storeu_si256(to.add(8).cast(), top(high[piece]));
            }
        }
    }
    Some(down)
}

/// What a thread keeps between tasks.
struct Scratch {
    /// A panel of floats.
    floats: Vec<Tile>,
    /// The panel in pieces: for each 32 steps and each 16 columns a tile of each piece, two steps in a word.
    pieces: Vec<Tile>,
    /// `TASK_ROWS` rows of `TASK_COLUMNS`.
    sums: Vec<Tile>,
}

impl Scratch {
    fn new() -> Self {
        let tiles = |floats: usize| vec![ZEROS; floats / (TILE * STEP / 2)];
        Self {
            floats: tiles(DEPTH * WIDTH),
            pieces: vec![ZEROS; DEPTH / STEP * 2 * PIECES],
            sums: tiles(TASK_ROWS * TASK_COLUMNS),
        }
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
}

/// A rectangle of the output.
struct Task<'a> {
    product: &'a Product<'a>,
    isa: Isa,
    x: &'a Split,
    /// The row of the product that is the first of `x` and of the output.
    first: usize,
    /// Starts with a tile of `x`.
    out: Rectangle<'a, f32>,
}

impl Task<'_> {
    /// # Safety
    /// The machine has AMX and AVX-512.
    unsafe fn run(mut self, scratch: &mut Scratch) {
        let Self { product, isa, .. } = self;
        let (rows, columns) = (self.out.rows(), self.out.columns());
        // SAFETY: AMX is there, and this is the only place on the thread's stack that uses it.
        let tiles = unsafe { Tiles::new() };
        let bands = rows.len().div_ceil(TILE);
        let sums = scratch.sums.as_mut_ptr().cast::<f32>();
        // SAFETY: there is room for TASK_ROWS rows.
        unsafe { slice::from_raw_parts_mut(sums, bands * TILE * TASK_COLUMNS) }.fill(0.0);
        // Groups of columns, from the first, that are out of range. Where tasks begin they begin, too.
        let mut out_of_range = [false; TASK_COLUMNS / WIDTH];
        let panel: *mut f32 = scratch.floats.as_mut_ptr().cast();
        for start in (0..product.x.columns).step_by(DEPTH) {
            let depth = DEPTH.min(product.x.columns - start);
            for (first, out_of_range) in columns.clone().step_by(WIDTH).zip(&mut out_of_range) {
                if *out_of_range {
                    continue;
                }
                let width = WIDTH.min(columns.end - first);
                let pieces = scratch.pieces.as_mut_ptr();
                // SAFETY: the panel has room for all steps, and the ranges lie in the product.
                unsafe {
                    product.panels.fill(isa, start, depth, first, width, panel);
                    if split_panel(panel, depth, width, pieces.cast()) {
                        self.add_tiles(&tiles, start, depth, pieces, sums.add(first - columns.start));
                    } else {
                        *out_of_range = true;
                    }
                }
            }
        }
        for (first, _) in columns.clone().step_by(WIDTH).zip(out_of_range).filter(|(_, out_of_range)| *out_of_range) {
            let width = WIDTH.min(columns.end - first);
            // SAFETY: as above.
            unsafe { self.multiply_floats(first, width, panel, sums.add(first - columns.start)) };
        }
        drop(tiles);
        for (at, i) in rows.clone().enumerate() {
            for (first, out_of_range) in columns.clone().step_by(WIDTH).zip(out_of_range) {
                let factor = if out_of_range { 1.0 } else { self.x.factors[i] };
                let width = WIDTH.min(columns.end - first);
                // SAFETY: a part of the row of the sums.
                let sums = unsafe { slice::from_raw_parts(sums.add(at * TASK_COLUMNS + first - columns.start), width) };
                let out = &mut self.out.row(i)[first - columns.start..][..width];
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = if product.accumulate { *out + sum * factor } else { sum * factor };
                }
            }
        }
    }

    /// Adds the product with a panel in pieces.
    ///
    /// # Safety
    /// The panel was split, and there are sums of all rows of whole tiles.
    unsafe fn add_tiles(&self, _: &Tiles, start: usize, depth: usize, panel: *const Tile, sums: *mut f32) {
        let (steps, all) = (depth.div_ceil(STEP), self.product.x.columns.div_ceil(STEP));
        let rows = self.out.rows();
        let bands = rows.len().div_ceil(TILE);
        let x = |band: usize| {
            let band = rows.start / TILE + band;
            self.x.tiles[(band * all + start / STEP) * PIECES..].as_ptr()
        };
        for band in (0..bands).step_by(2) {
            // SAFETY: the caller's promise.
            unsafe {
                let sums = sums.add(band * TILE * TASK_COLUMNS);
                if band + 1 < bands {
                    let sums = Place { at: sums, stride: TASK_COLUMNS * 4 };
                    add_pair(x(band), x(band + 1), panel, steps, sums, sums);
                } else {
                    add_single(x(band), panel, steps, sums);
                }
            }
        }
    }

    /// Computes the columns of a panel's width by fused multiply-adds, of `x` as it is.
    ///
    /// # Safety
    /// The columns lie in the product; there is room for a panel, and sums of all rows.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn multiply_floats(&self, first: usize, width: usize, panel: *mut f32, sums: *mut f32) {
        let Self { product, isa, .. } = self;
        for start in (0..product.x.columns).step_by(DEPTH) {
            let depth = DEPTH.min(product.x.columns - start);
            // SAFETY: as the caller says; the panel and the sums are as wide as two vectors.
            unsafe {
                product.panels.fill(*isa, start, depth, first, width, panel);
                for (at, i) in self.out.rows().enumerate() {
                    let x = product.x.row(self.first + i)[start..].as_ptr();
                    let to = sums.add(at * TASK_COLUMNS);
                    let (mut left, mut right) = if start == 0 {
                        (_mm512_setzero_ps(), _mm512_setzero_ps())
                    } else {
                        (_mm512_loadu_ps(to), _mm512_loadu_ps(to.add(TILE)))
                    };
                    for d in 0..depth {
                        let x = _mm512_set1_ps(*x.add(d));
                        left = _mm512_fmadd_ps(x, _mm512_loadu_ps(panel.add(d * WIDTH)), left);
                        right = _mm512_fmadd_ps(x, _mm512_loadu_ps(panel.add(d * WIDTH + TILE)), right);
                    }
                    _mm512_storeu_ps(to, left);
                    _mm512_storeu_ps(to.add(TILE), right);
                }
            }
        }
    }
}

/// Splits a panel of floats, as [`Scratch::pieces`] says, unless one of its first `width` columns is out of range.
///
/// # Safety
/// `depth` rows of [`WIDTH`] floats are readable at `panel`, and there is room for their pieces.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split_panel(panel: *const f32, depth: usize, width: usize, pieces: *mut u32) -> bool {
    let zero = _mm512_setzero_ps();
    let mut most = [_mm512_setzero_si512(); 2];
    for pair in 0..depth.div_ceil(STEP) * STEP / 2 {
        let (step, row) = (pair / TILE, pair % TILE);
        for (half, most) in most.iter_mut().enumerate() {
            // SAFETY: rows beyond the depth are not read; the tile of each piece has a row for the pair.
            unsafe {
                let from = panel.add(2 * pair * WIDTH + half * TILE);
                let even = if 2 * pair < depth { _mm512_loadu_ps(from) } else { zero };
                let odd = if 2 * pair + 1 < depth { _mm512_loadu_ps(from.add(WIDTH)) } else { zero };
                *most = _mm512_max_epu32(*most, _mm512_max_epu32(magnitude(even), magnitude(odd)));
                let to = pieces.add(((step * 2 + half) * PIECES * TILE + row) * STEP / 2);
                let (even, odd) = (split(even), split(odd));
                for piece in 0..PIECES {
                    // `even | odd & top`: what is left of a subnormal number is no `bf16`.
                    let even = _mm512_srli_epi32::<16>(even[piece]);
                    let words = _mm512_ternarylogic_epi32::<0xF8>(even, odd[piece], _mm512_set1_epi32(!0xFFFF));
                    _mm512_storeu_si512(to.add(piece * TILE * STEP / 2).cast(), words);
                }
            }
        }
    }
    let power = |exponent: i32| _mm512_set1_epi32((exponent + 127) << 23);
    let (least, limit) = (power(EXPONENTS.start), power(EXPONENTS.end));
    let columns = u32::MAX >> (WIDTH - width);
    [columns as u16, (columns >> TILE) as u16].into_iter().zip(most).all(|(columns, most)| {
        let small = _mm512_cmplt_epu32_mask(most, least) & _mm512_test_epi32_mask(most, most);
        (small | _mm512_cmpge_epu32_mask(most, limit)) & columns == 0
    })
}

/// Adds the products of 16 rows and a panel to the sums.
///
/// # Safety
/// As for [`add_pair`], with one band.
unsafe fn add_single(band: *const Tile, panel: *const Tile, steps: usize, sums: *mut f32) {
    let stride = TASK_COLUMNS * 4;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c} + {stride}]",
            "tileloadd tmm1, [{c} + {stride} + 64]",
            "2:",
            "tileloadd tmm4, [{x} + {line}]",
            "tileloadd tmm6, [{w} + {line} + 2048]",
            "tileloadd tmm7, [{w} + {line} + 5120]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm6, [{w} + {line} + 1024]",
            "tileloadd tmm7, [{w} + {line} + 4096]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{x} + {line} + 1024]",
            "tdpbf16ps tmm0, tmm5, tmm6",
            "tdpbf16ps tmm1, tmm5, tmm7",
            "tileloadd tmm6, [{w} + {line}]",
            "tileloadd tmm7, [{w} + {line} + 3072]",
            "tdpbf16ps tmm0, tmm5, tmm6",
            "tdpbf16ps tmm1, tmm5, tmm7",
            "tileloadd tmm5, [{x} + {line} + 2048]",
            "tdpbf16ps tmm0, tmm5, tmm6",
            "tdpbf16ps tmm1, tmm5, tmm7",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {x}, 3072",
            "add {w}, 6144",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{c} + {stride}], tmm0",
            "tilestored [{c} + {stride} + 64], tmm1",
            x = inout(reg) band => _,
            w = inout(reg) panel => _,
            steps = inout(reg) steps => _,
            c = in(reg) sums,
            stride = in(reg) stride,
            line = in(reg) 64_usize,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
