//! The product of integers on AVX-512's VNNI: sums of four products of an unsigned and a signed byte.
//!
//! The weights are the unsigned side, 128 above what they stand for; sums start at -128 times the sum of the
//! activations, which takes that away again. Panels of 32 rows are transposed by words, so that each lane sums one
//! row's products and no sum ever crosses lanes. The even and the odd elements of a word of eight 4-bit codes are two
//! of the steps of the sum, and the activations are laid out likewise.

#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;
use std::sync::{Mutex, PoisonError};

use crate::{
    Isa, Matrix, Order, Scales, amx, codec,
    int8_matmul::{Integers, Rows, STEP, Weights},
    simd::{Kernel, Simd, run},
    threads,
};

/// Rows of the matrix in a panel: two vectors of sums.
const WIDTH: usize = 32;

/// Bytes of a panel: the integers of [`STEP`] elements of its rows.
const PANEL: usize = STEP * WIDTH;

/// Rows of activations of a register tile.
const HEIGHT: usize = 12;

/// Rows of activations of a task; bounds what it goes back to for each panel.
const TASK_ROWS: usize = 504;

/// Bytes from row to row of activations within a step: off a power of two, or rows would share cache sets.
const STRIDE: usize = STEP + 64;

/// Rows of activations below which AMX is no faster.
const FEW_ROWS: usize = 8;

/// Words of 16 rows: [`STEP`] bytes of each, at most.
type Words = [u32; PANEL / 8];

/// Computes the product and says so, or does nothing where the layout or the machine does not fit.
pub(crate) fn multiply(isa: Isa, rows: &Rows, matrix: &Matrix, weights: &Weights, y: &mut [f32]) -> bool {
    let (n, k, block) = (matrix.n, matrix.k, matrix.block);
    let uniform = k > 0 && (k.is_multiple_of(block) || block.is_multiple_of(k));
    if !uniform || !k.is_multiple_of(8) || !block.is_multiple_of(8) || !is_x86_feature_detected!("avx512vnni") {
        return false;
    }
    let steps: Vec<Step> = (0..k).step_by(STEP).map(|start| Step::new(start, k, block)).collect();
    let x = Activations::new(rows, k, &steps, matches!(weights.codes, Integers::Table { .. }));
    let m = rows.units.len();
    let row_tasks = m.div_ceil(TASK_ROWS);
    let height = m.div_ceil(row_tasks);
    // Narrow enough to be shared evenly, wide enough that a thread's scratch memory is worth making.
    let width = n.div_ceil(8 * threads::count()).next_multiple_of(WIDTH);
    let whole = |step: &Step| step.ends.iter().all(|end| end.is_multiple_of(amx::BYTES));
    let tiles = isa == Isa::Amx && m >= FEW_ROWS && steps.iter().all(whole);
    let out = Output(y.as_mut_ptr());
    threads::for_each(row_tasks * n.div_ceil(width), |task| {
        let (column, row) = (task / row_tasks * width, task % row_tasks * height);
        let (columns, heights) = (n.min(column + width) - column, m.min(row + height) - row);
        let part = Part { x: &x, units: &rows.units, steps: &steps, matrix, weights, n, tiles, out: &out };
        // SAFETY: the instructions are there, and tasks write disjoint rectangles of the output.
        unsafe { part.run(column, columns, row, heights) };
    });
    true
}

struct Output(*mut f32);

// SAFETY: tasks write disjoint rectangles of it, while it is borrowed mutably.
unsafe impl Sync for Output {}

/// A stretch of the rows that is summed at a time, cut where the scale changes.
struct Step {
    start: usize,
    len: usize,
    /// Where each run of elements that share a scale ends, from `start`.
    ends: Vec<usize>,
    /// The block of each run, counted from that of the row's first element.
    blocks: Vec<usize>,
}

impl Step {
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
    starts: Vec<i32>,
    /// Where a step's part of `starts` begins.
    offsets: Vec<usize>,
}

