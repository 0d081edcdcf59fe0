//! Products of dense activations with a stored matrix.

use std::cell::Cell;

use crate::{
    Floats, FloatsMut, Isa, KernelError, Matrix, Orientation, engine,
    machine::threads_for,
    matrix::{check_length, product},
    output::Output,
    stored::StoredProduct,
    threads,
};

/// Multiplies `x` of `m` rows with `matrix` into `out`, never holding more than some tens of kilobytes of it as floats.
///
/// Sums are taken in `f32`, in an order that depends only on the sizes and on the machine, its instruction set and its
/// second-level cache: the result has the same bits whatever the number of threads. Activations of other types are widened
/// some hundred rows at a time, and results rounded once, each when its sum is complete. Scales of other types than `f32` are
/// widened too, all of them where there are many rows of activations.
///
/// On [`Isa::Amx`], floats of large products are sums of three `bf16` numbers, whose products are exact. What is left out
/// of these is at most 2^-26 of a product; besides, a number of `x` or of a column of the matrix counts as fewer digits, or
/// as zero, where it is less than 2^-90 of the largest beside it. A NaN or an infinity in `x` has it, or the rows
/// beside it, multiplied as on [`Isa::Avx512`].
///
/// Codes are multiplied before they are scaled, or after, as is faster: where products of `x` with the largest codes are beyond
/// `f32`, or a scale is infinite, a result may be infinite or NaN for some numbers of rows and not for others.
///
/// # Errors
/// A matrix whose lengths do not match its sizes, or a wrong length of `x` or `out`.
pub fn matmul<'x, 'o>(
    x: impl Into<Floats<'x>>,
    m: usize,
    matrix: &Matrix,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    multiply(x.into(), m, matrix, orientation, out.into())
}

/// [`matmul`], compiled here once and not wherever it is called.
fn multiply(x: Floats, m: usize, matrix: &Matrix, orientation: Orientation, out: FloatsMut) -> Result<(), KernelError> {
    let isa = Isa::detect();
    matrix.check()?;
    let (depth, columns) = orientation.sides(matrix.n, matrix.k);
    check_length("x", x.len(), product(m, depth)?, "`m` rows as long as the side of the matrix that is summed over")?;
    out.check(product(m, columns)?, "`m` rows as long as the side of the matrix that remains")?;
    let mut out = Output::rounded(out, columns);
    if depth == 0 {
        out.for_each(1, 1, columns, &|mut out| out.row(out.rows().start).fill(0.0));
    } else if m > 0 && columns > 0 {
        in_single_precision(x, depth, &mut |x, first| {
            let m = x.len() / depth;
            let mut product = StoredProduct { x, m, matrix, orientation, threads: 1, cut_from: None };
            product.threads = threads_for(engine::cost(isa, &product, columns));
            product.multiply(isa, &mut out.rows_from(first, m));
        });
    }
    Ok(())
}

/// The most rows of halves that are widened at a time: as many as panels of a matrix serve when they are made.
const WIDENED: usize = 512;

/// Numbers that a task widens.
const WIDENED_EACH: usize = 1 << 14;

/// Calls `then` with rows of `x`, in parts of about equal height if they are halves, and the first of the rows.
fn in_single_precision(x: Floats, depth: usize, then: &mut dyn FnMut(&[f32], usize)) {
    thread_local! {
        static WIDE: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    }
    if let Floats::F32(x) = x {
        return then(x, 0);
    }
    let m = x.len() / depth;
    let rows = m.div_ceil(m.div_ceil(WIDENED));
    let mut wide = WIDE.take();
    wide.resize(wide.len().max(rows * depth), 0.0);
    for first in (0..m).step_by(rows) {
        let from = x.part(first * depth..m.min(first + rows) * depth);
        let wide = &mut wide[..from.len()];
        let parts = wide.chunks_mut(WIDENED_EACH).enumerate();
        let threads = threads_for(from.len() as f64 / 4.0);
        threads::for_each_part(threads, parts, &|(i, to)| {
            from.part(i * WIDENED_EACH..i * WIDENED_EACH + to.len()).widen_into(to);
        });
        then(wide, first);
    }
    if wide.len() <= KEPT {
        WIDE.set(wide);
    }
}

/// Numbers that a thread keeps room for until its next product: 16 MiB.
const KEPT: usize = 1 << 22;

impl StoredProduct<'_> {
    /// Computes all of the product, which has rows and columns.
    pub(crate) fn multiply(&self, isa: Isa, out: &mut Output<f32>) {
        let done = engine::run(isa, self, out);
        debug_assert_eq!(done, self.m, "engines of codes compute all rows or none");
    }
}
