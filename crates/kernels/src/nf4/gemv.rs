//! Products with few rows of activations, straight from the codes.
//!
//! A vector of words holds eight vectors of codes: nibble `s` of word `i` is element `8 i + (s ^ 1)`. Looking the
//! nibbles up one place at a time needs one shift and no widening; in exchange, the activations (for `x W^T`) are
//! brought into the same order beforehand, and the sums (for `x W`) out of it at the end. A *chunk* is one such
//! vector's worth of elements.

use super::weight::Weight;
use crate::{
    Isa,
    simd::{Kernel, Simd, run},
};

/// The most rows of activations at which these kernels beat the blocked product.
pub(super) const MAX_ROWS: usize = 8;

/// Rows of activations that are multiplied at a time; more would not stay in the first-level cache.
const GROUP: usize = 4;

/// The most columns of one [`ByColumns`] task.
const MAX_COLUMNS: usize = 1024;

/// Rows of the weight that [`ByColumns`] goes through before it moves on to the next chunk.
const ROW_GROUP: usize = 16;

/// How the elements of a chunk find their scale.
#[derive(Clone, Copy)]
enum Blocks {
    /// A block covers the whole chunk.
    Wide,
    /// A chunk is a whole number of blocks of this many words.
    Narrow(usize),
    /// Rows start within a block.
    Straddling,
}

impl Blocks {
    fn of<S: Simd>(weight: &Weight) -> Self {
        if !weight.rows_are_blocks() {
            Self::Straddling
        } else if weight.block >= 8 * S::LANES {
            Self::Wide
        } else {
            Self::Narrow(weight.block / 8)
        }
    }

    /// The scale of each word of the whole chunk at `element`.
    ///
    /// # Safety
    /// The chunk lies in a weight whose lengths were checked.
    #[inline(always)]
    unsafe fn scales<S: Simd>(self, simd: S, weight: &Weight, element: usize) -> S::F {
        // SAFETY: the chunk's elements lie in the weight, so their blocks have an absmax.
        unsafe {
            let absmax = weight.absmax.as_ptr().add(element >> weight.shift());
            match self {
                Self::Wide => simd.splat(*absmax),
                Self::Narrow(words) => simd.spread(absmax, words),
                Self::Straddling => some_scales(simd, weight, element, S::LANES),
            }
        }
    }
}

/// The scales of the first `words` words of the chunk at `element`, and zeros.
///
/// # Safety
/// The words lie in a weight whose lengths were checked.
#[inline(always)]
unsafe fn some_scales<S: Simd>(simd: S, weight: &Weight, element: usize, words: usize) -> S::F {
    let mut scales = [0.0; 16];
    for (i, scale) in scales.iter_mut().enumerate().take(words) {
        // SAFETY: the word lies in the weight, so its block has an absmax.
        *scale = unsafe { *weight.absmax.get_unchecked((element + 8 * i) >> weight.shift()) };
    }
    // SAFETY: `scales` has 16 floats, the most that a vector holds.
    unsafe { simd.load(scales.as_ptr()) }
}

/// The first `words` words of the chunk at `element`, and zeros.
///
/// # Safety
/// The words lie in a weight whose lengths were checked.
#[inline(always)]
unsafe fn some_words<S: Simd>(simd: S, weight: &Weight, element: usize, words: usize) -> S::I {
    let mut bytes = [0; 64];
    // SAFETY: the words lie in the weight, and 64 bytes are the most that a vector holds.
    unsafe {
        std::ptr::copy_nonoverlapping(weight.packed.as_ptr().add(element / 2), bytes.as_mut_ptr(), 4 * words);
        simd.load_words(bytes.as_ptr())
    }
}

/// The activations `x: f32[m, k]` in the order in which [`ByRows`] reads them, padded by zeros to whole chunks.
pub(super) fn arrange(isa: Isa, x: &[f32], m: usize, k: usize) -> Vec<f32> {
    struct Arrange<'a>(&'a [f32], usize, usize);
    impl Kernel for Arrange<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, _: S) -> Vec<f32> {
            let Self(x, m, k) = self;
            let chunk = 8 * S::LANES;
            let length = k.next_multiple_of(chunk);
            let mut arranged = vec![0.0; m * length];
            for (from, to) in x.chunks_exact(k).zip(arranged.chunks_exact_mut(length)) {
                for (from, to) in from.chunks(chunk).zip(to.chunks_exact_mut(chunk)) {
                    for (word, values) in from.chunks_exact(8).enumerate() {
                        for (e, value) in values.iter().enumerate() {
                            to[(e ^ 1) * S::LANES + word] = *value;
                        }
                    }
                }
            }
            arranged
        }
    }
    run(isa, Arrange(x, m, k))
}

