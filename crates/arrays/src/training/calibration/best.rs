//! The best codes that a method has found so far.

use mlx_rs::{Array, ops, transforms};
use tacit_core::Result;

use crate::format::FloatScales;

/// The numbers that are coded, `f32[n, k]`, their scales, `[n, groups]`, and what each part of a row loses by them, `f32[n, parts]`:
/// each group, or the row as a whole.
pub(super) struct Best {
    pub(super) numbers: Array,
    pub(super) scales: FloatScales,
    pub(super) lost: Array,
}

impl Best {
    /// Takes the parts that lose less.
    pub(super) fn keep(&mut self, numbers: &Array, scales: &FloatScales, lost: &Array) -> Result<()> {
        let better = lost.lt(&self.lost)?;
        let parts = |numbers: &Array| numbers.reshape(&[lost.dim(0), lost.dim(1), -1]);
        let selected = ops::select(better.expand_dims(2)?, parts(numbers)?, parts(&self.numbers)?)?;
        self.numbers = selected.reshape(numbers.shape())?;
        self.scales = scales.where_better(&better, &self.scales)?;
        self.lost = ops::minimum(lost, &self.lost)?;
        transforms::eval([&self.numbers, &self.lost, &self.scales.scales].into_iter().chain(&self.scales.biases))?;
        Ok(())
    }
}
