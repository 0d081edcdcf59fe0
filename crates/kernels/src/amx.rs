//! The blocked product on AMX, whose tiles multiply 16-bit floats, and the sums of products of bytes.
//!
//! A float is the exact sum of three `bf16` numbers: eight bits of its significand each, rounded to nearest, so that a
//! piece is at most 2^-9 of the one before it. Products of two pieces are exact in `f32`, and tiles sum them in `f32`.
//! Of the nine products of pieces the three smallest, together at most 2^-26 of the whole, are left out: the result is as
//! exact as that of fused multiply-adds, at a multiple of their rate.
//!
//! Tiles know no subnormal numbers and no infinities less themselves. Rows of `x` are therefore brought to a largest
//! magnitude of about one, by a power of two which the result is multiplied with in turn; where a column of a panel is too
//! small, too large or not finite, that panel is multiplied by fused multiply-adds. Where `x` is not finite, nothing is
//! done here.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;
use std::{
    arch::asm,
    cell::Cell,
    ops::Range,
    slice,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{Isa, threads, tile::Product};

/// Rows and columns of a tile of sums.
const TILE: usize = 16;

/// Steps of the sum that one instruction takes.
const STEP: usize = 32;

/// Steps that one panel covers; its pieces fill half of a usual first-level cache.
const DEPTH: usize = 128;

/// The numbers that a float is split into.
const PIECES: usize = 3;

/// Columns of a panel: two tiles.
const WIDTH: usize = 2 * TILE;

/// Rows of `x` that are split at a time; bounds what a task goes back to for each panel.
const TASK_ROWS: usize = 512;

/// Output columns of one task.
const TASK_COLUMNS: usize = 128;

/// The binary exponents between which the largest magnitude of a panel's column may lie.
const EXPONENTS: Range<i32> = -90..100;

/// A tile of `bf16`.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Tile(#[expect(dead_code, reason = "read through a pointer")] [u32; TILE * STEP / 2]);

const ZEROS: Tile = Tile([0; TILE * STEP / 2]);

/// Whether this process may use AMX with `bf16` and 8-bit integers, which it asks the system for once.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        const TILE_STATE: u64 = 3 << 17;
        let has = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BF16_TILE_INT8 == BF16_TILE_INT8;
        let saves = is_x86_feature_detected!("xsave");
        // SAFETY: XSAVE was detected.
        has && saves && unsafe { _xgetbv(0) } & TILE_STATE == TILE_STATE && permission()
    })
}

/// Linux gives the state of the tiles only to processes that ask for it.
#[cfg(target_os = "linux")]
fn permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and changes nothing but what this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permission() -> bool {
    false
}

/// Eight tiles of 16 rows of 64 bytes, for as long as this lives.
pub(crate) struct Tiles(());

impl Tiles {
    /// # Safety
    /// [`is_available`], and the thread has no other `Tiles`.
    pub(crate) unsafe fn new() -> Self {
        #[repr(C, align(64))]
        struct Layout {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            bytes: [u16; 16],
            rows: [u8; 16],
        }
        let (mut bytes, mut rows) = ([0; 16], [0; 16]);
        bytes[..8].fill(64);
        rows[..8].fill(TILE as u8);
        let layout = Layout { palette: 1, start_row: 0, reserved: [0; 14], bytes, rows };
        // SAFETY: the caller's promise; the layout is one that the palette allows.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const layout, options(nostack, preserves_flags, readonly)) };
        Self(())
    }
}

/// Rows of `x` whose bytes are multiplied at a time.
pub(crate) const ROWS: usize = 2 * TILE;

/// Bytes of a row that one instruction takes.
pub(crate) const BYTES: usize = 64;

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: there are tiles, or this would not have been made.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

