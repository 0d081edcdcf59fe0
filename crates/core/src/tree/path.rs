//! Where a leaf is in its tree.

use std::fmt;
use std::ops::Deref;

/// Where a leaf is in its tree: the labels from the root, joined by dots, as in `0.layers.1.weight`.
///
/// An index stands for a position in a tuple or a list, a name for a field, a key, or a child of an implicit array. The
/// root is the empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    pub(crate) fn join(&self, label: &dyn fmt::Display) -> Self {
        if self.0.is_empty() { Self(label.to_string()) } else { Self(format!("{}.{label}", self.0)) }
    }

    /// The path as messages show it.
    pub(crate) fn shown(&self) -> String {
        if self.0.is_empty() { "the root".to_owned() } else { format!("`{}`", self.0) }
    }
}

impl Deref for Path {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