impl Activations {
    fn new(rows: &Rows, k: usize, steps: &[Step], pairs: bool) -> Self {
        let m = rows.units.len();
        let mut offsets = Vec::with_capacity(steps.len());
        let mut total = 0;
        for step in steps {
            offsets.push(total);
            total += m * step.ends.len();
        }
        let mut all = Self { codes: vec![0; (steps.len() * m + amx::ROWS) * STRIDE], starts: vec![0; total], offsets };
        let mut starts = &mut all.starts[..];
        let mut tasks = Vec::with_capacity(steps.len());
        for (step, codes) in steps.iter().zip(all.codes.chunks_exact_mut(m * STRIDE)) {
            let (these, rest) = starts.split_at_mut(m * step.ends.len());
            tasks.push(Arrange { rows: &rows.codes, k, step, pairs, codes, starts: these });
            starts = rest;
        }
        let count = if m * k < SERIAL { 1 } else { threads::count() };
        let tasks = Mutex::new(tasks);
        threads::for_each_on(count, steps.len(), |_| {
            let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if let Some(task) = task {
                run(Isa::Avx512, task);
            }
        });
        all
    }
}

/// Fewer activations than this do not wake a second thread.
const SERIAL: usize = 1 << 16;

/// One step of the activations.
struct Arrange<'a> {
    rows: &'a [i8],
    k: usize,
    step: &'a Step,
    pairs: bool,
    codes: &'a mut [i8],
    starts: &'a mut [i32],
}

impl Kernel for Arrange<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { rows, k, step, pairs, codes, starts } = self;
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
                *start = -128 * row[from..end].iter().map(|x| i32::from(*x)).sum::<i32>();
                from = end;
            }
        }
    }
}

/// What a task needs to know.
struct Part<'a> {
    x: &'a Activations,
    units: &'a [f32],
    steps: &'a [Step],
    matrix: &'a Matrix<'a>,
    weights: &'a Weights<'a>,
    n: usize,
    /// Whether there is AMX, and runs are whole tiles.
    tiles: bool,
    out: &'a Output,
}

/// A cache line, so that no vector of a panel spans two.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

impl Part<'_> {
    /// Computes rows `row..row + height`, columns `column..column + width` of the output.
    ///
    /// # Safety
    /// The machine has the instructions, the rectangle lies in the output, and no one else uses it meanwhile.
    unsafe fn run(&self, column: usize, width: usize, row: usize, height: usize) {
        let m = self.units.len();
        let mut panel = vec![Line([0; 64]); PANEL / 64];
        let mut words = Box::new([[0; PANEL / 8]; 2]);
        let mut scales = vec![[0.0_f32; WIDTH]; STEP / 8];
        let mut sums = vec![[0.0_f32; WIDTH]; height];
        let mut products = Box::new([[[0_i32; WIDTH]; amx::ROWS]; 2]);
        // SAFETY: AMX is there if `tiles` says so.
        let tiles = self.tiles.then(|| unsafe { amx::Tiles::new() });
        for first in (column..column + width).step_by(WIDTH) {
            let columns = WIDTH.min(column + width - first);
            sums.fill([0.0; WIDTH]);
            for (s, step) in self.steps.iter().enumerate() {
                self.fill(step, first, columns, &mut words, &mut panel, &mut scales);
                let parts = height.div_ceil(if tiles.is_some() { amx::ROWS } else { HEIGHT });
                for part in 0..parts {
                    let (from, to) = (part * height / parts, (part + 1) * height / parts);
                    let tile = Tile {
                        panel: panel.as_ptr().cast(),
                        x: self.x.codes[(s * m + row + from) * STRIDE..].as_ptr(),
                        starts: self.x.starts[self.x.offsets[s] + (row + from) * step.ends.len()..].as_ptr(),
                        ends: &step.ends,
                        scales: &scales,
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
            for ((i, sums), unit) in (row..).zip(&sums).zip(&self.units[row..]) {
                // SAFETY: this part of row i lies in the rectangle.
                let out = unsafe { std::slice::from_raw_parts_mut(self.out.0.add(i * self.n + first), columns) };
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = sum * unit;
                }
            }
        }
    }

    /// Makes the panel of one step: bytes of four elements for each of its rows, and the scales of its runs.
    fn fill(
        &self,
        step: &Step,
        first: usize,
        columns: usize,
        words: &mut [Words; 2],
        panel: &mut [Line],
        scales: &mut [[f32; WIDTH]],
    ) {
        let Matrix { k, block, .. } = *self.matrix;
        let (bytes, per_word): (&[u8], usize) = match &self.weights.codes {
            Integers::Table { bytes, .. } => (bytes, 8),
            Integers::Signed(codes) => (codec::bytes(codes), 4),
        };
        let row_bytes = k / per_word * 4;
        let count = step.len / per_word;
        let bytes = &bytes[first * row_bytes + step.start / per_word * 4..];
        run(Isa::Avx512, Transpose { bytes, row_bytes, rows: columns, count, words });
        match &self.weights.codes {
            Integers::Table { order, values, .. } => {
                let table = values.map(|value| value.cast_unsigned() ^ 0x80);
                // SAFETY: VNNI was detected, which no machine has without the rest of AVX-512 that is used here.
                unsafe { decode(words, count, table, *order == Order::HighFirst, panel) };
            }
            Integers::Signed(_) => {
                for (half, words) in words.iter().enumerate() {
                    let lines = panel.iter_mut().skip(half).step_by(2);
                    for (line, words) in lines.zip(words.as_chunks::<16>().0).take(count) {
                        for (bytes, word) in line.0.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                            *bytes = (word ^ 0x8080_8080).to_le_bytes();
                        }
                    }
                }
            }
        }
        // Several blocks to a row, or several rows to a block.
        let (blocks, rows) = ((k / block).max(1), (block / k).max(1));
        for row in 0..columns {
            let base = (first + row) * blocks / rows;
            for (at, scales) in step.blocks.iter().zip(&mut *scales) {
                scales[row] = match self.matrix.scales {
                    Scales::F32(scales) => scales[base + at],
                    other => other.get(base + at),
                };
            }
        }
    }
}

