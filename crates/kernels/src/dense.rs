//! Dense matrices of floats, with or without a gap between their rows.

use crate::{
    KernelError, Orientation,
    matrix::{check_length, check_size, product},
};

/// A matrix of floats, row by row: `&[f32]` or, where it is written, `&mut [f32]`.
#[derive(Clone, Copy, Debug)]
pub struct Dense<T> {
    /// The floats from the first of the first row to the last of the last, and what lies between the rows.
    pub values: T,
    /// The number of rows.
    pub rows: usize,
    /// The floats of a row.
    pub columns: usize,
    /// Floats from the beginning of a row to that of the next.
    pub stride: usize,
}

impl<T> Dense<T> {
    /// Whether it holds what its sizes say, `held` floats.
    pub(crate) fn check(&self, name: &'static str, held: usize) -> Result<(), KernelError> {
        let &Self { rows, columns, stride, .. } = self;
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        if rows > 1 {
            check_size(
                "stride",
                stride.min(columns),
                columns,
                "rows do not overlap: a stride is at least one of them",
            )?;
        }
        let len = product(rows - 1, stride)?.saturating_add(columns);
        check_length(name, held, len, "from its first element to its last")
    }
}

/// A side of a product: a matrix as it is stored, or its transpose.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a, T = f32> {
    /// As it is stored.
    pub matrix: Dense<&'a [T]>,
    /// Whether it is multiplied as it is stored.
    pub orientation: Orientation,
}

impl<T> Operand<'_, T> {
    /// The rows that it has as it is multiplied.
    #[must_use]
    pub fn rows(&self) -> usize {
        if self.is_plain() { self.matrix.rows } else { self.matrix.columns }
    }

    /// The columns that it has as it is multiplied.
    #[must_use]
    pub fn columns(&self) -> usize {
        if self.is_plain() { self.matrix.columns } else { self.matrix.rows }
    }

    /// The same matrix the other way round.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self { orientation: self.orientation.transposed(), ..self }
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.orientation == Orientation::Plain
    }

    /// Elements from a row to the next, and from a column to the next.
    #[inline(always)]
    pub(crate) fn strides(&self) -> (usize, usize) {
        if self.is_plain() { (self.matrix.stride, 1) } else { (1, self.matrix.stride) }
    }

    /// Where an element is.
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, column: usize) -> *const T {
        let (rows, columns) = self.strides();
        self.matrix.values.as_ptr().wrapping_add(row * rows + column * columns)
    }

    /// What is left of it from row `first` on.
    pub(crate) fn rows_from(self, first: usize) -> Self {
        let (from, _) = self.strides();
        let values = self.matrix.values.get(first * from..).unwrap_or_default();
        let matrix = if self.is_plain() {
            Dense { values, rows: self.matrix.rows - first, ..self.matrix }
        } else {
            Dense { values, columns: self.matrix.columns - first, ..self.matrix }
        };
        Self { matrix, ..self }
    }

    pub(crate) fn check(&self, name: &'static str) -> Result<(), KernelError> {
        self.matrix.check(name, self.matrix.values.len())
    }
}

impl<'a, T> Dense<&'a [T]> {
    /// Row `row`.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [T] {
        &self.values[row * self.stride..][..self.columns]
    }
}
