//! Rows of text in columns.

use std::fmt;

use tacit_core::printable;

/// Rows of as many cells as there are heads.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Whether each column is aligned to the right.
    right: Vec<bool>,
}

impl Table {
    /// An empty table; a head that begins with `>` has its column aligned to the right.
    pub(crate) fn new(heads: &[&str]) -> Self {
        let right = heads.iter().map(|head| head.starts_with('>')).collect();
        let heads = heads.iter().map(|head| head.trim_start_matches('>').to_owned()).collect();
        Self { rows: vec![heads], right }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        // A name with the end of a line in it is in one row all the same.
        self.rows.push(cells.into_iter().map(|cell| printable::name(&cell).into_owned()).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        for (i, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, &width), &right) in row.iter().zip(&widths).zip(&self.right) {
                let cell = if right { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
                line.push_str(&cell);
            }
            let end = if i + 1 < self.rows.len() { "\n" } else { "" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}
