//! `y = x W^T` on AMX from the codes, for matrices whose scales hold for whole runs of 64 elements of a row.
//!
//! Codes are looked up as `bf16`, in as many pieces as their values need: one for integers and short floats, three for
//! NF4's. Those that are `bf16` themselves are taken as they are, unless one is out of range. The sum over a run is
//! multiplied by the scale afterwards, and a run's sum of `x` by the bias. The even elements of a run are one step of the
//! tiles and the odd ones the next, for codes as for `x`.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;
use std::{
    arch::asm,
    cell::Cell,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    PIECES, PRODUCT, Place, STEP, TILE, Tile, Tiles, WIDTH, ZEROS, add_pair,
    coding::{Coding, RUN},
    load, powers, split,
};
use crate::{
    Isa, Matrix, Orientation,
    engine::FEW,
    machine::Machine,
    output::{Output, Rectangle, Shared},
    shape::Shape,
    stored::{StoredProduct, Work},
    threads,
    widened::widened,
};

/// Rows of `x` that are split at a time; all of them stay in a second-level cache.
const TASK_ROWS: usize = 64;

/// Rows of the matrix of one task.
const TASK_COLUMNS: usize = 64;

/// Tiles of a run of [`WIDTH`] rows of `x`.
const RUN_TILES: usize = 2 * 2 * PIECES;

/// Whether the product is transposed, and its matrix has codes that become tiles and scales that hold for whole runs.
pub(crate) fn takes(product: &StoredProduct) -> bool {
    let Matrix { k, block, codes, .. } = *product.matrix;
    let uniform = block.is_multiple_of(k) || (k.is_multiple_of(block) && block.is_multiple_of(RUN));
    product.orientation == Orientation::Transposed && uniform && k.is_multiple_of(RUN) && Coding::new(codes).is_some()
}

pub(crate) fn cost(work: &Work, _: &Machine) -> f64 {
    let Shape { rows, columns, depth } = work.shape;
    if rows <= FEW {
        return f64::INFINITY;
    }
    // What is made of codes serves the rows that are split at a time.
    let times = rows.div_ceil(TASK_ROWS) as f64;
    let groups = rows.div_ceil(WIDTH) as f64;
    let runs = columns.div_ceil(WIDTH) as f64 * (depth / RUN) as f64;
    let decode = if work.biased { 1000.0 } else { 700.0 };
    // Products are stored before they are scaled.
    let products = if work.pieces == 1 { 24.0 } else { 48.0 } * PRODUCT + 1100.0;
    runs * (times * decode + groups * products) + groups * (WIDTH * depth) as f64
}

/// Computes all of a transposed product that this module [`takes`], or nothing of it where its numbers do not fit.
pub(crate) fn multiply(product: &StoredProduct, isa: Isa, out: &mut Output<f32>) -> usize {
    let &StoredProduct { x, m, matrix, threads, .. } = product;
    let (n, k) = (matrix.n, matrix.k);
    let Some(coding) = Coding::new(matrix.codes) else { return 0 };
    let blocks = (n * k).div_ceil(matrix.block);
    let scales = widened(isa, &matrix.scales, blocks, threads);
    let biases = matrix.biases.map(|biases| widened(isa, &biases, blocks, threads));
    // Sums of rows that were scaled to magnitude one must not overflow, nor become subnormal.
    let fits = |numbers: &[f32]| {
        let (least, max) = (1e-25_f32.to_bits(), 1e25_f32.to_bits());
        // No early end, which would keep the compiler from taking several at a time.
        numbers.iter().fold(true, |fits, number| {
            let magnitude = number.abs().to_bits();
            fits & ((magnitude == 0) | (magnitude.wrapping_sub(least) < max - least))
        })
    };
    if !fits(&scales) || !biases.as_deref().is_none_or(fits) {
        return 0;
    }
    let (scales, biases) = (&*scales, biases.as_deref());
    let in_range = AtomicBool::new(true);
    let mut rows = ROWS.take().unwrap_or_default();
    for first in (0..m).step_by(TASK_ROWS) {
        let chunk = first..m.min(first + TASK_ROWS);
        // SAFETY: the engine is called where there is AMX, for rows that are whole runs.
        if !unsafe { rows.fill(x, k, chunk.clone(), threads) } {
            return 0;
        }
        let width = n.div_ceil(4 * threads).next_multiple_of(WIDTH).min(TASK_COLUMNS);
        out.rows_from(first, chunk.len()).for_each(threads, chunk.len(), width, &|out| {
            let mut scratch = SCRATCH.take().unwrap_or_else(Scratch::new);
            let task = Task { matrix, scales, biases, coding, rows: &rows, out };
            // SAFETY: AMX is there.
            if !unsafe { task.run(&mut scratch) } {
                in_range.store(false, Ordering::Relaxed);
            }
            SCRATCH.set(Some(scratch));
        });
        if !in_range.load(Ordering::Relaxed) {
            return 0;
        }
    }
    if rows.tiles.len() <= KEPT {
        ROWS.set(Some(rows));
    }
    m
}

