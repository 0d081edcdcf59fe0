//! Activations in the order in which units of stored codes meet them.

use std::{cell::Cell, mem};

use crate::{
    Matrix,
    scales::Spread,
    simd::{Kernel, LINE, LINE_FLOATS, Simd},
    unit::Layout,
};

/// Activations `x: f32[m, k]` in the order in which [`GemvDot`](crate::gemv_dot::GemvDot) reads them, padded by zeros to
/// whole units.
pub(crate) struct Arranged {
    values: Vec<f32>,
    /// Where the first row begins: with a cache line, lest every vector spans two.
    first: usize,
    /// Floats from row to row.
    stride: usize,
    /// The sums that the numbers of a row's biases are multiplied with, padded to whole vectors.
    sums: Vec<f32>,
    sums_stride: usize,
    pub(crate) m: usize,
    pub(crate) spread: Spread,
}

impl Arranged {
    /// A row from a column on that a unit begins with; only what lies in the row may be read.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize, column: usize) -> *const f32 {
        self.values.as_ptr().wrapping_add(self.first + row * self.stride + column)
    }

    /// The sums of a row from one of them on, whole vectors, if the matrix has biases.
    #[inline(always)]
    pub(crate) fn sums(&self, row: usize, from: usize) -> &[f32] {
        &self.sums[row * self.sums_stride + from..]
    }
}

/// Floats that a thread keeps for its next product.
const KEPT: usize = 1 << 20;

thread_local! {
    static VALUES: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// The next product's activations take the memory, which is in the cache.
impl Drop for Arranged {
    fn drop(&mut self) {
        if self.values.len() <= KEPT {
            VALUES.set(mem::take(&mut self.values));
        }
    }
}

/// Makes the activations for [`GemvDot`](crate::gemv_dot::GemvDot).
pub(crate) struct Arrange<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) m: usize,
    pub(crate) matrix: &'a Matrix<'a>,
    pub(crate) layout: &'a Layout,
}

impl Kernel for Arrange<'_> {
    type Output = Option<Arranged>;

    /// `None` where rows or blocks do not fit whole spans.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Option<Arranged> {
        let Self { x, m, matrix, layout } = self;
        let k = matrix.k;
        let spread = Spread::new(matrix, layout.span, S::LANES)?;
        let unit = S::LANES * layout.span;
        // Off a power of two, or the rows would share cache sets.
        let stride = k.next_multiple_of(unit).next_multiple_of(LINE_FLOATS) + LINE_FLOATS;
        let mut values = VALUES.take();
        values.clear();
        values.resize(m * stride + LINE_FLOATS, 0.0);
        let first = values.as_ptr().align_offset(LINE).min(LINE_FLOATS);
        for (x, to) in x.chunks_exact(k).zip(values[first..].chunks_exact_mut(stride)) {
            for (at, to) in (0..k).step_by(unit).zip(to.chunks_exact_mut(unit)) {
                arrange_unit(simd, layout, &x[at..], to);
            }
        }
        let mut sums = Vec::new();
        let mut sums_stride = 0;
        if matrix.biases.is_some() && !layout.decoded {
            let each = spread.elements();
            sums_stride = k.div_ceil(each).next_multiple_of(S::LANES);
            sums = vec![0.0; m * sums_stride];
            for (x, sums) in x.chunks_exact(k).zip(sums.chunks_exact_mut(sums_stride)) {
                for (x, sum) in x.chunks(each).zip(sums) {
                    let (mut total, whole) = (simd.splat(0.0), x.len() / S::LANES * S::LANES);
                    for at in (0..whole).step_by(S::LANES) {
                        // SAFETY: whole vectors lie in the slice.
                        total = simd.add(total, unsafe { simd.load(x.as_ptr().add(at)) });
                    }
                    if whole < x.len() {
                        // SAFETY: so many floats are left.
                        let rest = unsafe { simd.load_some(x.as_ptr().add(whole), x.len() - whole) };
                        total = simd.add(total, rest);
                    }
                    *sum = simd.sum(total);
                }
            }
        }
        Some(Arranged { values, first, stride, sums, sums_stride, m, spread })
    }
}

/// Brings the first unit of `x`, or what there is of it, into the order of its steps.
#[inline(always)]
fn arrange_unit<S: Simd>(simd: S, layout: &Layout, x: &[f32], to: &mut [f32]) {
    let span = layout.span;
    if span == 1 {
        let len = x.len().min(S::LANES);
        to[..len].copy_from_slice(&x[..len]);
        return;
    }
    if span == 2 && x.len() >= 2 * S::LANES {
        let (first, second) = to[..2 * S::LANES].split_at_mut(S::LANES);
        for ((first, second), pair) in first.iter_mut().zip(second).zip(x.as_chunks::<2>().0) {
            [*first, *second] = *pair;
        }
        return;
    }
    let mut columns = [0_u32; 256];
    for first in (0..span).step_by(S::LANES) {
        // The squares that `transpose` reads reach beyond short spans.
        if x.len() >= first + (S::LANES - 1) * span + S::LANES {
            // SAFETY: LANES rows, `span` floats apart, of LANES floats lie in `x`.
            unsafe { simd.transpose(x.as_ptr().add(first).cast(), 4 * span, columns.as_mut_ptr()) };
            for i in 0..S::LANES.min(span - first) {
                let place = layout.steps[first + i] * S::LANES;
                for (to, from) in to[place..place + S::LANES].iter_mut().zip(&columns[i * S::LANES..]) {
                    *to = f32::from_bits(*from);
                }
            }
        } else {
            for (lane, values) in x.chunks(span).enumerate().take(S::LANES) {
                for (i, value) in values.iter().enumerate().skip(first).take(S::LANES) {
                    to[layout.steps[i] * S::LANES + lane] = *value;
                }
            }
        }
    }
}