/// Words of rows, turned, each half of the panel by itself: word `d` of its row `r` goes to `words[half][d * 16 + r]`.
struct Transpose<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    rows: usize,
    count: usize,
    words: &'a mut [Words; 2],
}

impl Kernel for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (half, words) in self.words.iter_mut().enumerate() {
            let first = 16 * half;
            for d in (0..self.count).step_by(16) {
                if S::LANES == 16 && self.count - d >= 16 && self.rows >= first + 16 {
                    let from = self.bytes[first * self.row_bytes + 4 * d..].as_ptr();
                    // The same place of the next step: rows are too many for the hardware to foresee it.
                    for row in 0..16 {
                        simd.prefetch(from.wrapping_add(row * self.row_bytes + 4 * self.count));
                    }
                    // SAFETY: 16 rows have 16 words from word `d` on, and there is room for them.
                    unsafe { simd.transpose(from, self.row_bytes, words[16 * d..][..256].as_mut_ptr()) };
                    continue;
                }
                for row in first..self.rows.min(first + 16) {
                    let from = &self.bytes[row * self.row_bytes..];
                    for (d, word) in from.as_chunks::<4>().0.iter().enumerate().take(self.count).skip(d).take(16) {
                        words[16 * d + row - first] = u32::from_le_bytes(*word);
                    }
                }
            }
        }
    }
}

/// Looks the codes of each word up: the even elements of all rows, then the odd ones.
#[target_feature(enable = "avx512f,avx512bw")]
fn decode(words: &[Words; 2], count: usize, table: [u8; 16], high_first: bool, panel: &mut [Line]) {
    // SAFETY: an array of 16 bytes.
    let table = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())) };
    let low = _mm512_set1_epi8(15);
    for (half, words) in words.iter().enumerate() {
        let words = words.as_chunks::<16>().0.iter().take(count);
        for (words, lines) in words.zip(panel.as_chunks_mut::<4>().0) {
            // SAFETY: 16 words; a line is as long as a vector and as aligned.
            unsafe {
                let codes = _mm512_loadu_si512(words.as_ptr().cast());
                let bottom = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, low));
                let top = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low));
                let (even, odd) = if high_first { (top, bottom) } else { (bottom, top) };
                _mm512_store_si512(lines[half].0.as_mut_ptr().cast(), even);
                _mm512_store_si512(lines[2 + half].0.as_mut_ptr().cast(), odd);
            }
        }
    }
}

/// A register tile's part of the sum, for the runs of one step.
struct Tile<'a> {
    /// For each four elements, 32 words.
    panel: *const u8,
    x: *const i8,
    starts: *const i32,
    ends: &'a [usize],
    scales: &'a [[f32; WIDTH]],
    sums: *mut f32,
}