/// Tiles of a part of `x` that a thread keeps for its next product: 16 MiB.
const KEPT: usize = 1 << 14;

/// Rows of `x`, in pieces.
#[derive(Default)]
struct Rows {
    /// For each [`WIDTH`] rows and each run: even and odd elements of 16 rows, three pieces, and of the next 16 rows. A word
    /// holds two elements of one row.
    tiles: Vec<Tile>,
    /// The sum of each run, and of each 32 rows.
    sums: Vec<f32>,
    /// What the sums of a row are multiplied with.
    factors: Vec<f32>,
}

impl Rows {
    /// Splits these rows, or says that they are not finite.
    ///
    /// # Safety
    /// `x` has these rows of `k` numbers, a multiple of [`RUN`], and the machine has AVX-512.
    unsafe fn fill(&mut self, x: &[f32], k: usize, chunk: Range<usize>, threads: usize) -> bool {
        let (runs, groups) = (k / RUN, chunk.len().div_ceil(WIDTH));
        self.tiles.resize(self.tiles.len().max(groups * runs * RUN_TILES), ZEROS);
        self.sums.resize(self.sums.len().max(groups * runs * WIDTH), 0.0);
        self.factors.resize(TASK_ROWS, 0.0);
        let tiles = Shared(self.tiles.as_mut_ptr().cast::<u32>());
        let (sums, factors) = (Shared(self.sums.as_mut_ptr()), Shared(self.factors.as_mut_ptr()));
        let finite = AtomicBool::new(true);
        threads::for_each_on(threads, groups * 2, &|i| {
            for row in i * TILE..(i + 1) * TILE {
                let (group, column) = (row / WIDTH, row % WIDTH);
                let from = (chunk.start + row < chunk.end).then(|| x[(chunk.start + row) * k..][..k].as_ptr());
                let tile = group * runs * RUN_TILES + column / TILE * PIECES;
                // SAFETY: each row has its own words and numbers; so many floats are in a row.
                unsafe {
                    let tiles = tiles.at(tile * TILE * STEP / 2 + column % TILE);
                    match split_row(from, runs, tiles, sums.at(group * runs * WIDTH + column)) {
                        Some(factor) => *factors.at(row) = factor,
                        None => finite.store(false, Ordering::Relaxed),
                    }
                }
            }
        });
        finite.load(Ordering::Relaxed)
    }
}

