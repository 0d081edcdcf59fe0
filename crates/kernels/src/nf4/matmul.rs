//! Products of dense activations with a packed weight.

use super::{
    gather::Output,
    gemm::Tile,
    gemv::{ByColumns, ByRows, MAX_ROWS, arrange},
    weight::{Weight, check_length, product},
};
use crate::{
    Isa, KernelError,
    simd::{panel_width_of, run},
    threads,
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

/// Output columns of one task; bounds the part of the output that a task goes back to.
const TASK_COLUMNS: usize = 512;

/// Rows of `x` of one task; bounds the copy of `x` that a task makes.
pub(super) const TASK_ROWS: usize = 256;

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
        large(isa, x, m, weight, orientation, out, threads);
    }
    Ok(())
}

fn small(isa: Isa, x: &[f32], m: usize, weight: &Weight, orientation: Orientation, out: Output, threads: usize) {
    match orientation {
        Orientation::Transposed => {
            let x = arrange(isa, x, m, weight.k);
            let each = share(weight.n, threads, 16, TASK_COLUMNS);
            spread(weight.n, each, threads, |first, last| {
                // SAFETY: tasks own disjoint columns of the output, whose length was checked.
                run(isa, unsafe { ByRows::new(&x, m, weight, first, last, out.start()) });
            });
        }
        Orientation::Plain => {
            let each = share(weight.k, threads, 128, 2 * TASK_COLUMNS);
            spread(weight.k, each, threads, |first, last| {
                // SAFETY: as above; `first` is a multiple of 128.
                run(isa, unsafe { ByColumns::new(x, m, weight, first, last, out.start()) });
            });
        }
    }
}

fn large(isa: Isa, x: &[f32], m: usize, weight: &Weight, orientation: Orientation, out: Output, threads: usize) {
    let columns = if orientation == Orientation::Transposed { weight.n } else { weight.k };
    let width = panel_width_of(isa);
    let each = share(columns, threads, width, TASK_COLUMNS);
    let row_tasks = m.div_ceil(TASK_ROWS);
    let column_tasks = columns.div_ceil(each);
    // Narrow outputs are split by rows as well, at the price of decoding the weight once for each part.
    let row_tasks = row_tasks.max((threads / column_tasks).min(m.div_ceil(16)));
    let rows = m.div_ceil(row_tasks);
    let row_tasks = m.div_ceil(rows);
    let task = |i: usize| {
        let (column, row) = (i / row_tasks * each, i % row_tasks * rows);
        let (rows, columns) = (row..m.min(row + rows), column..columns.min(column + each));
        // SAFETY: tasks own disjoint rectangles of the output, whose length was checked.
        run(isa, unsafe { Tile::new(x, rows, columns, weight, orientation, out.start()) });
    };
    let tasks = row_tasks * column_tasks;
    if threads == 1 { (0..tasks).for_each(task) } else { threads::for_each(tasks, task) }
}

/// The columns of one task: four tasks for each thread, in multiples of `step`, at most `most`.
fn share(columns: usize, threads: usize, step: usize, most: usize) -> usize {
    columns.div_ceil(4 * threads).next_multiple_of(step).clamp(step, most)
}

fn spread(columns: usize, each: usize, threads: usize, task: impl Fn(usize, usize) + Sync) {
    let tasks = columns.div_ceil(each);
    let task = |i: usize| task(i * each, columns.min((i + 1) * each));
    if threads == 1 { (0..tasks).for_each(task) } else { threads::for_each(tasks, task) }
}
