//! Which numbers of an input a program reads for each of its rows.

use super::Kind;

/// Which numbers of a row of an input belong to a row of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Columns {
    /// The only one.
    One,
    /// All, one for each element.
    All,
    /// Some, one for each element: a slice along the last axis.
    Part {
        /// The first of them.
        first: usize,
        /// The numbers of a row of the input.
        of: usize,
    },
}

/// Which of an input's numbers belong to row `r`: those of its own row `r / divisor % modulus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// Which numbers of that row.
    pub columns: Columns,
    /// Rows of the domain that follow one another and share a row of the input.
    pub divisor: usize,
    /// Rows of the input.
    pub modulus: usize,
}

impl Map {
    /// Whether each of so many rows has one of its own.
    pub(super) fn is_own(self, rows: usize) -> bool {
        self.divisor == 1 && self.modulus == rows
    }

    /// Whether the input has what so many rows have of it, in their order, and nothing else.
    pub(super) fn is_whole(self, rows: usize) -> bool {
        self.is_own(rows) && !self.is_part()
    }

    pub(super) fn is_part(self) -> bool {
        matches!(self.columns, Columns::Part { .. })
    }

    /// Whether the input has a number for each element, and not one for a row.
    #[must_use]
    pub fn is_wide(self) -> bool {
        self.columns != Columns::One
    }

    /// The numbers of a row of the input, where those of the domain have so many columns.
    #[inline(always)]
    pub(super) fn pitch(self, columns: usize) -> usize {
        match self.columns {
            Columns::One => 1,
            Columns::All => columns,
            Columns::Part { of, .. } => of,
        }
    }

    /// The number of the input that those of a row begin with.
    #[inline(always)]
    pub(super) fn begin(self, row: usize, columns: usize) -> usize {
        let first = if let Columns::Part { first, .. } = self.columns { first } else { 0 };
        row / self.divisor % self.modulus * self.pitch(columns) + first
    }
}

/// An input of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Its element type.
    pub kind: Kind,
    /// Which of its numbers go where.
    pub map: Map,
}
