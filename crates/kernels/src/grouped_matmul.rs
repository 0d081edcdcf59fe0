//! Products with several matrices that are stored as one.

use std::ops::Range;

use crate::{
    Floats, FloatsMut, Isa, KernelError, Matrix, Orientation, engine,
    machine::threads_for,
    matrix::{check_length, product},
    output::Output,
    part::Numbers,
    stored::StoredProduct,
    threads,
};

/// Multiplies each entry of `x`, of `m` rows, with one of the matrices of `rows` rows that `matrix` consists of: entry `e` with
/// matrix `indices[e]`, into `out: [entries, m, ..]`.
///
/// With [`Orientation::Transposed`] an entry of `out` has a column for each of the matrix's rows, and otherwise one for each
/// of its columns. Neighboring entries of one matrix are multiplied as one. Sums and threads are as for
/// [`matmul`](crate::matmul).
///
/// # Errors
/// A matrix whose lengths do not match its sizes, one that is not cut into such matrices or has not the one that an entry asks
/// for, or a wrong length of `x` or `out`.
pub fn grouped_matmul<'x, 'o>(
    x: impl Into<Floats<'x>>,
    m: usize,
    indices: &[usize],
    matrix: &Matrix,
    rows: usize,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    let (x, out, isa) = (x.into(), out.into(), Isa::detect());
    matrix.check()?;
    matrix.check_groups(rows)?;
    check_indices(indices, matrix, rows)?;
    let (depth, columns) = orientation.sides(rows, matrix.k);
    let total = product(indices.len(), m)?;
    check_length("x", x.len(), product(total, depth)?, "`m` rows for each entry, as long as what is summed over")?;
    out.check(product(total, columns)?, "`m` rows for each entry, as long as the side of a matrix that remains")?;
    let x = x.widen();
    out.rounded(|out| {
        if depth == 0 || out.is_empty() {
            return out.fill(0.0);
        }
        let one = &Matrix { n: rows, ..*matrix };
        let one = StoredProduct { x: &x, m, matrix: one, orientation, threads: 1, cut_from: None };
        let threads = threads_for(indices.len() as f64 * engine::cost(isa, &one, columns));
        let runs: Vec<Run> = runs(indices).collect();
        // Where there are fewer runs than threads, each is split.
        let inner = if runs.len() < threads { threads } else { 1 };
        let mut rest = out;
        let parts = runs.into_iter().map(|run| {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(run.entries.len() * m * columns);
            rest = others;
            (run, part)
        });
        threads::for_each_part(if inner == 1 { threads } else { 1 }, parts, &|(run, out)| {
            let mut numbers = Numbers::default();
            let matrix = &matrix.part(isa, run.matrix * rows..(run.matrix + 1) * rows, &mut numbers);
            let x = &x[run.entries.start * m * depth..run.entries.end * m * depth];
            let product =
                StoredProduct { x, m: run.entries.len() * m, matrix, orientation, threads: inner, cut_from: None };
            product.multiply(isa, &mut Output::new(out, columns));
        });
    });
    Ok(())
}

/// Neighboring entries of one matrix.
pub(crate) struct Run {
    pub(crate) matrix: usize,
    pub(crate) entries: Range<usize>,
}

pub(crate) fn runs(indices: &[usize]) -> impl Iterator<Item = Run> {
    let mut start = 0;
    indices.chunk_by(|a, b| a == b).map(move |same| {
        let entries = start..start + same.len();
        start = entries.end;
        Run { matrix: same[0], entries }
    })
}

pub(crate) fn check_indices(indices: &[usize], matrix: &Matrix, rows: usize) -> Result<(), KernelError> {
    let groups = matrix.n.checked_div(rows).unwrap_or(0);
    match indices.iter().enumerate().find(|(_, matrix)| **matrix >= groups) {
        Some((index, &row)) => Err(KernelError::RowRange { index, row: row as u32, rows: groups }),
        None => Ok(()),
    }
}