/// Splits a row, or zeros, into the same column of all its tiles; gives what its sums are to be multiplied with, unless the
/// row is not finite.
///
/// # Safety
/// `runs` times [`RUN`] floats are readable at `from`; `tiles` and `sums` are the row's place in the first run.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split_row(from: Option<*const f32>, runs: usize, tiles: *mut u32, sums: *mut f32) -> Option<f32> {
    const TILE_WORDS: usize = TILE * STEP / 2;
    // SAFETY: the caller's promise.
    let (up, down) = unsafe { powers(from, runs * RUN) }?;
    let up = _mm512_set1_ps(up);
    for run in 0..runs {
        let mut sum = _mm512_setzero_ps();
        for quarter in 0..4 {
            let mut x = _mm512_setzero_ps();
            if let Some(from) = from {
                // SAFETY: the caller's promise.
                x = _mm512_mul_ps(unsafe { load(from.add(run * RUN + quarter * TILE), TILE) }, up);
            }
            sum = _mm512_add_ps(sum, x);
            for (piece, words) in split(x).into_iter().enumerate() {
                let mut halves = [0_u32; TILE];
                // SAFETY: sixteen words; each of the eight pairs has its row in the tile of its step.
                unsafe {
                    _mm512_storeu_si512(halves.as_mut_ptr().cast(), words);
                    let tiles = tiles.add((run * RUN_TILES + piece) * TILE_WORDS);
                    for pair in 0..4 {
                        let row = tiles.add((4 * quarter + pair) * TILE);
                        let [a, b, c, d] = [0, 1, 2, 3].map(|i| halves[4 * pair + i]);
                        *row = a >> 16 | c & !0xFFFF;
                        *row.add(2 * PIECES * TILE_WORDS) = b >> 16 | d & !0xFFFF;
                    }
                }
            }
        }
        // SAFETY: each run has its sum.
        unsafe { *sums.add(run * WIDTH) = _mm512_reduce_add_ps(sum) };
    }
    Some(down)
}

/// What a thread keeps between tasks.
struct Scratch {
    /// A run of [`WIDTH`] rows of the matrix.
    codes: Vec<Tile>,
    /// Its products with [`WIDTH`] rows of `x`.
    products: Box<Products>,
    /// The sums so far, for each row of the matrix.
    sums: Box<[[f32; TASK_ROWS]; WIDTH]>,
    /// The scales of each run, for each row of the matrix.
    scales: Vec<[f32; WIDTH]>,
    biases: Vec<[f32; WIDTH]>,
}

#[repr(align(64))]
struct Products([[f32; WIDTH]; WIDTH]);

#[repr(align(64))]
struct Line([f32; WIDTH]);

impl Scratch {
    fn new() -> Self {
        Self {
            codes: vec![ZEROS; RUN_TILES],
            products: Box::new(Products([[0.0; WIDTH]; WIDTH])),
            sums: Box::new([[0.0; TASK_ROWS]; WIDTH]),
            scales: Vec::new(),
            biases: Vec::new(),
        }
    }
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
    static ROWS: Cell<Option<Rows>> = const { Cell::new(None) };
}

struct Task<'a> {
    matrix: &'a Matrix<'a>,
    /// For each block.
    scales: &'a [f32],
    biases: Option<&'a [f32]>,
    coding: Coding<'a>,
    rows: &'a Rows,
    /// The output of these rows, for some rows of the matrix.
    out: Rectangle<'a, f32>,
}