impl Tile<'_> {
    /// # Safety
    /// The machine has the instructions, and all pointers are good for `rows` rows and all runs.
    unsafe fn run(&self, rows: usize) {
        // Few rows are several sums each, or one would wait for the other.
        macro_rules! by_height {
            ($($height:literal: $chains:literal),*) => {
                match rows {
                    // SAFETY: the caller's promise.
                    $($height => unsafe { self.rows::<$height, $chains>() },)*
                    _ => unreachable!("tiles have at most {HEIGHT} rows"),
                }
            };
        }
        by_height!(1: 4, 2: 4, 3: 4, 4: 2, 5: 2, 6: 2, 7: 1, 8: 1, 9: 1, 10: 1, 11: 1, 12: 1);
    }

    /// As [`run`](Self::run), for up to [`amx::ROWS`] rows and runs that are whole tiles.
    ///
    /// # Safety
    /// As for [`run`](Self::run); [`amx::ROWS`] rows are readable at `x`.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn run_tiles(&self, tiles: &amx::Tiles, rows: usize, products: &mut [[[i32; WIDTH]; amx::ROWS]; 2]) {
        let multiply = |r: usize, to: &mut [[i32; WIDTH]; amx::ROWS]| {
            let from = if r == 0 { 0 } else { self.ends[r - 1] };
            // SAFETY: the panel and the rows have all elements of the run.
            unsafe {
                let (x, panel) = (self.x.add(from), self.panel.add(from * WIDTH));
                let steps = (self.ends[r] - from) / amx::BYTES;
                amx::multiply_bytes(tiles, x, STRIDE, panel, steps, to.as_mut_ptr().cast());
            }
        };
        multiply(0, &mut products[0]);
        for (r, scales) in self.scales.iter().enumerate().take(self.ends.len()) {
            // The next run, so that its tiles are not waited for.
            if r + 1 < self.ends.len() {
                multiply(r + 1, &mut products[(r + 1) % 2]);
            }
            let products = &products[r % 2];
            // SAFETY: the scales and the sums are 32 floats for each run and row, which has a start for the run.
            unsafe {
                let (left, right) = (_mm512_loadu_ps(scales.as_ptr()), _mm512_loadu_ps(scales.as_ptr().add(16)));
                for (i, products) in products.iter().enumerate().take(rows) {
                    let start = _mm512_set1_epi32(*self.starts.add(i * self.ends.len() + r));
                    for (half, scale) in [left, right].into_iter().enumerate() {
                        let to = self.sums.add(i * WIDTH + 16 * half);
                        let sum = _mm512_add_epi32(_mm512_loadu_si512(products.as_ptr().add(16 * half).cast()), start);
                        let term = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                        _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), term));
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for [`run`](Self::run).
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn rows<const ROWS: usize, const CHAINS: usize>(&self) {
        let mut from = 0;
        for (r, (&end, scales)) in self.ends.iter().zip(self.scales).enumerate() {
            let mut sums = [[[_mm512_setzero_si512(); 2]; ROWS]; CHAINS];
            for (i, sums) in sums[0].iter_mut().enumerate() {
                // SAFETY: row i has a start for run r.
                *sums = [_mm512_set1_epi32(unsafe { *self.starts.add(i * self.ends.len() + r) }); 2];
            }
            let mut at = from;
            while at < end {
                for sums in &mut sums {
                    if at >= end {
                        break;
                    }
                    // SAFETY: elements `at..at + 4` lie in the run, of which the panel and the rows have all.
                    unsafe {
                        let panel = self.panel.add(at * WIDTH);
                        let left = _mm512_load_si512(panel.cast());
                        let right = _mm512_load_si512(panel.add(64).cast());
                        for (i, [a, b]) in sums.iter_mut().enumerate() {
                            let x = _mm512_set1_epi32(self.x.add(i * STRIDE + at).cast::<i32>().read_unaligned());
                            *a = _mm512_dpbusd_epi32(*a, left, x);
                            *b = _mm512_dpbusd_epi32(*b, right, x);
                        }
                    }
                    at += 4;
                }
            }
            from = end;
            let mut totals = sums[0];
            for sums in &sums[1..] {
                for (total, sums) in totals.iter_mut().zip(sums) {
                    *total = [_mm512_add_epi32(total[0], sums[0]), _mm512_add_epi32(total[1], sums[1])];
                }
            }
            // SAFETY: the scales and the sums are 32 floats for each run and row.
            unsafe {
                let (left, right) = (_mm512_loadu_ps(scales.as_ptr()), _mm512_loadu_ps(scales.as_ptr().add(16)));
                for (i, [a, b]) in totals.into_iter().enumerate() {
                    let to = self.sums.add(i * WIDTH);
                    let a = _mm512_mul_ps(_mm512_cvtepi32_ps(a), left);
                    let b = _mm512_mul_ps(_mm512_cvtepi32_ps(b), right);
                    _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), a));
                    _mm512_storeu_ps(to.add(16), _mm512_add_ps(_mm512_loadu_ps(to.add(16)), b));
                }
            }
        }
    }
}
