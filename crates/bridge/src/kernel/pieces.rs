//! Kernels that compute some of their elements at a time.

use std::ops::Range;

use super::elements::{Input, Output};
use crate::error::BoxError;

/// Computes the elements of a piece, of the parts of the arrays that belong to it, which are flat. An error that names an element
/// counts from the first of all.
pub type EvalPiece = dyn Fn(Range<usize>, &[Input<'_>], &mut [Output<'_>]) -> Result<(), BoxError> + Send + Sync;

/// How a kernel computes its elements a piece at a time, to the bits that it computes at once.
///
/// Elements are counted row-major. A piece begins at a multiple of [`unit`](Self::unit), and ends at one or with the last element. The
/// arrays that fall into pieces have as many bytes for each unit, one after the other; what the last unit has may be less. Where that is
/// not so of the arrays, the kernel computes all at once.
pub struct Pieces {
    /// The elements of all pieces.
    pub elements: usize,
    /// The elements after which a block and a byte end.
    pub unit: usize,
    /// The bytes of a unit in each input; none where every piece takes all of the input.
    pub inputs: Vec<Option<usize>>,
    /// The bytes of a unit in each output.
    pub outputs: Vec<usize>,
    /// What computes a piece.
    pub eval: Box<EvalPiece>,
}

impl Pieces {
    /// The least unit that is whole units of two kinds.
    #[must_use]
    pub const fn common_unit(a: usize, b: usize) -> usize {
        let (mut divisor, mut rest) = (a, b);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        match a.checked_div(divisor) {
            Some(a) => a.saturating_mul(b),
            None => 0,
        }
    }
}
