//! Options that several formats have.

/// Which elements share a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Per {
    /// Those of a row, along the last axis.
    #[default]
    Row,
    /// Those of a column of a matrix.
    Column,
    /// So many, counted row-major.
    Block(usize),
}

impl Per {
    pub(crate) fn options(self) -> String {
        match self {
            Self::Row => String::new(),
            Self::Column => ":columns".to_owned(),
            Self::Block(block) => format!(":{block}"),
        }
    }

    pub(crate) fn read(options: &[&str]) -> Option<Self> {
        match options {
            [] | ["rows"] => Some(Self::Row),
            ["columns"] => Some(Self::Column),
            [block] => Some(Self::Block(block.parse().ok()?)),
            _ => None,
        }
    }

    /// The elements of a block, or 0 where that is not known without a shape.
    pub(crate) fn block(self) -> usize {
        if let Self::Block(block) = self { block } else { 0 }
    }

    /// The block that a row is, if rows or columns are stored in this shape.
    pub(crate) fn on(self, shape: &[i32]) -> Self {
        match self {
            Self::Row | Self::Column => Self::Block(shape.last().map_or(1, |&last| last.max(1) as usize)),
            Self::Block(_) => self,
        }
    }
}

/// `:64`, `:64:double`.
pub(crate) fn blocks(block: usize, double: bool) -> String {
    format!(":{block}{}", if double { ":double" } else { "" })
}

pub(crate) fn read_blocks(options: &[&str]) -> Option<(usize, bool)> {
    match options {
        [] => Some((64, false)),
        [block] => Some((block.parse().ok()?, false)),
        [block, "double"] => Some((block.parse().ok()?, true)),
        _ => None,
    }
}
