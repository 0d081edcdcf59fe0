//! `A * B^T` in single precision, as a linear layer multiplies, on this crate's own tiles.
//!
//! The `gemm` crate packs a transposed `B` float by float, which costs more than the product itself for small `A`.

use crate::{
    Isa, engine,
    output::Output,
    simd::{Kernel, Simd, panel_width, run},
    threads,
    tile::{Panels, Product},
};

/// `C = A * B^T`, or `C += A * B^T`, all three row-major.
#[derive(Clone, Copy)]
pub(super) struct ByRows {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: *const f32,
    pub(super) lda: usize,
    pub(super) b: *const f32,
    pub(super) ldb: usize,
    pub(super) c: *mut f32,
    pub(super) ldc: usize,
    pub(super) accumulate: bool,
}

impl ByRows {
    /// # Safety
    /// `a: [m, k]`, `b: [n, k]` and `c: [m, n]` are matrices with these leading dimensions, and `c` overlaps neither other.
    pub(super) unsafe fn run(self, parallel: bool) {
        let threads = if parallel { threads::count() } else { 1 };
        let panels = &Rows { data: self.b, stride: self.ldb };
        // SAFETY: the caller's promise.
        let mut product = unsafe { Product::new(self.a, self.lda, self.m, self.k, panels, threads) };
        // SAFETY: as above.
        let mut out = unsafe { Output::at(self.c, self.m, self.n, self.ldc) };
        product.accumulate = self.accumulate;
        engine::multiply(&product, Isa::detect(), &mut out);
    }
}

/// A matrix whose rows, `stride` floats apart, are output columns.
#[derive(Clone, Copy)]
struct Rows {
    data: *const f32,
    stride: usize,
}

// SAFETY: the matrix is only read, while the caller of `ByRows::run`, whose memory it is, waits.
unsafe impl Sync for Rows {}

impl Panels for Rows {
    unsafe fn fill(&self, isa: Isa, start: usize, depth: usize, first: usize, columns: usize, panel: *mut f32) {
        run(isa, Fill { rows: *self, start, depth, first, columns, panel });
    }
}

/// The arguments of [`Panels::fill`], which are what its caller promises.
struct Fill {
    rows: Rows,
    start: usize,
    depth: usize,
    first: usize,
    columns: usize,
    panel: *mut f32,
}

impl Kernel for Fill {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { rows: Rows { data, stride }, start, depth, first, columns, panel } = self;
        let width = panel_width::<S>();
        let mut words = [0_u32; 256];
        for group in [0, S::LANES] {
            let rows = columns.saturating_sub(group).min(S::LANES);
            let from = data.wrapping_add((first + group) * stride + start);
            for d in (0..depth).step_by(S::LANES) {
                let steps = S::LANES.min(depth - d);
                if rows == S::LANES && steps == S::LANES {
                    // SAFETY: a square of LANES floats lies in the matrix.
                    unsafe { simd.transpose(from.add(d).cast(), 4 * stride, words.as_mut_ptr()) };
                } else {
                    for row in 0..rows {
                        for step in 0..steps {
                            // SAFETY: the row and the step lie in the matrix.
                            words[step * S::LANES + row] = unsafe { *from.add(row * stride + d + step) }.to_bits();
                        }
                    }
                }
                for step in 0..steps {
                    // SAFETY: `words` holds LANES vectors, and the panel has a row for each step.
                    unsafe {
                        let values = simd.load(words.as_ptr().add(step * S::LANES).cast());
                        simd.store(panel.add((d + step) * width + group), values);
                    }
                }
            }
        }
    }
}
