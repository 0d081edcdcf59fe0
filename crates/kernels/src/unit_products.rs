//! The innermost loops of products with few rows of activations: units of some rows of the matrix, and their scales.
//!
//! They are a kernel of their own, which no caller takes in: in a function with much else, what is summed would not stay in the
//! registers.

use std::ops::Range;

use crate::{
    scales::{Numbers, Reader},
    simd::{Kernel, LINE, SLACK, Simd, prefetch_second},
    unit::{Units, unit, unit_bytes},
};

/// The most bytes at the end of a row that may not be read where they are: a unit that is cut off, and what has no slack
/// behind it.
const TAIL: usize = 2 * 64;

/// Sums of a vector's lanes, of which there are 8 or 16.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Lanes([f32; 16]);

impl Lanes {
    #[inline(always)]
    pub(crate) fn load<S: Simd>(&self, simd: S) -> S::F {
        // SAFETY: there are 16 floats, the most that a vector holds.
        unsafe { simd.load(self.0.as_ptr()) }
    }

    #[inline(always)]
    pub(crate) fn store<S: Simd>(&mut self, simd: S, value: S::F) {
        // SAFETY: as above.
        unsafe { simd.store(self.0.as_mut_ptr(), value) };
    }
}

/// Rows of the matrix that are multiplied side by side, and their sums for `M` rows of activations.
#[derive(Clone, Copy)]
pub(crate) struct RowGroup<const M: usize, const ROWS: usize> {
    pub(crate) rows: [usize; ROWS],
    /// Where the columns that are multiplied next begin in each.
    pub(crate) from: [*const u8; ROWS],
    /// Bytes that may be read from the last of them.
    pub(crate) readable: usize,
    pub(crate) scales: [*const f32; ROWS],
    pub(crate) sums: [[Lanes; M]; ROWS],
}

impl<const M: usize, const ROWS: usize> RowGroup<M, ROWS> {
    pub(crate) const EMPTY: Self = Self {
        rows: [0; ROWS],
        from: [std::ptr::null(); ROWS],
        readable: 0,
        scales: [std::ptr::null(); ROWS],
        sums: [[Lanes([0.0; 16]); M]; ROWS],
    };
}

/// Adds the scaled products of some columns, which start with a unit, to the sums of groups of rows.
///
/// The rows and the activations reach as far as the columns, and the scales of all columns are those of the numbers.
pub(crate) struct Products<'a, U, const M: usize, const ROWS: usize> {
    pub(crate) units: U,
    pub(crate) groups: &'a mut [RowGroup<M, ROWS>],
    pub(crate) numbers: &'a Numbers,
    /// The activations of the first of the columns.
    pub(crate) x: [*const f32; M],
    pub(crate) columns: Range<usize>,
    pub(crate) ahead: Ahead,
}

/// What is asked for while other bytes are read.
#[derive(Clone, Copy)]
pub(crate) enum Ahead {
    /// So many bytes behind what is read of each row, if not 0.
    Rows(usize),
    /// As many bytes, in order, from so many behind the first row on: the rows follow each other without a gap.
    InOrder(usize),
}

impl<U: Units, const M: usize, const ROWS: usize> Kernel for Products<'_, U, M, ROWS> {
    type Output = ();
    /// The portable reference has no stored units.
    const PORTABLE: bool = U::DECODED;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { units, groups, numbers, x, columns, ahead } = self;
        let (ready, reader) = (units.ready(simd), Reader::new(simd, numbers));
        let count = columns.len().div_ceil(unit::<S, U>());
        let shared = if U::DECODED { count } else { numbers.shared() };
        let before = if U::DECODED { 0 } else { columns.start / unit::<S, U>() };
        for group in groups {
            let RowGroup { from, readable, scales, .. } = *group;
            let part = Part { from, readable, x, scales, reader, ahead, len: columns.len(), shared, before };
            // SAFETY: what the pointers lead to reaches as far as the columns.
            unsafe { part.add::<S, U>(simd, ready, group) };
        }
    }
}

