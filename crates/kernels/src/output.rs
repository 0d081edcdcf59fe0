//! The one owner of an output that tasks write side by side, and the one place that cuts it into theirs.

use std::{cell::Cell, marker::PhantomData, ops::Range};

use half::slice::HalfFloatSliceExt;

use crate::{FloatsMut, threads};

/// A matrix that is written by rectangles. What it holds before is never looked at, unless its user says so.
pub(crate) struct Output<'a, T> {
    at: *mut T,
    rows: usize,
    columns: usize,
    /// Elements from row to row.
    stride: usize,
    /// How rectangles are stored that are not written where they belong.
    rounding: Option<Rounding<T>>,
    of: PhantomData<&'a mut [T]>,
}

/// Runs a task on a rectangle of these rows and columns apart from the output, and rounds it into its place.
type Round<T> = fn(&Rounding<T>, Range<usize>, Range<usize>, &(dyn Fn(Rectangle<'_, T>) + Sync));

/// An output of another type.
struct Rounding<T> {
    at: *mut (),
    /// The row of it that is the first here.
    first: usize,
    /// Elements from row to row.
    stride: usize,
    round: Round<T>,
}

// SAFETY: rectangles that are handed out are disjoint, and each element is one that may be sent.
unsafe impl<T: Send> Sync for Output<'_, T> {}

impl<'a, T: Send> Output<'a, T> {
    /// Rows of `columns` elements, one after the other.
    pub(crate) fn new(out: &'a mut [T], columns: usize) -> Self {
        let rows = out.len().checked_div(columns).unwrap_or(0);
        Self::strided(out, rows, columns, columns)
    }

    /// `rows` rows of `columns` elements, `stride` apart.
    pub(crate) fn strided(out: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(rows <= 1 || columns <= stride, "rows that overlap");
        assert!(rows == 0 || out.len() >= (rows - 1) * stride + columns, "an output beyond its memory");
        Self { at: out.as_mut_ptr(), rows, columns, stride, rounding: None, of: PhantomData }
    }

    /// `len` of its rows, from row `first` on.
    pub(crate) fn rows_from(&mut self, first: usize, len: usize) -> Output<'_, T> {
        assert!(first + len <= self.rows, "rows that the output has not");
        let at = self.at.wrapping_add(first * self.stride);
        let rounding = self.rounding.as_ref().map(|rounding| Rounding { first: rounding.first + first, ..*rounding });
        Output { at, rows: len, columns: self.columns, stride: self.stride, rounding, of: PhantomData }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Hands each rectangle of `height` rows and `width` columns, or what there is of it, to one task, on at most
    /// `threads` threads; those of the same columns follow each other.
    pub(crate) fn for_each(
        &mut self,
        threads: usize,
        height: usize,
        width: usize,
        task: &(dyn Fn(Rectangle<'_, T>) + Sync),
    ) {
        if self.rows == 0 || self.columns == 0 {
            return;
        }
        let this = &*self;
        let row_tasks = this.rows.div_ceil(height);
        threads::for_each_on(threads, row_tasks * this.columns.div_ceil(width), &|i| {
            let (column, row) = (i / row_tasks * width, i % row_tasks * height);
            this.give(row..this.rows.min(row + height), column..this.columns.min(column + width), task);
        });
    }

    /// Hands rectangles of all rows, and of runs of the columns that begin with a multiple of `step`, to one task each, on at
    /// most `threads` threads: where columns are far cheaper to compute after those before them.
    pub(crate) fn for_each_run(&mut self, threads: usize, step: usize, task: &(dyn Fn(Rectangle<'_, T>) + Sync)) {
        if self.rows == 0 || self.columns == 0 {
            return;
        }
        let this = &*self;
        threads::for_each_run(threads, this.columns.div_ceil(step), &|run| {
            this.give(0..this.rows, run.start * step..this.columns.min(run.end * step), task);
        });
    }

    /// Hands a rectangle, which is nobody else's, to a task.
    fn give(&self, rows: Range<usize>, columns: Range<usize>, task: &(dyn Fn(Rectangle<'_, T>) + Sync)) {
        match &self.rounding {
            None => task(Rectangle { at: self.at, stride: self.stride, rows, columns, of: PhantomData }),
            Some(rounding) => (rounding.round)(rounding, rows, columns, task),
        }
    }
}

impl<'a> Output<'a, f32> {
    /// Rows of `columns` floats of any type, each rounded once: when the task that has computed it ends.
    pub(crate) fn rounded(out: FloatsMut<'a>, columns: usize) -> Self {
        match out {
            FloatsMut::F32(out) => Self::new(out, columns),
            FloatsMut::F16(out) => Self::half_floats(out, columns),
            FloatsMut::Bf16(out) => Self::half_floats(out, columns),
        }
    }

    fn half_floats<H>(out: &'a mut [H], columns: usize) -> Self
    where
        [H]: HalfFloatSliceExt,
    {
        let rows = out.len().checked_div(columns).unwrap_or(0);
        let rounding = Rounding { at: out.as_mut_ptr().cast(), first: 0, stride: columns, round: round::<H> };
        Self { at: std::ptr::null_mut(), rows, columns, stride: columns, rounding: Some(rounding), of: PhantomData }
    }
}

/// [`Round`] to halves of type `H`, which is what the output has.
fn round<H>(
    output: &Rounding<f32>,
    rows: Range<usize>,
    columns: Range<usize>,
    task: &(dyn Fn(Rectangle<'_, f32>) + Sync),
) where
    [H]: HalfFloatSliceExt,
{
    thread_local! {
        static FLOATS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    }
    let stride = columns.len();
    let mut floats = FLOATS.take();
    floats.resize(floats.len().max(rows.len() * stride), 0.0);
    // Counted from the output's first row and column, as those of every rectangle.
    let at = floats.as_mut_ptr().wrapping_sub(rows.start * stride + columns.start);
    task(Rectangle { at, stride, rows: rows.clone(), columns: columns.clone(), of: PhantomData });
    for (row, floats) in rows.zip(floats.chunks_exact(stride)) {
        let start = (output.first + row) * output.stride + columns.start;
        // SAFETY: the output has elements of this type, of which these are this task's alone.
        unsafe { std::slice::from_raw_parts_mut(output.at.cast::<H>().add(start), stride) }
            .convert_from_f32_slice(floats);
    }
    if floats.len() <= KEPT {
        FLOATS.set(floats);
    }
}

/// Floats that a thread keeps for its next rectangle to be rounded.
const KEPT: usize = 1 << 20;

/// A part of an output that is one task's alone.
pub(crate) struct Rectangle<'a, T> {
    at: *mut T,
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    of: PhantomData<&'a mut [T]>,
}

impl<T> Rectangle<'_, T> {
    /// Which rows of the output they are.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Which columns of the output they are.
    pub(crate) fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// Elements from row to row.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// The rectangle's part of row `row` of the output.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "a row of another task");
        // SAFETY: the row lies in the rectangle, which is this value's alone, as long as it is borrowed.
        unsafe {
            let at = self.at.wrapping_add(row * self.stride + self.columns.start);
            std::slice::from_raw_parts_mut(at, self.columns.len())
        }
    }

    /// These columns of it, counted as those of the output are, as an output of their own.
    pub(crate) fn output(&mut self, columns: Range<usize>) -> Output<'_, T> {
        assert!(columns.start >= self.columns.start && columns.end <= self.columns.end, "columns of another task");
        let at = self.at.wrapping_add(self.rows.start * self.stride + columns.start);
        let (rows, columns) = (self.rows.len(), columns.len());
        Output { at, rows, columns, stride: self.stride, rounding: None, of: PhantomData }
    }

    /// Where the element in this row and column of the output is; the rest of the rectangle may be reached from there.
    pub(crate) fn at(&mut self, row: usize, column: usize) -> *mut T {
        assert!(self.rows.contains(&row) && self.columns.contains(&column), "an element of another task");
        self.at.wrapping_add(row * self.stride + column)
    }
}

/// A pointer that tasks share, of which each writes a part of its own. Only tiles of codes do.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

// SAFETY: tasks write disjoint parts.
#[cfg(target_arch = "x86_64")]
unsafe impl<T> Sync for Shared<T> {}

#[cfg(target_arch = "x86_64")]
impl<T> Shared<T> {
    pub(crate) fn at(self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}
