//! Products of chosen rows with chosen matrices of a stack, each matrix read once for all rows that chose it.

use std::{borrow::Cow, ops::Range};

use crate::{
    Floats, FloatsMut, Isa, KernelError, Matrix, Orientation, Stack,
    engine::{self, FEW},
    machine::threads_for,
    matrix::{check_length, check_size, product},
    output::Output,
    stored::{self, StoredProduct},
    threads,
};

/// The products that are taken: for each `i`, of group `x[i]` of the rows of activations with matrix `stack[i]`.
#[derive(Clone, Copy, Debug)]
pub struct Indices<'a> {
    /// Rows of a group.
    pub rows: usize,
    /// Groups of the activations.
    pub x: &'a [u32],
    /// Matrices of the stack.
    pub stack: &'a [u32],
}

/// Multiplies chosen groups of the rows of `x` with chosen matrices of `stack` into `out`, group after group, from the codes
/// and without a matrix that nobody chose.
///
/// Each product is that of [`matmul`](crate::matmul) with all rows that chose its matrix, in their order: the result has the
/// same bits whatever the number of threads.
///
/// ```
/// use tacit_kernels::{Indices, Codes, Matrix, Orientation, Scales, Stack, gather_matmul};
///
/// // The unit matrix, and twice that.
/// let codes = Codes::Signed { codes: &[1, 0, 0, 1, 2, 0, 0, 2] };
/// let matrix = Matrix { n: 4, k: 2, codes, scales: Scales::F32(&[1.0; 4]), biases: None, block: 2 };
/// let stack = Stack { matrix, count: 2 };
/// let indices = Indices { rows: 1, x: &[0, 1, 0], stack: &[1, 0, 0] };
/// let mut y = [0.0; 6];
/// gather_matmul(&[1.0, 2.0, 3.0, 4.0][..], indices, &stack, Orientation::Transposed, &mut y[..])?;
/// assert_eq!(y, [2.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
/// # Ok::<(), tacit_kernels::KernelError>(())
/// ```
///
/// # Errors
/// A stack whose lengths do not match its sizes, a choice outside of it or of `x`, or a wrong length of `x` or `out`.
pub fn gather_matmul<'x, 'o>(
    x: impl Into<Floats<'x>>,
    indices: Indices,
    stack: &Stack,
    orientation: Orientation,
    out: impl Into<FloatsMut<'o>>,
) -> Result<(), KernelError> {
    multiply(x.into(), indices, stack, orientation, out.into())
}

/// [`gather_matmul`], compiled here once and not wherever it is called.
fn multiply(
    x: Floats,
    indices: Indices,
    stack: &Stack,
    orientation: Orientation,
    mut out: FloatsMut,
) -> Result<(), KernelError> {
    let &Stack { matrix, count } = stack;
    matrix.check()?;
    let (n, k) = (matrix.n.checked_div(count).unwrap_or(0), matrix.k);
    check_size("matrix.n", matrix.n, n * count, "rows of a stack of matrices, all of which have as many")?;
    let (depth, columns) = orientation.sides(n, k);
    check_length("stack", indices.stack.len(), indices.x.len(), "one matrix for each group of rows")?;
    let group = product(indices.rows, depth)?;
    let groups = x.len().checked_div(group);
    check_length("x", x.len(), groups.unwrap_or(0) * group, "whole groups of rows, as long as what is summed over")?;
    groups.map_or(Ok(()), |groups| check_range(indices.x, groups))?;
    check_range(indices.stack, count)?;
    let results = product(product(indices.x.len(), indices.rows)?, columns)?;
    out.check(results, "a row of results for each row of each chosen group")?;
    if results == 0 || depth == 0 {
        out.store(&vec![0.0; results]);
        return Ok(());
    }
    let mut order: Vec<usize> = (0..indices.x.len()).collect();
    order.sort_by_key(|&pair| indices.stack[pair]);
    let (isa, x) = (Isa::detect(), &x.widen());
    let one = &Matrix { n, ..matrix };
    let one = StoredProduct { x, m: indices.rows, matrix: one, orientation, threads: 1, cut_from: None };
    let threads = threads_for(indices.x.len() as f64 * engine::cost(isa, &one, columns));
    Gather { isa, x, indices, matrix: &matrix, n, orientation, depth, columns }.run(&order, threads, &mut out);
    Ok(())
}

/// Whether each of these is one of so many matrices.
pub(crate) fn check_range(indices: &[u32], count: usize) -> Result<(), KernelError> {
    let outside = indices.iter().enumerate().find(|(_, matrix)| **matrix as usize >= count);
    outside.map_or(Ok(()), |(index, &matrix)| Err(KernelError::MatrixRange { index, matrix, count }))
}

/// The rows of these entries, one below the other, of `size` floats each.
pub(crate) fn gathered<'a>(all: &'a [f32], entries: &[usize], size: usize) -> Cow<'a, [f32]> {
    if entries.windows(2).all(|two| two[1] == two[0] + 1) {
        return Cow::Borrowed(&all[entries[0] * size..][..entries.len() * size]);
    }
    Cow::Owned(entries.iter().flat_map(|&entry| &all[entry * size..][..size]).copied().collect())
}

/// Products whose lengths and choices were checked, none of them empty.
struct Gather<'a> {
    isa: Isa,
    x: &'a [f32],
    indices: Indices<'a>,
    /// The whole stack.
    matrix: &'a Matrix<'a>,
    /// Rows of each matrix of it.
    n: usize,
    orientation: Orientation,
    depth: usize,
    columns: usize,
}

