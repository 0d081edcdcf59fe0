//! The blocked product: panels of floats, made as they are needed and split.
//!
//! Where a column of a panel is too small, too large or not finite, the columns of that panel are multiplied by fused
//! multiply-adds; so are the rows of a band of which one is not finite.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;
use std::{arch::asm, cell::Cell, mem, ops::Range};

use super::packed_a::{Band, Bands, DEPTH, PAIR, SPLIT, Split, first_tile};
use super::{EXPONENTS, PIECES, PRODUCT, Place, STEP, TILE, Tile, Tiles, WIDTH, ZEROS, add_pair, magnitude, split};
use crate::{
    Isa,
    engine::FEW,
    gemm::{PackedWork, Product},
    machine::Machine,
    output::{Output, Rectangle},
    packed_a::unique,
    shape::Shape,
};

/// Rows of `x` that are split at a time; bounds what a task goes back to for each panel.
const TASK_ROWS: usize = 512;

/// Output columns of one task.
const TASK_COLUMNS: usize = 128;

pub(crate) fn cost(work: &PackedWork, machine: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    // Fewer columns or steps than tiles have are not worth filling them up.
    if rows <= FEW || columns <= TILE || depth <= TILE {
        return f64::INFINITY;
    }
    // A vector of a panel in pieces.
    let split = 14.0;
    let panels = rows.div_ceil(TASK_ROWS) as f64 * work.shape.vectors(machine) * (work.panel + split);
    let squares = rows.div_ceil(2 * TILE) as f64 * columns.div_ceil(WIDTH) as f64 * depth.div_ceil(STEP) as f64;
    panels + squares * 24.0 * 2.3 * PRODUCT + (rows * depth) as f64
}

/// Rows at a time of sums that one panel covers, of which none are kept.
const SHALLOW_ROWS: usize = 2048;

/// Rows of one task of these; their tiles stay in a second-level cache.
const SHALLOW_TASK: usize = 256;

/// A row of sums of nothing.
static NONE: Line = Line([0.0; WIDTH]);

#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through a pointer")] [f32; WIDTH]);

pub(crate) fn multiply(product: &Product, isa: Isa, out: &mut Output<f32>) -> usize {
    let (m, threads) = (product.x.rows(), product.threads);
    let shallow = product.x.columns() <= DEPTH;
    let height = if shallow { SHALLOW_ROWS } else { TASK_ROWS };
    for first in (0..m).step_by(height) {
        let rows = height.min(m - first);
        let bands = Bands { id: unique(), first, rows, pairs: rows.div_ceil(2 * TILE) };
        let (height, width) = if shallow && rows > product.columns {
            // Each thread splits its own rows, and makes all panels, which are fewer.
            ((rows.div_ceil(2 * threads)).next_multiple_of(2 * TILE).min(SHALLOW_TASK), product.columns)
        } else {
            let width = product.columns.div_ceil(4 * threads).next_multiple_of(WIDTH).min(TASK_COLUMNS);
            // Narrow outputs are split by rows as well, at the price of making the panels once for each part.
            let tasks = (threads / product.columns.div_ceil(width)).max(1);
            (rows.div_ceil(tasks).next_multiple_of(2 * TILE), width)
        };
        out.rows_from(first, rows).for_each(threads, height, width, &|out| {
            let mut x = SPLIT.take().unwrap_or_default();
            let mut scratch = SCRATCH.take().unwrap_or_else(Scratch::new);
            // SAFETY: the engine is called where there is AMX; the rows are those of the product.
            unsafe {
                x.begin(bands, product.x.columns());
                x.split(product, isa, bands, out.rows());
                Task { product, isa, x: &x, bands, out }.run(&mut scratch);
            }
            SCRATCH.set(Some(scratch));
            SPLIT.set(Some(x));
        });
    }
    m
}

/// What a thread keeps between tasks.
struct Scratch {
    /// A panel of floats.
    floats: Vec<Tile>,
    /// The panel in pieces: for each 32 steps and each 16 columns a tile of each piece, two steps in a word.
    pieces: Vec<Tile>,
    /// `TASK_ROWS` rows of `TASK_COLUMNS`.
    sums: Vec<Tile>,
    /// Whether each [`WIDTH`] columns of the task are.
    out_of_range: Vec<bool>,
}