/// `y = x W^T` for some rows of the weight.
pub(super) struct ByRows<'a> {
    x: &'a [f32],
    m: usize,
    weight: &'a Weight<'a>,
    first: usize,
    last: usize,
    out: *mut f32,
}

impl<'a> ByRows<'a> {
    /// # Safety
    /// `x` comes from [`arrange`] for this weight's `k`, rows of the weight are whole words, its lengths were checked,
    /// and columns `first..last` of `out: f32[m, n]` belong to the caller alone.
    pub(super) unsafe fn new(
        x: &'a [f32],
        m: usize,
        weight: &'a Weight<'a>,
        first: usize,
        last: usize,
        out: *mut f32,
    ) -> Self {
        Self { x, m, weight, first, last, out }
    }

    #[inline(always)]
    fn rows<S: Simd, const M: usize, const ROWS: usize>(&self, simd: S, blocks: Blocks) {
        let mut row = self.first;
        while row < self.last {
            // SAFETY: the rows lie in first..last.
            unsafe {
                if row + ROWS <= self.last {
                    self.group::<S, M, ROWS>(simd, blocks, row);
                    row += ROWS;
                } else {
                    self.group::<S, M, 1>(simd, blocks, row);
                    row += 1;
                }
            }
        }
    }

    /// # Safety
    /// Rows `row..row + ROWS` lie in `first..last`.
    #[inline(always)]
    unsafe fn group<S: Simd, const M: usize, const ROWS: usize>(&self, simd: S, blocks: Blocks, row: usize) {
        let k = self.weight.k;
        let chunk = 8 * S::LANES;
        let length = k.next_multiple_of(chunk);
        let mut sums = [[simd.splat(0.0); M]; ROWS];
        let mut at = 0;
        while at < k {
            let left = (k - at) / 8;
            let mut scales = [simd.splat(0.0); ROWS];
            let mut words = [simd.zero_words(); ROWS];
            for (r, (words, scales)) in words.iter_mut().zip(&mut scales).enumerate() {
                let element = (row + r) * k + at;
                // SAFETY: the chunk, or its first `left` words, lies in row `row + r` of the weight.
                unsafe {
                    if left >= S::LANES {
                        *words = simd.load_words(self.weight.packed.as_ptr().add(element / 2));
                        *scales = blocks.scales(simd, self.weight, element);
                    } else {
                        *words = some_words(simd, self.weight, element, left);
                        *scales = some_scales(simd, self.weight, element, left);
                    }
                }
            }
            let mut products = [[simd.splat(0.0); M]; ROWS];
            for nibble in 0..8 {
                let mut x = [simd.splat(0.0); M];
                for (m, x) in x.iter_mut().enumerate() {
                    // SAFETY: `x` holds M rows of whole chunks.
                    *x = unsafe { simd.load(self.x.as_ptr().add(m * length + at + nibble * S::LANES)) };
                }
                for (words, products) in words.iter().zip(&mut products) {
                    let values = simd.lookup(simd.shift(*words, 4 * nibble as u32));
                    for (x, product) in x.iter().zip(products) {
                        *product = simd.fma(values, *x, *product);
                    }
                }
            }
            for ((sums, products), scale) in sums.iter_mut().zip(products).zip(scales) {
                for (sum, product) in sums.iter_mut().zip(products) {
                    *sum = simd.fma(product, scale, *sum);
                }
            }
            at += chunk;
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (m, sum) in sums.into_iter().enumerate() {
                // SAFETY: column `row + r` of row m, which the caller of `new` owns.
                unsafe { *self.out.add(m * self.weight.n + row + r) = simd.sum(sum) };
            }
        }
    }
}

impl Kernel for ByRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let Weight { n, k, .. } = *self.weight;
        let blocks = Blocks::of::<S>(self.weight);
        while self.m > 0 {
            match self.m {
                1 => self.rows::<S, 1, 4>(simd, blocks),
                2 => self.rows::<S, 2, 4>(simd, blocks),
                3 => self.rows::<S, 3, 2>(simd, blocks),
                _ => self.rows::<S, GROUP, 2>(simd, blocks),
            }
            let done = self.m.min(GROUP);
            self.m -= done;
            self.x = &self.x[done * k.next_multiple_of(8 * S::LANES)..];
            self.out = self.out.wrapping_add(done * n);
        }
    }
}

/// `y = x W` for some columns of the weight.
pub(super) struct ByColumns<'a> {
    x: &'a [f32],
    m: usize,
    weight: &'a Weight<'a>,
    first: usize,
    last: usize,
    out: *mut f32,
}