/// The columns of one group, as [`RowGroup`] and [`Products`] say where they are.
#[derive(Clone, Copy)]
struct Part<I, const M: usize, const ROWS: usize> {
    from: [*const u8; ROWS],
    readable: usize,
    x: [*const f32; M],
    scales: [*const f32; ROWS],
    reader: Reader<I>,
    ahead: Ahead,
    /// Columns.
    len: usize,
    /// Units that share scales, and units before the first column.
    shared: usize,
    before: usize,
}

impl<I: Copy, const M: usize, const ROWS: usize> Part<I, M, ROWS> {
    /// # Safety
    /// The rows, the activations and the scales reach as far as the columns.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    unsafe fn add<S: Simd<I = I>, U: Units>(self, simd: S, ready: U::Ready<S>, group: &mut RowGroup<M, ROWS>) {
        let (elements, size) = (unit::<S, U>(), unit_bytes::<S, U>());
        let Self { mut from, readable, x, scales, reader, ahead, len, shared, before } = self;
        let units = len.div_ceil(elements);
        let mut products = [[simd.splat(0.0); M]; ROWS];
        let mut copies: [[u8; TAIL + SLACK]; ROWS];
        // Units that may be read where they are: whole ones, with the slack behind them.
        let mut end = (len / elements).min(readable.saturating_sub(SLACK) / size);
        let (mut at, mut segment, mut left) = (0, before / shared, shared - before % shared);
        // More rows of activations leave no registers for two sets of sums.
        if !U::DECODED && M <= 2 && left == shared {
            // SAFETY: the units and their slack are readable, as many activations are, and the scales are theirs.
            at = unsafe { self.scaled::<S, U>(simd, ready, end, &mut group.sums) };
            segment += at / shared;
        }
        loop {
            while at < end {
                // SAFETY: the units and their slack are readable, as many activations are, and the scales are the segment's.
                unsafe {
                    if !U::DECODED {
                        ask(from, at * size, size, ahead);
                    }
                    let (from, x) = (offset(from, at * size), offset(x, at * elements));
                    add_unit::<S, U, M, ROWS>(simd, ready, from, x, &mut products);
                    at += 1;
                    left -= 1;
                    if left > 0 && at < units {
                        continue;
                    }
                    for r in 0..ROWS {
                        let scale = if U::DECODED { simd.splat(1.0) } else { reader.read(simd, scales[r], segment) };
                        for m in 0..M {
                            let (product, sum) = (products[r][m], group.sums[r][m].load(simd));
                            let sum = if U::DECODED { simd.add(product, sum) } else { simd.fma(product, scale, sum) };
                            group.sums[r][m].store(simd, sum);
                            products[r][m] = simd.splat(0.0);
                        }
                    }
                }
                segment += 1;
                left = shared;
            }
            if at == units {
                break;
            }
            let len = (len - at * elements) * U::BITS / 8;
            copies = [[0; TAIL + SLACK]; ROWS];
            for (copy, from) in copies.iter_mut().zip(&mut from) {
                // SAFETY: the spans lie in the row, and are at most [`TAIL`] bytes.
                unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(at * size), copy.as_mut_ptr(), len) };
                *from = copy.as_ptr().wrapping_sub(at * size);
            }
            end = units;
        }
    }

    /// Adds the scaled products of the units before `end`, where as many of them share scales as one of the loops below is
    /// written for. Gives the first unit that is left.
    ///
    /// # Safety
    /// The units and their slack are readable, there are activations and scales for them, and the columns start with the
    /// first unit of those that share scales.
    #[inline(always)]
    unsafe fn scaled<S: Simd<I = I>, U: Units>(
        &self,
        simd: S,
        ready: U::Ready<S>,
        end: usize,
        sums: &mut [[Lanes; M]; ROWS],
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            match self.shared {
                1 if self.reader.is_splat() => self.short::<S, U, 1, 1, true>(simd, ready, end, sums),
                1 => self.short::<S, U, 1, 1, false>(simd, ready, end, sums),
                2 if U::SPAN == 1 => self.short::<S, U, 2, 4, true>(simd, ready, end, sums),
                shared if U::SPAN == 1 && shared.is_multiple_of(4) => self.long::<S, U>(simd, ready, end, sums),
                _ => 0,
            }
        }
    }

    /// Where few units share scales: `STEP` units at a time, of which each `SHARED` do, and `SPLAT` all of their elements.
    ///
    /// # Safety
    /// As for [`scaled`](Self::scaled).
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    unsafe fn short<S: Simd<I = I>, U: Units, const SHARED: usize, const STEP: usize, const SPLAT: bool>(
        &self,
        simd: S,
        ready: U::Ready<S>,
        end: usize,
        sums: &mut [[Lanes; M]; ROWS],
    ) -> usize {
        let (elements, size) = (unit::<S, U>(), unit_bytes::<S, U>());
        let Self { from, x, scales, reader, ahead, before, .. } = *self;
        let segment = before / SHARED;
        let mut totals = load(simd, sums);
        let mut at = 0;
        while at + STEP <= end {
            ask(from, at * size, STEP * size, ahead);
            for part in 0..STEP / SHARED {
                let mut products = [[simd.splat(0.0); M]; ROWS];
                for i in 0..SHARED {
                    let at = at + part * SHARED + i;
                    let (from, x) = (offset(from, at * size), offset(x, at * elements));
                    // SAFETY: the caller's promise.
                    unsafe { add_unit::<S, U, M, ROWS>(simd, ready, from, x, &mut products) };
                }
                for r in 0..ROWS {
                    // SAFETY: as above.
                    let scale = unsafe { reader.read_as::<S, SPLAT>(simd, scales[r], segment + at / SHARED + part) };
                    for m in 0..M {
                        totals[r][m] = simd.fma(products[r][m], scale, totals[r][m]);
                    }
                }
            }
            at += STEP;
        }
        store(simd, totals, sums);
        at
    }

    /// Where many units of one step each share a scale, a multiple of four.
    ///
    /// # Safety
    /// As for [`scaled`](Self::scaled).
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
    unsafe fn long<S: Simd<I = I>, U: Units>(
        &self,
        simd: S,
        ready: U::Ready<S>,
        end: usize,
        sums: &mut [[Lanes; M]; ROWS],
    ) -> usize {
        let (elements, size) = (unit::<S, U>(), unit_bytes::<S, U>());
        let Self { from, x, scales, reader, ahead, shared, before, .. } = *self;
        let mut totals = load(simd, sums);
        let mut at = 0;
        while at + shared <= end {
            let (segment, stop) = ((before + at) / shared, at + shared);
            let mut products = [[simd.splat(0.0); M]; ROWS];
            while at < stop {
                ask(from, at * size, 4 * size, ahead);
                for i in 0..4 {
                    let (from, x) = (offset(from, (at + i) * size), offset(x, (at + i) * elements));
                    // SAFETY: the caller's promise.
                    unsafe { add_unit::<S, U, M, ROWS>(simd, ready, from, x, &mut products) };
                }
                at += 4;
            }
            for r in 0..ROWS {
                // SAFETY: as above.
                let scale = unsafe { reader.read_as::<S, true>(simd, scales[r], segment) };
                for m in 0..M {
                    totals[r][m] = simd.fma(products[r][m], scale, totals[r][m]);
                }
            }
        }
        store(simd, totals, sums);
        at
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
fn load<S: Simd, const M: usize, const ROWS: usize>(simd: S, sums: &[[Lanes; M]; ROWS]) -> [[S::F; M]; ROWS] {
    let mut totals = [[simd.splat(0.0); M]; ROWS];
    for r in 0..ROWS {
        for m in 0..M {
            totals[r][m] = sums[r][m].load(simd);
        }
    }
    totals
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
fn store<S: Simd, const M: usize, const ROWS: usize>(
    simd: S,
    totals: [[S::F; M]; ROWS],
    sums: &mut [[Lanes; M]; ROWS],
) {
    for r in 0..ROWS {
        for m in 0..M {
            sums[r][m].store(simd, totals[r][m]);
        }
    }
}

#[inline(always)]
fn offset<T, const N: usize>(from: [*const T; N], by: usize) -> [*const T; N] {
    std::array::from_fn(|i| from[i].wrapping_add(by))
}

/// Asks for what lies `ahead` of `len` bytes of each row: a row is too short for the hardware to learn its stream.
#[inline(always)]
fn ask<const ROWS: usize>(from: [*const u8; ROWS], at: usize, len: usize, ahead: Ahead) {
    if at % LINE >= len {
        return;
    }
    let lines = len.div_ceil(LINE);
    match ahead {
        Ahead::Rows(ahead) => {
            for from in from {
                for line in 0..lines {
                    prefetch_second(from.wrapping_add(at + ahead + line * LINE));
                }
            }
        }
        Ahead::InOrder(ahead) => {
            for line in 0..ROWS * lines {
                prefetch_second(from[0].wrapping_add(at / LINE * LINE * ROWS + ahead + line * LINE));
            }
        }
    }
}

/// Adds the products of one unit of each row with the activations.
///
/// # Safety
/// A unit and its slack are readable at each `from`, and as many floats at each `x`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "indices of constant length, which unroll")]
unsafe fn add_unit<S: Simd, U: Units, const M: usize, const ROWS: usize>(
    simd: S,
    ready: U::Ready<S>,
    from: [*const u8; ROWS],
    x: [*const f32; M],
    products: &mut [[S::F; M]; ROWS],
) {
    // More rows of activations leave no registers for the values of a unit.
    if U::is_read_whole::<S>() && M <= 4 {
        for r in 0..ROWS {
            // SAFETY: the caller's promise.
            let values = unsafe { U::whole(ready, simd, from[r]) };
            // In the order of those that are read step by step: the bits do not depend on how many rows there are.
            for step in 0..8 {
                for m in 0..M {
                    // SAFETY: as above.
                    let input = unsafe { simd.load(x[m].add(step * S::LANES)) };
                    products[r][m] = simd.fma(values[step], input, products[r][m]);
                }
            }
        }
        return;
    }
    // Written out, lest the compiler keep a loop, whose shifts and places it would not know.
    macro_rules! steps {
        ($first:ident: $($step:literal)*) => {
            $(if $step < U::SPAN {
                // SAFETY: the caller's promise.
                unsafe { add_step::<S, U, M, ROWS>(simd, ready, from, x, products, $first + $step) };
            })*
        };
    }
    for first in (0..U::SPAN).step_by(8) {
        steps!(first: 0 1 2 3 4 5 6 7);
    }
}

/// One step of [`add_unit`].
///
/// # Safety
/// As for [`add_unit`].
#[inline(always)]
unsafe fn add_step<S: Simd, U: Units, const M: usize, const ROWS: usize>(
    simd: S,
    ready: U::Ready<S>,
    from: [*const u8; ROWS],
    x: [*const f32; M],
    products: &mut [[S::F; M]; ROWS],
    step: usize,
) {
    let mut inputs = [simd.splat(0.0); M];
    for m in 0..M {
        // SAFETY: the caller's promise.
        inputs[m] = unsafe { simd.load(x[m].add(step * S::LANES)) };
    }
    for r in 0..ROWS {
        // SAFETY: the caller's promise.
        let values = unsafe { U::values(ready, simd, from[r], step) };
        for m in 0..M {
            products[r][m] = simd.fma(values, inputs[m], products[r][m]);
        }
    }
}
