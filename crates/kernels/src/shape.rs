//! The sizes of a product, and sums over its groups of rows.

use crate::machine::Machine;

/// The sizes of a product: rows of activations, columns of the output, and terms of each sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) depth: usize,
}

impl Shape {
    /// The vectors of as many floats as the matrix has.
    pub(crate) fn vectors(&self, machine: &Machine) -> f64 {
        self.columns as f64 * self.depth as f64 / machine.cycles.lanes
    }

    /// The sum of what groups of eight rows cost, of which a last one has 1, 2, 4 or 8.
    pub(crate) fn by_eights(&self, cost: impl Fn(f64) -> f64) -> f64 {
        let rest = if self.rows.is_multiple_of(8) { 0.0 } else { cost((self.rows % 8).next_power_of_two() as f64) };
        (self.rows / 8) as f64 * cost(8.0) + rest
    }

    /// The sum of what groups of up to four rows cost, for loops that go through the matrix once for each.
    pub(crate) fn by_fours(&self, cost: impl Fn(f64) -> f64) -> f64 {
        let rest = match self.rows % 4 {
            0 => 0.0,
            3 => cost(2.0) + cost(1.0),
            rest => cost(rest as f64),
        };
        (self.rows / 4) as f64 * cost(4.0) + rest
    }
}
