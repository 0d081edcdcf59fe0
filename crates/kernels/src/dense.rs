//! Matrices of floats, as they are or with something between their rows.

use crate::{
    KernelError,
    matrix::{check_length, product},
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
            check_length(name, stride.min(columns), columns, "rows do not overlap: a stride is at least one of them")?;
        }
        let len = product(rows - 1, stride)?.saturating_add(columns);
        check_length(name, held, len, "from its first element to its last")
    }
}

impl<'a> Dense<&'a [f32]> {
    /// What is left of it from row `first` on.
    pub(crate) fn rows_from(self, first: usize) -> Self {
        Self { values: self.values.get(first * self.stride..).unwrap_or_default(), rows: self.rows - first, ..self }
    }

    /// Row `row`.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.stride..][..self.columns]
    }
}
