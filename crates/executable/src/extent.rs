//! How many of a batch's rows are computed, and where the rows of an array lie.

use mlx_rs::Array;
use mlx_rs::ops::indexing::{ArrayIndex, ArrayIndexOp, TryIndexOp};
use tacit_core::{Aval, Error, Result};

/// How many of the rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) actual: i32,
    pub(crate) upper: i32,
}

/// Where the rows of an array lie: each takes `inner` successive indices of `axis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) axis: usize,
    pub(crate) inner: i32,
}

impl Extent {
    /// Whether an input of this aval has the rows.
    pub(crate) fn is_of(self, aval: &Aval) -> bool {
        aval.shape.first() == Some(&self.upper)
    }

    /// The aval of an input as it is cut.
    pub(crate) fn cut(self, aval: &Aval) -> Aval {
        let mut cut = aval.clone();
        if self.is_of(aval) {
            cut.shape[0] = self.actual;
        }
        cut
    }

    /// The leading rows of an input.
    pub(crate) fn rows(self, array: &Array) -> Result<Array> {
        leading_part(array, 0, self.actual)
    }

    /// The place of the rows by the shapes of one array, of all rows and of these; none where it has no rows.
    pub(crate) fn place(self, whole: &[i32], cut: &[i32]) -> Result<Option<Place>, Mixed> {
        let differ: Vec<usize> = (0..whole.len().min(cut.len())).filter(|&axis| whole[axis] != cut[axis]).collect();
        match differ[..] {
            _ if whole.len() != cut.len() => Err(Mixed),
            [] => Ok(None),
            [axis] if whole[axis] % self.upper == 0 && whole[axis] / self.upper * self.actual == cut[axis] => {
                Ok(Some(Place { axis, inner: whole[axis] / self.upper }))
            }
            _ => Err(Mixed),
        }
    }

    pub(crate) fn refusal(self, why: &str, help: &str) -> Error {
        Error::invalid(format!("{} of {} rows cannot be computed alone: {why}", self.actual, self.upper), help)
    }
}

/// Rows are not kept apart.
pub(crate) struct Mixed;

/// The first `count` indices along an axis.
pub(crate) fn leading_part(array: &Array, axis: usize, count: i32) -> Result<Array> {
    let mut indices: Vec<ArrayIndexOp<'_>> = (0..axis).map(|_| (..).index_op()).collect();
    indices.push((..count).index_op());
    Ok(array.try_index(indices.as_slice())?)
}
