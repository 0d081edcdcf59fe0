//! The columns of a matrix rounded one after the other, with the error of each spread over those behind it.
//!
//! Rows do not depend on each other: some of them at a time are rounded to the last column, while they are in the cache.

use std::ops::Range;

use crate::{
    KernelError,
    matrix::{check_length, product},
    threads,
};

/// Rounds elements of a column, those of these rows, in their place.
pub type RoundColumn<'a> = dyn Fn(usize, Range<usize>, &mut [f32]) -> Result<(), KernelError> + Sync + 'a;

/// How columns are rounded, and how much of an error each column gets of those before it.
#[derive(Clone, Copy)]
pub struct RoundColumns<'a> {
    /// How many columns there are.
    pub width: usize,
    /// `[width, width]`, of which the elements from the diagonal on count; none of the diagonal is zero.
    pub triangle: &'a [f32],
    /// How a column is rounded.
    pub round: &'a RoundColumn<'a>,
}

impl RoundColumns<'_> {
    /// Rounds `x: [n, width]` in its place, and writes to `errors: [n, width]` what each element spread over those behind it.
    ///
    /// Column `i` is rounded to `q`, its errors are `e = (x[:, i] - q) / triangle[i, i]`, and each column `j` behind it becomes
    /// `x[:, j] - e triangle[i, j]` before it is rounded in its turn: the loop of GPTQ (Frantar et al., 2022). Each step is
    /// rounded to `f32`, so that the number of threads changes no bit.
    ///
    /// ```
    /// use std::ops::Range;
    ///
    /// use tacit_kernels::RoundColumns;
    ///
    /// let round = |_: usize, _: Range<usize>, x: &mut [f32]| {
    ///     x.iter_mut().for_each(|x| *x = x.round());
    ///     Ok(())
    /// };
    /// let columns = RoundColumns { width: 2, triangle: &[1.0, -0.5, 0.0, 1.0], round: &round };
    /// // The 0.25 that the first column loses turns 2.375 into 2.5.
    /// let (mut x, mut errors) = ([1.25, 2.375], [0.0; 2]);
    /// columns.run(&mut x, &mut errors)?;
    /// assert_eq!((x, errors), ([1.0, 3.0], [0.25, -0.5]));
    /// # Ok::<(), tacit_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// A wrong length, or an error of `round`, in which the index of an element then counts through `x`.
    pub fn run(&self, x: &mut [f32], errors: &mut [f32]) -> Result<(), KernelError> {
        let width = self.width;
        check_length("triangle", self.triangle.len(), product(width, width)?, "one for each two columns")?;
        let rows = x.len().checked_div(width).unwrap_or(0);
        check_length("x", x.len(), rows * width, "whole rows")?;
        check_length("errors", errors.len(), x.len(), "one for each element of `x`")?;
        if x.is_empty() {
            return Ok(());
        }
        let parts = x.chunks_mut(ROWS * width).zip(errors.chunks_mut(ROWS * width)).enumerate();
        threads::try_each_part(parts, &|(part, (x, errors))| {
            self.rows(part * ROWS, x, errors).map_err(|error| (part, error))
        })
    }

    /// Some rows, of which this is the first.
    fn rows(&self, first: usize, x: &mut [f32], errors: &mut [f32]) -> Result<(), KernelError> {
        let &Self { width, triangle, round } = self;
        let n = x.len() / width;
        // A column after the other, so that those behind one are changed in vectors.
        let mut columns = vec![0.0; x.len()];
        for (row, x) in x.chunks(width).enumerate() {
            for (column, x) in x.iter().enumerate() {
                columns[column * n + row] = *x;
            }
        }
        let mut spread = vec![0.0; n];
        for column in 0..width {
            let (done, behind) = columns.split_at_mut((column + 1) * n);
            let current = &mut done[column * n..];
            spread.copy_from_slice(current);
            round(column, first..first + n, current).map_err(|mut error| {
                if let Some(index) = error.element() {
                    *index = (first + *index) * width + column;
                }
                error
            })?;
            let factors = &triangle[column * width..][column..width];
            for (spread, rounded) in spread.iter_mut().zip(&*current) {
                *spread = (*spread - rounded) / factors[0];
            }
            for (behind, factor) in behind.chunks_exact_mut(n).zip(&factors[1..]) {
                for (x, spread) in behind.iter_mut().zip(&spread) {
                    *x -= spread * factor;
                }
            }
            for (errors, spread) in errors.chunks_mut(width).zip(&spread) {
                errors[column] = *spread;
            }
        }
        for (row, x) in x.chunks_mut(width).enumerate() {
            for (column, x) in x.iter_mut().enumerate() {
                *x = columns[column * n + row];
            }
        }
        Ok(())
    }
}

/// Rows that are rounded together: so many of 128 columns stay in the cache of a core.
const ROWS: usize = 64;
