//! The one owner of an output that tasks write side by side, and the one place that cuts it into theirs.

use std::{marker::PhantomData, ops::Range};

use crate::threads;

/// A matrix that is written by rectangles. What it holds before is never looked at, unless its user says so.
pub(crate) struct Output<'a, T> {
    at: *mut T,
    rows: usize,
    columns: usize,
    /// Elements from row to row.
    stride: usize,
    of: PhantomData<&'a mut [T]>,
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
        Self { at: out.as_mut_ptr(), rows, columns, stride, of: PhantomData }
    }

    /// `len` of its rows, from row `first` on.
    pub(crate) fn rows_from(&mut self, first: usize, len: usize) -> Output<'_, T> {
        assert!(first + len <= self.rows, "rows that the output has not");
        let at = self.at.wrapping_add(first * self.stride);
        Output { at, rows: len, columns: self.columns, stride: self.stride, of: PhantomData }
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
            let (rows, columns) = (row..this.rows.min(row + height), column..this.columns.min(column + width));
            task(Rectangle { at: this.at, stride: this.stride, rows, columns, of: PhantomData });
        });
    }
}

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
            let at = self.at.add(row * self.stride + self.columns.start);
            std::slice::from_raw_parts_mut(at, self.columns.len())
        }
    }

    /// Where the element in this row and column of the output is; the rest of the rectangle may be reached from there.
    pub(crate) fn at(&mut self, row: usize, column: usize) -> *mut T {
        assert!(self.rows.contains(&row) && self.columns.contains(&column), "an element of another task");
        self.at.wrapping_add(row * self.stride + column)
    }
}

/// A pointer that tasks share, of which each writes a part of its own.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

// SAFETY: tasks write disjoint parts.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn at(self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}