/// Writes the sums of the products of 32 rows of signed bytes with 32 columns of unsigned ones to `to`, row by row.
///
/// # Safety
/// `steps` times [`BYTES`] bytes are readable in [`ROWS`] rows at `x`, `stride` bytes apart, and 32 times as many at
/// `panel`, where four of each column follow each other; `to` has room.
pub(crate) unsafe fn multiply_bytes(
    _: &Tiles,
    x: *const i8,
    stride: usize,
    panel: *const u8,
    steps: usize,
    to: *mut i32,
) {
    // SAFETY: the caller's promise; there are tiles.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{x} + {stride}]",
            "tileloadd tmm6, [{w} + {line}]",
            "tileloadd tmm7, [{w} + {line} + 64]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{y} + {stride}]",
            "tdpbsud tmm1, tmm4, tmm7",
            "tdpbsud tmm2, tmm5, tmm6",
            "tdpbsud tmm3, tmm5, tmm7",
            "add {x}, 64",
            "add {y}, 64",
            "add {w}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{to} + {line}], tmm0",
            "tilestored [{to} + {line} + 64], tmm1",
            "tilestored [{to} + {line} + 2048], tmm2",
            "tilestored [{to} + {line} + 2112], tmm3",
            x = inout(reg) x => _,
            y = inout(reg) x.add(TILE * stride) => _,
            w = inout(reg) panel => _,
            steps = inout(reg) steps => _,
            to = in(reg) to,
            stride = in(reg) stride,
            line = in(reg) 128_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Computes the product and says so, or does nothing because `x` is not finite.
///
/// # Safety
/// As for [`Product::run`]; [`is_available`].
pub(crate) unsafe fn multiply(product: &Product, threads: usize) -> bool {
    let steps = product.depth.div_ceil(STEP);
    let mut x = SPLIT.take().unwrap_or_default();
    for first in (0..product.m).step_by(TASK_ROWS) {
        let rows = first..product.m.min(first + TASK_ROWS);
        // SAFETY: the rows are those of the product, and the instructions are there.
        if !unsafe { x.fill(product, rows.clone(), threads) } {
            if first == 0 {
                return false;
            }
            let rest = Product {
                x: product.x.wrapping_add(first * product.x_stride),
                m: product.m - first,
                out: product.out.wrapping_add(first * product.out_stride),
                ..*product
            };
            // SAFETY: the rest of the caller's product.
            unsafe { rest.run(Isa::Avx512, threads) };
            break;
        }
        let each = product.columns.div_ceil(4 * threads).next_multiple_of(WIDTH).min(TASK_COLUMNS);
        let column_tasks = product.columns.div_ceil(each);
        // Narrow outputs are split by rows as well, at the price of making the panels once for each part.
        let height = rows.len().div_ceil((threads / column_tasks).max(1)).next_multiple_of(2 * TILE);
        let row_tasks = rows.len().div_ceil(height);
        threads::for_each_on(threads, column_tasks * row_tasks, |i| {
            let (column, row) = (i / row_tasks * each, i % row_tasks * height);
            let columns = column..product.columns.min(column + each);
            let rows = row..rows.len().min(row + height);
            let task = Task { product, x: &x, steps, first, rows, columns };
            let mut scratch = SCRATCH.take().unwrap_or_else(Scratch::new);
            // SAFETY: tasks have disjoint rectangles of the output; the instructions are there.
            unsafe { task.run(&mut scratch) };
            SCRATCH.set(Some(scratch));
        });
    }
    if x.tiles.len() <= KEPT {
        SPLIT.set(Some(x));
    }
    true
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

#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: tasks write disjoint parts.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn at(self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

impl Split {
    /// Splits these rows of the product, or says that they are not finite.
    ///
    /// # Safety
    /// The rows lie in `x`, and the machine has AVX-512.
    unsafe fn fill(&mut self, product: &Product, rows: Range<usize>, threads: usize) -> bool {
        let steps = product.depth.div_ceil(STEP);
        let bands = rows.len().div_ceil(TILE);
        let tiles = bands * steps * PIECES;
        self.tiles.resize(tiles.max(self.tiles.len()), ZEROS);
        self.factors.resize(self.factors.len().max(bands * TILE), 0.0);
        let (tiles, factors) = (Shared(self.tiles.as_mut_ptr()), Shared(self.factors.as_mut_ptr()));
        let finite = AtomicBool::new(true);
        let threads = if rows.len() * product.depth < SERIAL { 1 } else { threads };
        threads::for_each_on(threads, bands, |band| {
            let first = rows.start + band * TILE;
            for row in 0..TILE {
                // SAFETY: the tiles and factors of a band belong to one task; rows beyond the last are not read.
                unsafe {
                    let tiles = tiles.at(band * steps * PIECES).cast::<u32>().add(row * STEP / 2);
                    let from = (first + row < rows.end).then(|| product.x.add((first + row) * product.x_stride));
                    match split_row(from, product.depth, tiles) {
                        Some(factor) => *factors.at(band * TILE + row) = factor,
                        None => finite.store(false, Ordering::Relaxed),
                    }
                }
            }
        });
        finite.load(Ordering::Relaxed)
    }
}

/// Products with fewer elements of `x` are split on one thread.
const SERIAL: usize = 1 << 15;

/// The first `count` floats at `from`, and zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load(from: *const f32, count: usize) -> __m512 {
    if count >= TILE {
        // SAFETY: the caller's promise.
        return unsafe { _mm512_loadu_ps(from) };
    }
    // SAFETY: only `count` floats are read.
    unsafe { _mm512_maskz_loadu_ps((1 << count) - 1, from) }
}

/// Splits a row, or zeros, into the same row of each tile; gives what its sums are to be multiplied with.
///
/// # Safety
/// `depth` floats are readable at `from`, and `tiles` is the row's place in the first of its tiles.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn split_row(from: Option<*const f32>, depth: usize, tiles: *mut u32) -> Option<f32> {
    const BIAS: i32 = 127;
    let mut most = _mm512_setzero_si512();
    if let Some(from) = from {
        for at in (0..depth).step_by(TILE) {
            // SAFETY: the caller's promise.
            let x = unsafe { load(from.add(at), depth - at) };
            most = _mm512_max_epu32(most, magnitude(x));
        }
    }
    let exponent = (_mm512_reduce_max_epu32(most) >> 23) as i32;
    if exponent > 2 * BIAS {
        return None;
    }
    let shift = (BIAS - exponent).clamp(1 - BIAS, BIAS - 1);
    let power = |exponent: i32| f32::from_bits(((exponent + BIAS) as u32) << 23);
    let up = _mm512_set1_ps(power(shift));
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
    Some(power(-shift))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn magnitude(x: __m512) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX))
}