/// What one thread computes: some columns of the products of one matrix.
struct Task<'a> {
    /// The pairs that chose the matrix.
    pairs: &'a [usize],
    columns: Range<usize>,
}

impl Gather<'_> {
    /// Computes the products of all pairs, which are sorted by their matrix.
    fn run(&self, order: &[usize], threads: usize, out: &mut FloatsMut) {
        let batches = || order.chunk_by(|&a, &b| self.indices.stack[a] == self.indices.stack[b]);
        let is_small = |pairs: &[usize]| self.rows(pairs) <= FEW;
        let small = batches().filter(|pairs| is_small(pairs)).count();
        // The columns of `x W` are not those of a matrix of its own: a task has all of them.
        let together = threads > 1 && (self.orientation == Orientation::Transposed || small >= threads);
        // Matrices for few rows are read faster than threads wake: all of them in one go.
        let tasks: Vec<Task> = batches()
            .filter(|pairs| together && is_small(pairs))
            .flat_map(|pairs| self.tasks(pairs, (TASKS * threads).div_ceil(small)))
            .collect();
        let size = |task: &Task| self.rows(task.pairs) * task.columns.len();
        let mut values = vec![0.0; tasks.iter().map(size).sum()];
        let mut rest = &mut values[..];
        let parts = tasks.iter().map(|task| {
            let part;
            (part, rest) = std::mem::take(&mut rest).split_at_mut(size(task));
            (task, part)
        });
        threads::for_each_part(threads, parts, &|(task, part)| self.compute(task, 1, part));
        let mut rest = &values[..];
        for task in &tasks {
            let part;
            (part, rest) = rest.split_at(size(task));
            self.store(task, part, out);
        }
        for pairs in batches().filter(|pairs| !(together && is_small(pairs))) {
            let task = Task { pairs, columns: 0..self.columns };
            values.resize(size(&task), 0.0);
            self.compute(&task, threads, &mut values);
            self.store(&task, &values, out);
        }
    }

    fn rows(&self, pairs: &[usize]) -> usize {
        pairs.len() * self.indices.rows
    }

    /// The rows of the stack that are the matrix of these pairs.
    fn matrix_of(&self, pairs: &[usize]) -> Range<usize> {
        let first = self.indices.stack[pairs[0]] as usize * self.n;
        first..first + self.n
    }

    /// The products of a matrix as about so many tasks, if that many are matrices of their own.
    fn tasks<'a>(&self, pairs: &'a [usize], count: usize) -> Vec<Task<'a>> {
        let width = match self.orientation {
            Orientation::Transposed => self.columns.div_ceil(count).next_multiple_of(STEP),
            Orientation::Plain => self.columns,
        };
        let in_parts = |width: usize| {
            let starts = (0..self.columns).step_by(width);
            starts.map(move |start| Task { pairs, columns: start..self.columns.min(start + width) }).collect::<Vec<_>>()
        };
        let tasks = in_parts(width);
        let whole = self.matrix_of(pairs);
        let apart = |task: &Task| {
            let [start, end] = [task.columns.start, task.columns.end].map(|column| whole.start + column);
            self.matrix.rows(start..end).is_some()
        };
        // How a row is multiplied depends on where its matrix begins, and must not on the number of tasks.
        if tasks.len() > 1 && self.matrix.rows(whole.clone()).is_some() && tasks.iter().all(apart) {
            return tasks;
        }
        in_parts(self.columns)
    }

    /// Writes the products of a task, row after row.
    fn compute(&self, task: &Task, threads: usize, out: &mut [f32]) {
        let &Self { isa, orientation, .. } = self;
        let x = &self.gathered(task.pairs);
        let mut rows = self.matrix_of(task.pairs);
        if orientation == Orientation::Transposed {
            rows = rows.start + task.columns.start..rows.start + task.columns.end;
        }
        let first = rows.start * self.matrix.k;
        let out = &mut Output::new(out, task.columns.len());
        let m = out.rows();
        // Whether it is cut or not: that depends on the number of threads.
        let cut_from = (m <= FEW).then_some(self.columns);
        if let Some(matrix) = &self.matrix.rows(rows.clone()) {
            return StoredProduct { x, m, matrix, orientation, threads, cut_from }.multiply(isa, out);
        }
        let matrix = &Matrix { n: rows.len(), ..*self.matrix };
        stored::multiply_from(&StoredProduct { x, m, matrix, orientation, threads, cut_from }, first, isa, out);
    }

    /// The rows of `x` of these pairs, one after the other.
    fn gathered(&self, pairs: &[usize]) -> Cow<'_, [f32]> {
        let groups: Vec<usize> = pairs.iter().map(|&pair| self.indices.x[pair] as usize).collect();
        gathered(self.x, &groups, self.indices.rows * self.depth)
    }

    /// Puts the products of a task where they belong.
    fn store(&self, task: &Task, values: &[f32], out: &mut FloatsMut) {
        let rows =
            task.pairs.iter().flat_map(|pair| (0..self.indices.rows).map(move |row| pair * self.indices.rows + row));
        for (row, values) in rows.zip(values.chunks_exact(task.columns.len())) {
            let start = row * self.columns;
            out.part(start + task.columns.start..start + task.columns.end).store(values);
        }
    }
}

/// Tasks for each thread, where there are few rows: the last of them is waited for.
const TASKS: usize = 8;

/// Rows of a matrix that a task's begin with a multiple of.
const STEP: usize = 16;
