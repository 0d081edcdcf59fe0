//! `y = x W^T` on AMX from the codes, for matrices whose scales hold for whole runs of 64 elements of a row.
//!
//! Codes are looked up as `bf16`, in as many pieces as their values need: one for integers and short floats, three for
//! NF4's. The sum over a run is multiplied by the scale afterwards, and a run's sum of `x` by the bias. The even elements of
//! a run are one step of the tiles and the odd ones the next, for codes as for `x`.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;
use std::{
    arch::asm,
    cell::Cell,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{PIECES, Place, STEP, Shared, TILE, Tile, Tiles, WIDTH, ZEROS, add_pair, load, powers, split};
use crate::{
    Codes, Matrix, Order,
    codec::{INTEGERS, bytes},
    threads,
};

/// Elements of a row that share a scale.
const RUN: usize = 2 * STEP;

/// Rows of `x` that are split at a time; all of them stay in a second-level cache.
const TASK_ROWS: usize = 64;

/// Rows of the matrix of one task.
const TASK_COLUMNS: usize = 64;

/// Tiles of a run of [`WIDTH`] rows of `x`.
const RUN_TILES: usize = 2 * 2 * PIECES;

/// A matrix that is multiplied from its codes.
pub(crate) struct Product<'a> {
    pub(crate) matrix: &'a Matrix<'a>,
    /// For each block.
    pub(crate) scales: &'a [f32],
    pub(crate) biases: Option<&'a [f32]>,
    pub(crate) x: &'a [f32],
    pub(crate) m: usize,
    pub(crate) out: *mut f32,
}

// SAFETY: tasks write disjoint rectangles of `out`, while the caller, whose memory it is, waits.
unsafe impl Sync for Product<'_> {}