impl Scratch {
    fn new() -> Self {
        let tiles = |floats: usize| vec![ZEROS; floats / (TILE * STEP / 2)];
        Self {
            floats: tiles(DEPTH * WIDTH),
            pieces: vec![ZEROS; DEPTH / STEP * 2 * PIECES],
            sums: tiles(TASK_ROWS * TASK_COLUMNS),
            out_of_range: Vec::new(),
        }
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
}

struct Task<'a> {
    product: &'a Product<'a>,
    isa: Isa,
    x: &'a Split,
    bands: Bands,
    /// Starts with a pair of bands.
    out: Rectangle<'a, f32>,
}

impl Task<'_> {
    /// # Safety
    /// The machine has AMX and AVX-512.
    unsafe fn run(mut self, scratch: &mut Scratch) {
        let Self { product, isa, .. } = self;
        let whole_depth = product.x.columns();
        let (rows, columns) = (self.out.rows(), self.out.columns());
        // SAFETY: AMX is there, and this is the only place on the thread's stack that uses it.
        let tiles = unsafe { Tiles::new() };
        let sums = scratch.sums.as_mut_ptr().cast::<f32>();
        // Groups of columns, from the first, that are out of range. Where tasks begin they begin, too.
        let mut out_of_range = mem::take(&mut scratch.out_of_range);
        out_of_range.clear();
        out_of_range.resize(columns.len().div_ceil(WIDTH), false);
        let panel: *mut f32 = scratch.floats.as_mut_ptr().cast();
        for start in (0..whole_depth).step_by(DEPTH) {
            let depth = DEPTH.min(whole_depth - start);
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
                        self.add_tiles(&tiles, start, depth, pieces, first, sums);
                    } else {
                        *out_of_range = true;
                    }
                }
            }
        }
        for (first, out_of_range) in columns.clone().step_by(WIDTH).zip(&out_of_range) {
            let width = WIDTH.min(columns.end - first);
            for from in rows.clone().step_by(TILE) {
                if *out_of_range || self.x.bands[from / TILE] == Band::Other {
                    let rows = from..rows.end.min(from + TILE);
                    // SAFETY: as above; there are sums of a band at least.
                    unsafe {
                        self.multiply_floats(rows.clone(), first, width, panel, sums);
                        self.write(rows, first, sums, &[product.factors.alpha; TILE]);
                    }
                }
            }
        }
        scratch.out_of_range = out_of_range;
    }

    /// Adds the product with a panel in pieces to the sums, and writes those that are complete.
    ///
    /// # Safety
    /// The panel was split, and there are sums of all rows of whole tiles.
    unsafe fn add_tiles(
        &mut self,
        _: &Tiles,
        start: usize,
        depth: usize,
        panel: *const Tile,
        first: usize,
        sums: *mut f32,
    ) {
        let (x, whole_depth, rows) = (self.x, self.product.x.columns(), self.out.rows());
        let (steps, whole) = (depth.div_ceil(STEP), depth == whole_depth);
        for band in (rows.start / TILE..rows.end.div_ceil(TILE)).step_by(2) {
            // What is complete at once need not be kept for all rows.
            let row = if whole { 0 } else { band * TILE - rows.start };
            let column = if whole { 0 } else { first - self.out.columns().start };
            let sums = sums.wrapping_add(row * TASK_COLUMNS + column);
            let to = Place { at: sums, stride: TASK_COLUMNS * 4 };
            let from = if start == 0 { Place { at: (&raw const NONE).cast_mut().cast(), stride: 0 } } else { to };
            // SAFETY: the caller's promise; a pair of bands has its tiles and sums, and what is added to is only read.
            unsafe {
                let tiles = x.tiles[first_tile(band / 2, self.bands.pairs, start, whole_depth)..].as_ptr();
                if band + 1 < rows.end.div_ceil(TILE) {
                    add_pair(tiles, tiles.add(PIECES), PAIR, panel, steps, from, to);
                } else {
                    add_single(tiles, panel, steps, from, to);
                }
                if start + depth < whole_depth {
                    continue;
                }
                for band in band..(band + 2).min(rows.end.div_ceil(TILE)) {
                    if x.bands[band] == Band::Finite {
                        let rows = band * TILE..rows.end.min((band + 1) * TILE);
                        let factors = x.factors[band * TILE..].first_chunk().unwrap_or(&[0.0; TILE]);
                        self.write(rows, first, sums.add(band % 2 * TILE * TASK_COLUMNS), factors);
                    }
                }
            }
        }
    }

    /// Writes some rows of a panel's columns: the sums times the factor of each row.
    ///
    /// # Safety
    /// The rows and columns lie in the output, and there are as many sums.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn write(&mut self, rows: Range<usize>, first: usize, sums: *const f32, factors: &[f32; TILE]) {
        let width = WIDTH.min(self.out.columns().end - first);
        let columns = u32::MAX >> (WIDTH - width);
        let beta = self.product.factors.beta;
        for ((at, row), factor) in rows.enumerate().zip(factors) {
            let to = self.out.at(row, first);
            for (half, columns) in [columns as u16, (columns >> TILE) as u16].into_iter().enumerate() {
                // SAFETY: only what lies in the output is read or written.
                unsafe {
                    let sums = _mm512_loadu_ps(sums.add(at * TASK_COLUMNS + half * TILE));
                    let mut out = _mm512_mul_ps(sums, _mm512_set1_ps(*factor));
                    let to = to.wrapping_add(half * TILE);
                    if beta != 0.0 {
                        out = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(columns, to), _mm512_set1_ps(beta), out);
                    }
                    _mm512_mask_storeu_ps(to, columns, out);
                }
            }
        }
    }

    /// Computes the columns of a panel's width in some rows of the output by fused multiply-adds, of `x` as it is.
    ///
    /// # Safety
    /// The rows and columns lie in the output; there is room for a panel, and for the sums of these rows.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn multiply_floats(&self, rows: Range<usize>, first: usize, width: usize, panel: *mut f32, sums: *mut f32) {
        let Self { product, isa, .. } = self;
        let whole_depth = product.x.columns();
        let (_, next) = product.x.strides();
        for start in (0..whole_depth).step_by(DEPTH) {
            let depth = DEPTH.min(whole_depth - start);
            // SAFETY: as the caller says; the panel and the sums are as wide as two vectors.
            unsafe {
                product.panels.fill(*isa, start, depth, first, width, panel);
                for (at, i) in rows.clone().enumerate() {
                    let x = product.x.at(self.bands.first + i, start);
                    let to = sums.add(at * TASK_COLUMNS);
                    let (mut left, mut right) = if start == 0 {
                        (_mm512_setzero_ps(), _mm512_setzero_ps())
                    } else {
                        (_mm512_loadu_ps(to), _mm512_loadu_ps(to.add(TILE)))
                    };
                    for d in 0..depth {
                        let x = _mm512_set1_ps(*x.add(d * next));
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
    let mut max = [_mm512_setzero_si512(); 2];
    for pair in 0..depth.div_ceil(STEP) * STEP / 2 {
        let (step, row) = (pair / TILE, pair % TILE);
        for (half, max) in max.iter_mut().enumerate() {
            // SAFETY: rows beyond the depth are not read; the tile of each piece has a row for the pair.
            unsafe {
                let from = panel.add(2 * pair * WIDTH + half * TILE);
                let even = if 2 * pair < depth { _mm512_loadu_ps(from) } else { zero };
                let odd = if 2 * pair + 1 < depth { _mm512_loadu_ps(from.add(WIDTH)) } else { zero };
                *max = _mm512_max_epu32(*max, _mm512_max_epu32(magnitude(even), magnitude(odd)));
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
    [columns as u16, (columns >> TILE) as u16].into_iter().zip(max).all(|(columns, max)| {
        let small = _mm512_cmplt_epu32_mask(max, least) & _mm512_test_epi32_mask(max, max);
        (small | _mm512_cmpge_epu32_mask(max, limit)) & columns == 0
    })
}

/// Adds the products of 16 rows and a panel to the sums at `from`, and writes them to `to`.
///
/// # Safety
/// As for [`add_pair`], with the first band of a pair.
unsafe fn add_single(band: *const Tile, panel: *const Tile, steps: usize, from: Place, to: Place) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c} + {from}]",
            "tileloadd tmm1, [{c} + {from} + 64]",
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
            "add {x}, 6144",
            "add {w}, 6144",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{d} + {to}], tmm0",
            "tilestored [{d} + {to} + 64], tmm1",
            x = inout(reg) band => _,
            w = inout(reg) panel => _,
            steps = inout(reg) steps => _,
            c = in(reg) from.at,
            from = in(reg) from.stride,
            d = in(reg) to.at,
            to = in(reg) to.stride,
            line = in(reg) 64_usize,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