impl<'a> ByColumns<'a> {
    /// # Safety
    /// Rows of the weight are whole words, its lengths and that of `x: f32[m, n]` were checked, `first` is a multiple of
    /// 128, and columns `first..last`, at most 1024, of `out: f32[m, k]` belong to the caller alone.
    pub(super) unsafe fn new(
        x: &'a [f32],
        m: usize,
        weight: &'a Weight<'a>,
        first: usize,
        last: usize,
        out: *mut f32,
    ) -> Self {
        Self { x, m, weight, first, last, out }
    }

    /// Adds rows `rows` of the weight to the sums of `NIBBLES` places of the chunk at `column`.
    ///
    /// # Safety
    /// The rows and the chunk's `words` words lie in the weight; `sums` points to `M` vectors of each place,
    /// [`MAX_COLUMNS`] floats apart.
    #[inline(always)]
    unsafe fn add_rows<S: Simd, const M: usize, const NIBBLES: usize>(
        &self,
        simd: S,
        blocks: Blocks,
        rows: std::ops::Range<usize>,
        column: usize,
        place: usize,
        sums: *mut f32,
    ) {
        let Weight { n, k, packed, .. } = *self.weight;
        let words = ((k - column) / 8).min(S::LANES);
        let at = |m: usize, i: usize| sums.wrapping_add(m * MAX_COLUMNS + i * S::LANES);
        let mut totals = [[simd.splat(0.0); NIBBLES]; M];
        for (m, totals) in totals.iter_mut().enumerate() {
            for (i, total) in totals.iter_mut().enumerate() {
                // SAFETY: the caller's promise about `sums`.
                *total = unsafe { simd.load(at(m, i)) };
            }
        }
        for row in rows {
            let element = row * k + column;
            // SAFETY: the chunk's words lie in this row of the weight.
            let (codes, scale) = unsafe {
                if words == S::LANES {
                    (simd.load_words(packed.as_ptr().add(element / 2)), blocks.scales(simd, self.weight, element))
                } else {
                    (some_words(simd, self.weight, element, words), some_scales(simd, self.weight, element, words))
                }
            };
            let mut factors = [scale; M];
            for (m, factor) in factors.iter_mut().enumerate() {
                // SAFETY: x has m rows of n floats.
                *factor = simd.mul(scale, simd.splat(unsafe { *self.x.get_unchecked(m * n + row) }));
            }
            for i in 0..NIBBLES {
                let values = simd.lookup(simd.shift(codes, 4 * (place + i) as u32));
                for (total, factor) in totals.iter_mut().zip(factors) {
                    total[i] = simd.fma(values, factor, total[i]);
                }
            }
        }
        for (m, totals) in totals.into_iter().enumerate() {
            for (i, total) in totals.into_iter().enumerate() {
                // SAFETY: the caller's promise about `sums`.
                unsafe { simd.store(at(m, i), total) };
            }
        }
    }

    #[inline(always)]
    fn columns<S: Simd, const M: usize, const NIBBLES: usize>(&self, simd: S) {
        #[repr(align(64))]
        struct Sums([f32; GROUP * MAX_COLUMNS]);

        let Weight { n, k, .. } = *self.weight;
        let chunk = 8 * S::LANES;
        let blocks = Blocks::of::<S>(self.weight);
        let mut sums = Sums([0.0; GROUP * MAX_COLUMNS]);
        for start in (0..n).step_by(ROW_GROUP) {
            let rows = start..n.min(start + ROW_GROUP);
            for column in (self.first..self.last).step_by(chunk) {
                for place in (0..8).step_by(NIBBLES) {
                    let from = &mut sums.0[column - self.first + place * S::LANES..];
                    // SAFETY: the chunk starts in first..last, so `sums` has its eight places for each row of x.
                    unsafe {
                        self.add_rows::<S, M, NIBBLES>(simd, blocks, rows.clone(), column, place, from.as_mut_ptr());
                    }
                }
            }
        }
        for m in 0..M {
            let row = &sums.0[m * MAX_COLUMNS..];
            for column in self.first..self.last {
                let (base, within) = ((column - self.first) / chunk * chunk, column % chunk);
                let place = (within % 8) ^ 1;
                // SAFETY: the column lies in first..last, which the caller of `new` owns.
                unsafe { *self.out.add(m * k + column) = row[base + place * S::LANES + within / 8] };
            }
        }
    }
}

impl Kernel for ByColumns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let Weight { n, k, .. } = *self.weight;
        while self.m > 0 {
            match self.m {
                1 => self.columns::<S, 1, 8>(simd),
                2 => self.columns::<S, 2, 8>(simd),
                3 => self.columns::<S, 3, 4>(simd),
                _ => self.columns::<S, GROUP, 4>(simd),
            }
            let done = self.m.min(GROUP);
            self.m -= done;
            self.x = &self.x[done * n..];
            self.out = self.out.wrapping_add(done * k);
        }
    }
}