impl Task<'_> {
    /// Says whether all numbers of the matrix were in range; the output holds nothing if not.
    ///
    /// # Safety
    /// The machine has AMX.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn run(mut self, scratch: &mut Scratch) -> bool {
        let Matrix { k, block, .. } = *self.matrix;
        let (chunk, columns) = (self.out.rows(), self.out.columns());
        let (runs, groups) = (k / RUN, chunk.len().div_ceil(WIDTH));
        let pieces = self.coding.pieces();
        // SAFETY: AMX is there, and this is the only place on the thread's stack that uses it.
        let tiles = unsafe { Tiles::new() };
        let zeros = Line([0.0; WIDTH]);
        let Scratch { codes, products, sums, scales, biases } = scratch;
        for numbers in [&mut *scales, &mut *biases] {
            numbers.resize(numbers.len().max(runs), [0.0; WIDTH]);
        }
        for first in columns.clone().step_by(WIDTH) {
            let count = WIDTH.min(columns.end - first);
            sums.fill([0.0; TASK_ROWS]);
            transpose_numbers(self.scales, first..first + count, k, block, scales);
            if let Some(numbers) = self.biases {
                transpose_numbers(numbers, first..first + count, k, block, biases);
            }
            for run in 0..runs {
                // SAFETY: the rows and the run lie in the matrix.
                if !unsafe { self.coding.fill(k, first, count, run, codes.as_mut_ptr()) } {
                    return false;
                }
                for group in 0..groups {
                    // SAFETY: there are tiles of each run of each group, and room for the products.
                    unsafe {
                        let x = self.rows.tiles.as_ptr().add((group * runs + run) * RUN_TILES);
                        let to = Place { at: products.0.as_mut_ptr().cast(), stride: 4 * WIDTH };
                        let upper = codes.as_ptr();
                        if pieces == 1 {
                            multiply_exact(&tiles, upper, x, to);
                        } else {
                            let from = Place { at: zeros.0.as_ptr().cast_mut(), stride: 0 };
                            add_pair(upper, upper.add(2 * PIECES), PIECES, x, 2, from, to);
                        }
                    }
                    let to = sums[..count].iter_mut().map(|sums| sums[group * WIDTH..].as_mut_ptr());
                    for ((to, product), scale) in to.zip(&products.0).zip(&scales[run]) {
                        // SAFETY: all are as wide as the rows of a group.
                        unsafe {
                            let scale = _mm512_set1_ps(*scale);
                            for half in [0, TILE] {
                                let product = _mm512_loadu_ps(product.as_ptr().add(half));
                                let sum = _mm512_fmadd_ps(product, scale, _mm512_loadu_ps(to.add(half)));
                                _mm512_storeu_ps(to.add(half), sum);
                            }
                        }
                    }
                    if self.biases.is_none() {
                        continue;
                    }
                    let x_sums = self.rows.sums[(group * runs + run) * WIDTH..].as_ptr();
                    let to = sums[..count].iter_mut().map(|sums| sums[group * WIDTH..].as_mut_ptr());
                    for (to, bias) in to.zip(&biases[run]) {
                        // SAFETY: as above.
                        unsafe {
                            let bias = _mm512_set1_ps(*bias);
                            for half in [0, TILE] {
                                let x = _mm512_loadu_ps(x_sums.add(half));
                                _mm512_storeu_ps(to.add(half), _mm512_fmadd_ps(x, bias, _mm512_loadu_ps(to.add(half))));
                            }
                        }
                    }
                }
            }
            for at in chunk.clone() {
                let factor = self.rows.factors[at];
                let out = &mut self.out.row(at)[first - columns.start..];
                for (out, sums) in out.iter_mut().zip(sums.iter()).take(count) {
                    *out = sums[at] * factor;
                }
            }
        }
        drop(tiles);
        true
    }
}

/// Brings the numbers of these rows into the order of their runs.
fn transpose_numbers(numbers: &[f32], rows: Range<usize>, k: usize, block: usize, transposed: &mut [[f32; WIDTH]]) {
    for (at, row) in rows.enumerate() {
        if block >= k {
            let number = numbers[row * k / block];
            for transposed in &mut transposed[..k / RUN] {
                transposed[at] = number;
            }
            continue;
        }
        let (blocks, each) = (k / block, block / RUN);
        for (number, transposed) in numbers[row * blocks..][..blocks].iter().zip(transposed.chunks_mut(each)) {
            for transposed in transposed {
                transposed[at] = *number;
            }
        }
    }
}

/// Multiplies a run of 32 rows of codes that are `bf16` numbers themselves with 32 rows of `x`.
///
/// # Safety
/// There are two steps of tiles of each, and room for the products.
unsafe fn multiply_exact(_: &Tiles, codes: *const Tile, x: *const Tile, to: Place) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{w} + {line}]",
            "tileloadd tmm6, [{x} + {line} + 2048]",
            "tileloadd tmm7, [{x} + {line} + 5120]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{w} + {line} + 2048]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{x} + {line} + 1024]",
            "tileloadd tmm7, [{x} + {line} + 4096]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{x} + {line}]",
            "tileloadd tmm7, [{x} + {line} + 3072]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {w}, 1024",
            "add {x}, 6144",
            "dec {steps:e}",
            "jnz 2b",
            "tilestored [{c} + {to}], tmm0",
            "tilestored [{c} + {to} + 64], tmm1",
            "tilestored [{d} + {to}], tmm2",
            "tilestored [{d} + {to} + 64], tmm3",
            w = inout(reg) codes => _,
            x = inout(reg) x => _,
            steps = inout(reg) 2 => _,
            c = in(reg) to.at,
            d = in(reg) to.at.byte_add(TILE * to.stride),
            to = in(reg) to.stride,
            line = in(reg) 64_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