/// The three pieces, in the upper halves of words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn split(x: __m512) -> [__m512i; PIECES] {
    let first = nearest(x);
    let rest = _mm512_sub_ps(x, _mm512_castsi512_ps(first));
    let second = nearest(rest);
    let rest = _mm512_sub_ps(rest, _mm512_castsi512_ps(second));
    // Eight bits are left, or less than the least normal number.
    [first, second, _mm512_castps_si512(rest)]
}

/// Rounded to eight bits, ties away from zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nearest(x: __m512) -> __m512i {
    let words = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    _mm512_and_si512(words, _mm512_set1_epi32(!0xFFFF))
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
    x: &'a Split,
    /// Of the whole sum.
    steps: usize,
    /// The row of the product that is the first of `x`.
    first: usize,
    /// Of `x`; starts with a tile.
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Task<'_> {
    /// # Safety
    /// The rectangle lies in the output and is the caller's alone; the machine has AMX and AVX-512.
    unsafe fn run(&self, scratch: &mut Scratch) {
        let Self { product, rows, columns, .. } = self;
        // SAFETY: AMX is there, and this is the only place on the thread's stack that uses it.
        let tiles = unsafe { Tiles::new() };
        let bands = rows.len().div_ceil(TILE);
        let sums = scratch.sums.as_mut_ptr().cast::<f32>();
        // SAFETY: there is room for TASK_ROWS rows.
        unsafe { slice::from_raw_parts_mut(sums, bands * TILE * TASK_COLUMNS) }.fill(0.0);
        for start in (0..product.depth).step_by(DEPTH) {
            let depth = DEPTH.min(product.depth - start);
            for first in columns.clone().step_by(WIDTH) {
                let width = WIDTH.min(columns.end - first);
                let (panel, pieces) = (scratch.floats.as_mut_ptr().cast(), scratch.pieces.as_mut_ptr());
                // SAFETY: the panel has room for all steps, and the ranges lie in the product.
                unsafe {
                    product.panels.fill(Isa::Avx512, start, depth, first, width, panel);
                    let sums = sums.add(first - columns.start);
                    if split_panel(panel, depth, width, pieces.cast()) {
                        self.add_tiles(&tiles, start, depth, pieces, sums);
                    } else {
                        self.add_floats(start, depth, panel, sums);
                    }
                }
            }
        }
        drop(tiles);
        for (at, i) in rows.clone().enumerate() {
            let factor = self.x.factors[i];
            // SAFETY: the row of the sums and that of the rectangle.
            let (sums, out) = unsafe {
                let out = product.out.add((self.first + i) * product.out_stride + columns.start);
                (
                    slice::from_raw_parts(sums.add(at * TASK_COLUMNS), columns.len()),
                    slice::from_raw_parts_mut(out, columns.len()),
                )
            };
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = if product.accumulate { *out + sum * factor } else { sum * factor };
            }
        }
    }

    /// Adds the product with a panel in pieces.
    ///
    /// # Safety
    /// The panel was split, and there are sums of all rows of whole tiles.
    unsafe fn add_tiles(&self, _: &Tiles, start: usize, depth: usize, panel: *const Tile, sums: *mut f32) {
        let steps = depth.div_ceil(STEP);
        let bands = self.rows.len().div_ceil(TILE);
        let x = |band: usize| {
            let band = self.rows.start / TILE + band;
            self.x.tiles[(band * self.steps + start / STEP) * PIECES..].as_ptr()
        };
        for band in (0..bands).step_by(2) {
            // SAFETY: the caller's promise.
            unsafe {
                let sums = sums.add(band * TILE * TASK_COLUMNS);
                if band + 1 < bands {
                    add_pair(x(band), x(band + 1), panel, steps, sums);
                } else {
                    add_single(x(band), panel, steps, sums);
                }
            }
        }
    }

    /// Adds the product with a panel by fused multiply-adds.
    ///
    /// # Safety
    /// As for [`add_tiles`](Self::add_tiles), with a panel of floats.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn add_floats(&self, start: usize, depth: usize, panel: *const f32, sums: *mut f32) {
        for (at, i) in self.rows.clone().enumerate() {
            let up = self.x.factors[i].recip();
            // SAFETY: the row and the steps lie in `x`, the panel and the sums are as wide as two vectors.
            unsafe {
                let x = self.product.x.add((self.first + i) * self.product.x_stride + start);
                let to = sums.add(at * TASK_COLUMNS);
                let (mut left, mut right) = (_mm512_loadu_ps(to), _mm512_loadu_ps(to.add(TILE)));
                for d in 0..depth {
                    let x = _mm512_set1_ps(*x.add(d) * up);
                    left = _mm512_fmadd_ps(x, _mm512_loadu_ps(panel.add(d * WIDTH)), left);
                    right = _mm512_fmadd_ps(x, _mm512_loadu_ps(panel.add(d * WIDTH + TILE)), right);
                }
                _mm512_storeu_ps(to, left);
                _mm512_storeu_ps(to.add(TILE), right);
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

/// Adds the products of 32 rows and a panel to the sums.
///
/// # Safety
/// The thread has [`Tiles`]; there are `steps` tiles of each piece in each band, twice as many in the panel, and 32
/// rows of sums.
unsafe fn add_pair(upper: *const Tile, lower: *const Tile, panel: *const Tile, steps: usize, sums: *mut f32) {
    let stride = TASK_COLUMNS * 4;
    // Products of small pieces first; one operand stays where it is from each four products to the next.
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c} + {stride}]",
            "tileloadd tmm1, [{c} + {stride} + 64]",
            "tileloadd tmm2, [{d} + {stride}]",
            "tileloadd tmm3, [{d} + {stride} + 64]",
            "2:",
            "tileloadd tmm4, [{x} + {line}]",
            "tileloadd tmm6, [{w} + {line} + 2048]",
            "tileloadd tmm7, [{w} + {line} + 5120]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{y} + {line}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{w} + {line} + 1024]",
            "tileloadd tmm7, [{w} + {line} + 4096]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm4, [{x} + {line} + 1024]",
            "tileloadd tmm5, [{y} + {line} + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm6, [{w} + {line}]",
            "tileloadd tmm7, [{w} + {line} + 3072]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm4, [{x} + {line} + 2048]",
            "tileloadd tmm5, [{y} + {line} + 2048]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "tileloadd tmm4, [{x} + {line}]",
            "tileloadd tmm5, [{y} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {x}, 3072",
            "add {y}, 3072",
            "add {w}, 6144",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{c} + {stride}], tmm0",
            "tilestored [{c} + {stride} + 64], tmm1",
            "tilestored [{d} + {stride}], tmm2",
            "tilestored [{d} + {stride} + 64], tmm3",
            x = inout(reg) upper => _,
            y = inout(reg) lower => _,
            w = inout(reg) panel => _,
            steps = inout(reg) steps => _,
            c = in(reg) sums,
            d = in(reg) sums.add(TILE * TASK_COLUMNS),
            stride = in(reg) stride,
            line = in(reg) 64_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
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
