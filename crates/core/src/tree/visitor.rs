//! Visitors of trees, and how far a tree is opened for them.

use std::fmt;

use mlx_rs::Array;

use super::{Node, Path, Stamp};
use crate::{ImplicitArray, Value};

/// Looks at the nodes and leaves of a tree, each node before its children.
pub trait Visitor<'a> {
    /// A dense leaf.
    fn array(&mut self, array: &'a Array);

    /// A dense leaf that no gradient is taken of, such as a frozen parameter.
    fn frozen(&mut self, array: &'a Array);

    /// An implicit array.
    fn implicit(&mut self, array: &'a dyn ImplicitArray);

    /// A leaf that the tree has not stored as such, but made for the visit; `frozen` if no gradient is taken of it.
    fn made(&mut self, value: Value, frozen: bool);

    /// A node; as many children follow as it has labels.
    fn node(&mut self, node: &Node<'_>);

    /// The stamp of the tree that comes next; returns whether that tree need not be shown, because it is known already.
    fn stamped(&mut self, stamp: &'a Stamp) -> bool {
        let _ = stamp;
        false
    }
}

/// What a visit may go into.
#[derive(Clone, Copy)]
pub enum Branch<'n> {
    /// A container, a struct or a type of another crate.
    Node(&'n Node<'n>),
    /// An implicit array.
    Implicit(&'n dyn ImplicitArray),
}

/// How far implicit arrays are opened.
#[derive(Clone, Copy, Default)]
pub enum Open<'f> {
    /// Implicit arrays are leaves.
    #[default]
    Closed,
    /// An implicit array is a node whose children are leaves, implicit ones too.
    OneLayer,
    /// Every leaf is dense.
    Fully,
    /// As `Fully`, but the opening stops where the function, asked with the path, is false: an implicit array is a leaf then,
    /// and so is every implicit array below a container. What is below is not asked for.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::Array;
    /// use tacit_core::tree::{self, Branch, Open};
    ///
    /// let layers = vec![Array::from_f32(1.0), Array::from_f32(2.0)];
    /// let all_but_the_first = |path: &tree::Path, branch: &Branch<'_>| match branch {
    ///     Branch::Node(_) => true,
    ///     Branch::Implicit(array) => &**path != "0" && array.nbytes() > 16,
    /// };
    /// assert_eq!(tree::leaves(&layers, Open::Where(&all_but_the_first))?.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    Where(&'f dyn Fn(&Path, &Branch<'_>) -> bool),
}

impl fmt::Debug for Open<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "Closed",
            Self::OneLayer => "OneLayer",
            Self::Fully => "Fully",
            Self::Where(_) => "Where",
        })
    }
}

impl Open<'_> {
    pub(crate) fn layers(self) -> usize {
        match self {
            Self::Closed => 0,
            Self::OneLayer => 1,
            Self::Fully | Self::Where(_) => usize::MAX,
        }
    }
}
