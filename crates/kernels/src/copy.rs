//! Copies of a block of a dense matrix, as it lies or transposed.

use crate::{
    Isa, Orientation,
    simd::{Kernel, Simd, prefetch, run},
};

/// A block of consecutive rows and columns of a matrix, and where its copy goes.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) from: *const f32,
    /// Floats from row to row.
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) to: *mut f32,
    /// Floats from row to row of the copy.
    pub(crate) to_stride: usize,
    /// Floats from an element to the one that takes its place in the next block, which is asked for.
    pub(crate) next: usize,
}

/// Copies a block as it lies, `to[r][c] = from[r][c]`, or transposed, `to[c][r] = from[r][c]`.
///
/// # Safety
/// The machine has `isa`, the block is readable, and the rows of the copy, each with the rest of its last vector, are writable
/// at `to`; what that rest is afterwards does not count.
pub(crate) unsafe fn copy(isa: Isa, block: Block, way: Orientation) {
    match way {
        Orientation::Plain => run(isa, Copy(block)),
        Orientation::Transposed => run(isa, Transpose(block)),
    }
}

struct Copy(Block);

impl Kernel for Copy {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Block { from, stride, rows, columns, to, to_stride, next } = self.0;
        for row in 0..rows {
            let (from, to) = (from.wrapping_add(row * stride), to.wrapping_add(row * to_stride));
            for at in (0..columns).step_by(S::LANES) {
                if next > 0 {
                    prefetch(from.wrapping_add(at + next).cast());
                }
                let from = from.wrapping_add(at);
                // SAFETY: the block has so many floats at `from`, and the copy a vector.
                unsafe {
                    let values =
                        if columns - at >= S::LANES { simd.load(from) } else { simd.load_some(from, columns - at) };
                    simd.store(to.add(at), values);
                }
            }
        }
    }
}

struct Transpose(Block);

impl Kernel for Transpose {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Block { from, stride, rows, columns, to, to_stride, next } = self.0;
        for first in (0..rows).step_by(S::LANES) {
            let height = S::LANES.min(rows - first);
            for start in (0..columns).step_by(S::LANES) {
                let width = S::LANES.min(columns - start);
                let from = from.wrapping_add(first * stride + start);
                let to = to.wrapping_add(start * to_stride + first);
                if next > 0 {
                    for row in 0..height {
                        prefetch(from.wrapping_add(row * stride + next).cast());
                    }
                }
                if height == S::LANES && width == S::LANES {
                    // SAFETY: the square lies in the block, and the copy has a vector in each of as many rows.
                    unsafe { simd.transpose_to(from.cast(), 4 * stride, to.cast(), to_stride) };
                    continue;
                }
                let (mut square, mut transposed) = ([0.0_f32; 256], [0.0_f32; 256]);
                // SAFETY: so much of the square lies in the block, and of the copy in what is writable; both arrays hold
                // LANES vectors.
                unsafe {
                    for row in 0..height {
                        let values = simd.load_some(from.add(row * stride), width);
                        simd.store(square.as_mut_ptr().add(row * S::LANES), values);
                    }
                    simd.transpose(square.as_ptr().cast(), 4 * S::LANES, transposed.as_mut_ptr().cast());
                    for column in 0..width {
                        simd.store(to.add(column * to_stride), simd.load(transposed.as_ptr().add(column * S::LANES)));
                    }
                }
            }
        }
    }
}
