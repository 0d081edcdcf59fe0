//! Products of dense activations with a packed weight.

use super::{
    gather::Output,
    gemv::{ByColumns, ByRows, MAX_ROWS, arrange},
    panel::Decoded,
    weight::{Weight, check_length, product},
};
use crate::{
    Isa, KernelError,
    simd::run,
    threads,
    tile::{Product, TASK_COLUMNS, share},
};

/// Which way round the weight `W: [n, k]` is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orientation {
    /// `y = x W^T`: `x: f32[m, k]`, `y: f32[m, n]`; a linear layer's forward pass.
    Transposed,
    /// `y = x W`: `x: f32[m, n]`, `y: f32[m, k]`; its backward pass.
    Plain,
}

/// Products smaller than this many multiplications do not wake a second thread.
const PARALLEL: usize = 1 << 17;

/// Multiplies `x` of `m` rows with `weight` into `out`, never holding more than some tens of kilobytes of it as floats.
///
/// Sums are taken in `f32`, in an order that depends only on the sizes and the instruction set: the result has the
/// same bits whatever the number of threads.
///
/// # Errors
/// A weight whose lengths do not match its sizes, or a wrong length of `x` or `out`.
pub fn matmul(
    x: &[f32],
    m: usize,
    weight: &Weight,
    orientation: Orientation,
    out: &mut [f32],
) -> Result<(), KernelError> {
    matmul_with(Isa::detect(), x, m, weight, orientation, out)
}

/// [`matmul`] with the instruction set given.
pub fn matmul_with(
    isa: Isa,
    x: &[f32],
    m: usize,
    weight: &Weight,
    orientation: Orientation,
    out: &mut [f32],
) -> Result<(), KernelError> {
    isa.check()?;
    let elements = weight.check()?;
    let (depth, columns) = match orientation {
        Orientation::Transposed => (weight.k, weight.n),
        Orientation::Plain => (weight.n, weight.k),
    };
    check_length("x", x.len(), product(m, depth)?, "`m` rows as long as the side of the weight that is summed over")?;
    check_length("out", out.len(), product(m, columns)?, "`m` rows as long as the side of the weight that remains")?;
    if out.is_empty() {
        return Ok(());
    }
    if depth == 0 {
        out.fill(0.0);
        return Ok(());
    }

    let threads = if m.saturating_mul(elements) < PARALLEL { 1 } else { threads::count() };
    let out = Output::new(out);
    if m <= MAX_ROWS && weight.rows_are_words() {
        small(isa, x, m, weight, orientation, out, threads);
    } else {
        let product = Product {
            x: x.as_ptr(),
            x_stride: depth,
            m,
            depth,
            columns,
            panels: Decoded { weight, orientation },
            out: out.start(),
            out_stride: columns,
            accumulate: false,
        };
        // SAFETY: all lengths were checked, and `out` is borrowed mutably.
        unsafe { product.run(isa, threads) };
    }
    Ok(())
}

fn small(isa: Isa, x: &[f32], m: usize, weight: &Weight, orientation: Orientation, out: Output, threads: usize) {
    match orientation {
        Orientation::Transposed => {
            let x = arrange(isa, x, m, weight.k);
            let each = share(weight.n, threads, 16, TASK_COLUMNS);
            threads::for_each_on(threads, weight.n.div_ceil(each), |i| {
                let (first, last) = (i * each, weight.n.min((i + 1) * each));
                // SAFETY: tasks own disjoint columns of the output, whose length was checked.
                run(isa, unsafe { ByRows::new(&x, m, weight, first, last, out.start()) });
            });
        }
        Orientation::Plain => {
            let each = share(weight.k, threads, 128, 2 * TASK_COLUMNS);
            threads::for_each_on(threads, weight.k.div_ceil(each), |i| {
                let (first, last) = (i * each, weight.k.min((i + 1) * each));
                // SAFETY: as above; `first` is a multiple of 128.
                run(isa, unsafe { ByColumns::new(x, m, weight, first, last, out.start()) });
            });
        }
    }
}
