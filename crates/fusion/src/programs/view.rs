//! Which elements of an array an op reads, behind reshapes and a broadcast or a slice.

use tacit_kernels::program::{Columns, Map};

/// How an operand is seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum View {
    /// In the same order, whatever the shape.
    Same,
    /// One number for all.
    Scalar,
    /// Broadcast from one shape to another, before reshapes.
    Broadcast { from: Vec<i32>, to: Vec<i32> },
    /// So many columns from the `first` on of rows of `of`.
    Part { first: usize, columns: usize, of: usize },
}

/// What a value has one number of in a domain of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Row,
    Each,
}

/// A domain: the elements, and how many make a row, if that matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Domain {
    pub(super) elements: usize,
    pub(super) columns: Option<usize>,
}

impl Domain {
    pub(super) fn rows(self) -> usize {
        self.columns.map_or(1, |columns| self.elements / columns.max(1))
    }

    /// The domain of both, where they go together.
    pub(super) fn with(self, other: Self) -> Option<Self> {
        let columns = match (self.columns, other.columns) {
            (Some(a), Some(b)) if a != b => return None,
            (a, b) => a.or(b),
        };
        (self.elements == other.elements).then_some(Self { columns, ..self })
    }

    /// What an array of so many elements is here.
    pub(super) fn role(self, size: usize) -> Option<Role> {
        if size == self.elements {
            return Some(Role::Each);
        }
        (self.columns.is_some() && size == self.rows()).then_some(Role::Row)
    }
}

impl View {
    /// The elements of a row that an op on elements must know of.
    pub(super) fn columns(&self) -> Option<usize> {
        match self {
            Self::Broadcast { to, .. } => to.last().map(|&extent| extent as usize),
            Self::Part { columns, .. } => Some(*columns),
            Self::Same | Self::Scalar => None,
        }
    }

    /// The map of an input that is seen so by an op of this role; none where there is no such map.
    pub(super) fn map(&self, role: Role, domain: Domain) -> Option<Map> {
        let rows = domain.rows();
        match (self, role) {
            (Self::Same, Role::Each) => Some(Map { columns: Columns::All, divisor: 1, modulus: rows }),
            (Self::Same, Role::Row) => Some(Map { columns: Columns::One, divisor: 1, modulus: rows }),
            (Self::Scalar, _) => Some(Map { columns: Columns::One, divisor: 1, modulus: 1 }),
            (&Self::Part { first, columns, of }, Role::Each) if domain.columns == Some(columns) => {
                Some(Map { columns: Columns::Part { first, of }, divisor: 1, modulus: rows })
            }
            (Self::Part { .. }, _) => None,
            (Self::Broadcast { from, to }, Role::Row) => {
                let (divisor, modulus) = leading(from, to)?;
                Some(Map { columns: Columns::One, divisor, modulus })
            }
            (Self::Broadcast { from, to }, Role::Each) => {
                let (&last, before) = to.split_last()?;
                if domain.columns != Some(last as usize) {
                    return None;
                }
                let (last_from, from) = from.split_last().map_or((1, &[][..]), |(&last, before)| (last, before));
                let (divisor, modulus) = leading(from, before)?;
                Some(Map { columns: if last_from == last { Columns::All } else { Columns::One }, divisor, modulus })
            }
        }
    }
}

/// The divisor and the modulus that lead from a place in `to` to one in `from`: the axes that are kept lie side by side.
fn leading(from: &[i32], to: &[i32]) -> Option<(usize, usize)> {
    let padding = to.len().checked_sub(from.len())?;
    let (mut divisor, mut modulus) = (1, 1);
    // Behind the kept axes, among them, and before them.
    let mut part = 0;
    for (i, &extent) in to.iter().enumerate().rev().filter(|(_, extent)| **extent != 1) {
        let kept = i >= padding && from[i - padding] == extent;
        part = match (part, kept) {
            (0, false) => {
                divisor *= extent as usize;
                0
            }
            (0 | 1, true) => {
                modulus *= extent as usize;
                1
            }
            (1 | 2, false) => 2,
            _ => return None,
        };
    }
    Some(if part == 0 { (1, 1) } else { (divisor, modulus) })
}