/// How codes become `bf16`.
#[derive(Clone, Copy)]
enum Coding<'a> {
    /// Four bits, in this order, by one table for each piece.
    Table { bytes: &'a [u8], high_first: bool, tables: [[u16; 2 * TILE]; PIECES], pieces: usize },
    /// Bytes, signed or not.
    Bytes { bytes: &'a [u8], signed: bool },
}

impl<'a> Coding<'a> {
    fn new(codes: Codes<'a>) -> Option<Self> {
        match codes {
            Codes::Table { bytes, bits: 4, order, values } => Self::table(bytes, order, values),
            Codes::Unsigned { bytes, bits: 4 } => Self::table(bytes, Order::LowFirst, &INTEGERS),
            Codes::Unsigned { bytes, bits: 8 } => Some(Self::Bytes { bytes, signed: false }),
            Codes::Signed { codes } => Some(Self::Bytes { bytes: bytes(codes), signed: true }),
            _ => None,
        }
    }

    /// `None` for values that are far from one.
    fn table(bytes: &'a [u8], order: Order, values: &[f32; 16]) -> Option<Self> {
        let mut tables = [[0; 2 * TILE]; PIECES];
        let mut pieces = 1;
        for (i, value) in values.iter().enumerate() {
            if *value != 0.0 && !(1e-3..1e3).contains(&value.abs()) {
                return None;
            }
            let mut rest = *value;
            for (p, table) in tables.iter_mut().enumerate() {
                let piece = f32::from_bits(rest.to_bits().wrapping_add(0x8000) & !0xFFFF);
                rest -= piece;
                // The fifth bit of an index is a stranger's.
                [table[i], table[i + TILE]] = [(piece.to_bits() >> 16) as u16; 2];
                if piece != 0.0 {
                    pieces = pieces.max(p + 1);
                }
            }
        }
        let pieces = if pieces == 1 { 1 } else { PIECES };
        Some(Self::Table { bytes, high_first: order == Order::HighFirst, tables, pieces })
    }

    fn pieces(&self) -> usize {
        if let Self::Table { pieces, .. } = self { *pieces } else { 1 }
    }

    /// Writes the tiles of a run of [`WIDTH`] rows: for each 16 rows and each step, one of each piece.
    ///
    /// # Safety
    /// Rows `first..first + rows` lie in a matrix of `k` columns, and the run in the rows; there is room for the tiles; the
    /// machine has AVX-512 with `bf16`.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn fill(&self, k: usize, first: usize, rows: usize, run: usize, tiles: *mut Tile) {
        let place = |row: usize, step: usize, piece: usize, pieces: usize| {
            let tile = (row / TILE * 2 + step) * pieces + piece;
            tiles.wrapping_add(tile).cast::<__m512i>().wrapping_add(row % TILE)
        };
        match self {
            Self::Table { bytes, high_first, tables, pieces } => {
                let tables = tables.map(|table| {
                    // SAFETY: 32 words.
                    unsafe { _mm512_loadu_si512(table.as_ptr().cast()) }
                });
                for row in 0..rows {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let from = bytes.as_ptr().add((first + row) * (k / 2) + run * STEP);
                        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(WIDTH * k / 2).cast());
                        let low = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast()));
                        let high = _mm512_srli_epi16::<4>(low);
                        let (even, odd) = if *high_first { (high, low) } else { (low, high) };
                        for (piece, table) in tables.iter().enumerate().take(*pieces) {
                            _mm512_store_si512(place(row, 0, piece, *pieces), _mm512_permutexvar_epi16(even, *table));
                            _mm512_store_si512(place(row, 1, piece, *pieces), _mm512_permutexvar_epi16(odd, *table));
                        }
                    }
                }
            }
            Self::Bytes { bytes, signed } => {
                for row in 0..rows {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let from = bytes.as_ptr().add((first + row) * k + run * RUN);
                        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(WIDTH * k).cast());
                        let words = _mm512_loadu_si512(from.cast());
                        let (even, odd) = if *signed {
                            (_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(words)), _mm512_srai_epi16::<8>(words))
                        } else {
                            (_mm512_and_si512(words, _mm512_set1_epi16(255)), _mm512_srli_epi16::<8>(words))
                        };
                        for (step, words) in [even, odd].into_iter().enumerate() {
                            let low = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(words));
                            let high = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64::<1>(words));
                            // Integers of eight bits are `bf16` numbers.
                            let floats = _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
                            _mm512_store_si512(
                                place(row, step, 0, 1),
                                std::mem::transmute::<__m512bh, __m512i>(floats),
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Computes the product and says so, or leaves the output to others where the layout or the numbers do not fit.
///
/// # Safety
/// The matrix and all lengths were checked, none of them 0, and the machine has AMX.
pub(crate) unsafe fn multiply(product: &Product, threads: usize) -> bool {
    let &Product { matrix, scales, biases, x, m, .. } = product;
    let (n, k, block) = (matrix.n, matrix.k, matrix.block);
    let uniform = block.is_multiple_of(k) || (k.is_multiple_of(block) && block.is_multiple_of(RUN));
    let Some(coding) = Coding::new(matrix.codes) else { return false };
    // Where there are more rows, panels serve more of them each time they are made.
    if m > if coding.pieces() == 1 { 192 } else { 96 } {
        return false;
    }
    // Sums of rows that were scaled to magnitude one must not overflow, nor become subnormal.
    let fits = |numbers: &[f32]| {
        let (least, most) = (1e-25_f32.to_bits(), 1e25_f32.to_bits());
        // No early end, which would keep the compiler from taking several at a time.
        numbers.iter().fold(true, |fits, number| {
            let magnitude = number.abs().to_bits();
            fits & ((magnitude == 0) | (magnitude.wrapping_sub(least) < most - least))
        })
    };
    if !uniform || !k.is_multiple_of(RUN) || !fits(scales) || !biases.is_none_or(fits) {
        return false;
    }
    let mut rows = ROWS.take().unwrap_or_default();
    for first in (0..m).step_by(TASK_ROWS) {
        let chunk = first..m.min(first + TASK_ROWS);
        // SAFETY: the caller's promise.
        if !unsafe { rows.fill(x, k, chunk.clone(), threads) } {
            return false;
        }
        let each = n.div_ceil(4 * threads).next_multiple_of(WIDTH).min(TASK_COLUMNS);
        threads::for_each_on(threads, n.div_ceil(each), |i| {
            let columns = i * each..n.min((i + 1) * each);
            let mut scratch = SCRATCH.take().unwrap_or_else(Scratch::new);
            let task = Task { product, coding, rows: &rows, chunk: chunk.clone(), columns };
            // SAFETY: tasks have disjoint columns; AMX is there.
            unsafe { task.run(&mut scratch) };
            SCRATCH.set(Some(scratch));
        });
    }
    if rows.tiles.len() <= KEPT {
        ROWS.set(Some(rows));
    }
    true
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
        threads::for_each_on(threads, groups * 2, |i| {
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
    /// Of each run, for each row of the matrix.
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
    product: &'a Product<'a>,
    coding: Coding<'a>,
    rows: &'a Rows,
    /// Which rows of `x` they are.
    chunk: Range<usize>,
    /// Rows of the matrix.
    columns: Range<usize>,
}

impl Task<'_> {
    /// # Safety
    /// The columns of these rows of the output are the caller's alone; the machine has AMX.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn run(&self, scratch: &mut Scratch) {
        let Matrix { n, k, block, .. } = *self.product.matrix;
        let (runs, groups) = (k / RUN, self.chunk.len().div_ceil(WIDTH));
        let pieces = self.coding.pieces();
        // SAFETY: AMX is there, and this is the only place on the thread's stack that uses it.
        let tiles = unsafe { Tiles::new() };
        let zeros = Line([0.0; WIDTH]);
        let Scratch { codes, products, sums, scales, biases } = scratch;
        for numbers in [&mut *scales, &mut *biases] {
            numbers.resize(numbers.len().max(runs), [0.0; WIDTH]);
        }
        for first in self.columns.clone().step_by(WIDTH) {
            let count = WIDTH.min(self.columns.end - first);
            sums.fill([0.0; TASK_ROWS]);
            turn(self.product.scales, first..first + count, k, block, scales);
            if let Some(numbers) = self.product.biases {
                turn(numbers, first..first + count, k, block, biases);
            }
            for run in 0..runs {
                // SAFETY: the rows and the run lie in the matrix.
                unsafe { self.coding.fill(k, first, count, run, codes.as_mut_ptr()) };
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
                            add_pair(upper, upper.add(2 * PIECES), x, 2, from, to);
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
                    if self.product.biases.is_none() {
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
            for (at, i) in self.chunk.clone().enumerate() {
                let factor = self.rows.factors[at];
                for (row, sums) in sums.iter().enumerate().take(count) {
                    // SAFETY: the element lies in the rectangle.
                    unsafe { *self.product.out.add(i * n + first + row) = sums[at] * factor };
                }
            }
        }
        drop(tiles);
    }
}

/// Brings the numbers of these rows into the order of their runs.
fn turn(numbers: &[f32], rows: Range<usize>, k: usize, block: usize, turned: &mut [[f32; WIDTH]]) {
    for (at, row) in rows.enumerate() {
        if block >= k {
            let number = numbers[row * k / block];
            for turned in &mut turned[..k / RUN] {
                turned[at] = number;
            }
            continue;
        }
        let (blocks, each) = (k / block, block / RUN);
        for (number, turned) in numbers[row * blocks..][..blocks].iter().zip(turned.chunks_mut(each)) {
            for turned in turned {
                turned[at] = *number;
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
