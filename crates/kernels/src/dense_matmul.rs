//! `x W^T` of two dense matrices, as a linear layer multiplies.

use crate::{
    Dense, Isa, KernelError, engine,
    machine::{Cycles, FROM_MEMORY, Machine, threads_for},
    matrix::check_length,
    output::Output,
    simd::{Kernel, Simd, panel_width, run},
    tile::{Panels, Product},
};

/// Multiplies `x: [m, k]` with the transpose of `w: [n, k]` into `out: [m, n]`, or adds the product to it.
///
/// What `out` holds is only looked at if the product is added to it, and what lies between its rows stays. Sums are taken as
/// by [`matmul`](crate::matmul) for many rows of activations.
///
/// # Errors
/// Sizes that do not fit each other, or the lengths.
pub fn dense_matmul(
    x: Dense<&[f32]>,
    w: Dense<&[f32]>,
    out: Dense<&mut [f32]>,
    accumulate: bool,
) -> Result<(), KernelError> {
    x.check("x", x.values.len())?;
    w.check("w", w.values.len())?;
    out.check("out", out.values.len())?;
    check_length("w", w.columns, x.columns, "a row is as long as one of `x`")?;
    check_length("out", out.rows, x.rows, "one row for each of `x`")?;
    check_length("out", out.columns, w.rows, "one column for each row of `w`")?;
    let Dense { values, rows, columns, stride } = out;
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    if x.columns == 0 {
        let empty = if accumulate { 0 } else { rows };
        (0..empty).for_each(|row| values[row * stride..][..columns].fill(0.0));
        return Ok(());
    }
    let isa = Isa::detect();
    let mut product = Product { x, panels: &w, accumulate, threads: 1 };
    product.threads = threads_for(engine::cost(isa, &product, columns));
    engine::multiply(&product, isa, &mut Output::strided(values, rows, columns, stride));
    Ok(())
}

impl Panels for Dense<&[f32]> {
    fn cycles(&self, machine: &Machine) -> f64 {
        let Cycles { load, store, .. } = *machine.cycles;
        5.0 * load + store + 4.0 * machine.cycles.lanes / FROM_MEMORY
    }

    unsafe fn fill(&self, isa: Isa, start: usize, depth: usize, first: usize, columns: usize, panel: *mut f32) {
        run(isa, Fill { rows: *self, start, depth, first, columns, panel });
    }
}

/// The arguments of [`Panels::fill`], which are what its caller promises.
struct Fill<'a> {
    rows: Dense<&'a [f32]>,
    start: usize,
    depth: usize,
    first: usize,
    columns: usize,
    panel: *mut f32,
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { rows, start, depth, first, columns, panel } = self;
        let (width, stride) = (panel_width::<S>(), rows.stride);
        let mut words = [0_u32; 256];
        for group in [0, S::LANES] {
            let height = columns.saturating_sub(group).min(S::LANES);
            let from = rows.values.as_ptr().wrapping_add((first + group) * stride + start);
            for d in (0..depth).step_by(S::LANES) {
                let steps = S::LANES.min(depth - d);
                if height == S::LANES && steps == S::LANES {
                    // SAFETY: a square of LANES floats lies in the matrix.
                    unsafe { simd.transpose(from.add(d).cast(), 4 * stride, words.as_mut_ptr()) };
                } else {
                    for row in 0..height {
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
