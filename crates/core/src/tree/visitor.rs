//! What looks at a tree, and how far it looks.

use mlx_rs::Array;

use super::Node;
use crate::{ImplicitArray, Value};

/// Looks at the nodes and leaves of a tree, each node before its children.
pub trait Visitor<'a> {
    /// A dense leaf.
    fn array(&mut self, array: &'a Array);

    /// A dense leaf that no gradient is taken of, such as a frozen parameter.
    fn frozen(&mut self, array: &'a Array);

    /// An implicit array.
    fn implicit(&mut self, array: &'a dyn ImplicitArray);

    /// A leaf that the tree has not stored as such, but made for the visit.
    fn made(&mut self, value: Value);

    /// A node; as many children follow as it has labels.
    fn node(&mut self, node: &Node<'_>);
}

/// How far implicit arrays are opened.
#[derive(Clone, Copy, Debug, Default)]
pub enum Open {
    /// Implicit arrays are leaves.
    #[default]
    Closed,
    /// An implicit array is a node whose children are leaves, implicit ones too.
    OneLayer,
    /// Every leaf is dense.
    Fully,
    /// As `Fully`, but an implicit array for which the predicate is false is a leaf.
    Where(fn(&dyn ImplicitArray) -> bool),
}

impl Open {
    /// Whether this array may be opened.
    pub(crate) fn chooses(self, array: &dyn ImplicitArray) -> bool {
        match self {
            Self::Where(predicate) => predicate(array),
            Self::Closed | Self::OneLayer | Self::Fully => true,
        }
    }

    pub(crate) fn layers(self) -> usize {
        match self {
            Self::Closed => 0,
            Self::OneLayer => 1,
            Self::Fully | Self::Where(_) => usize::MAX,
        }
    }
}
