//! What looks at a tree: builds its definition, or compares it with one.

use mlx_rs::Array;

use super::Node;
use super::def::TreeDef;
use crate::{ChildName, ChildRef, ImplicitArray, Value};

/// Looks at the nodes and leaves of a tree, each node before its children.
pub trait Visitor<'a> {
    /// A dense leaf.
    fn array(&mut self, array: &'a Array);

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

/// Compares a tree with a definition whose implicit arrays are fully opened, and lists its arrays.
///
/// It copies nothing that the tree holds, since a compiled call begins with it.
pub(crate) struct Matcher<'a, 'm> {
    def: &'m TreeDef,
    position: usize,
    fits: bool,
    arrays: Vec<Listed<'a>>,
}

/// An array of a tree that was compared with a definition.
pub(crate) enum Listed<'a> {
    Held(&'a Array),
    Made(Array),
}

impl Listed<'_> {
    pub(crate) fn array(&self) -> &Array {
        match self {
            Self::Held(array) => array,
            Self::Made(array) => array,
        }
    }
}

impl<'a, 'm> Matcher<'a, 'm> {
    pub(crate) fn new(def: &'m TreeDef) -> Self {
        Self { def, position: 0, fits: true, arrays: Vec::with_capacity(def.leaves()) }
    }

    /// The arrays, if the tree is the definition's node for node.
    pub(crate) fn finish(self) -> Option<Vec<Listed<'a>>> {
        (self.fits && self.position == self.def.len()).then_some(self.arrays)
    }

    fn leaf(&mut self, array: Listed<'a>) {
        self.fits = self.fits && self.def.is_leaf(self.position);
        self.position += 1;
        self.arrays.push(array);
    }

    /// Enters the node of an implicit array; the names of the children that must follow.
    fn enter(&mut self, array: &dyn ImplicitArray) -> &'m [ChildName] {
        let names = self.def.implicit_children(self.position, array);
        self.fits = self.fits && names.is_some();
        self.position += 1;
        names.unwrap_or_default()
    }

    fn made_value(&mut self, value: Value) {
        match value {
            Value::Dense(array) => self.leaf(Listed::Made(array)),
            Value::Implicit(array) => {
                let names = self.enter(&*array);
                let children = array.children();
                self.fits = self.fits && names.iter().eq(children.iter().map(|(name, _)| name));
                for (_, child) in children {
                    if self.fits {
                        self.made_value(child);
                    }
                }
            }
        }
    }
}

impl<'a> Visitor<'a> for Matcher<'a, '_> {
    fn array(&mut self, array: &'a Array) {
        self.leaf(Listed::Held(array));
    }

    fn implicit(&mut self, array: &'a dyn ImplicitArray) {
        let mut names = self.enter(array).iter();
        array.visit_children(&mut |name, child| {
            self.fits = self.fits && names.next() == Some(&name);
            match child {
                _ if !self.fits => {}
                ChildRef::Dense(array) => self.array(array),
                ChildRef::Implicit(array) => self.implicit(array),
            }
        });
        self.fits = self.fits && names.next().is_none();
    }

    fn made(&mut self, value: Value) {
        self.made_value(value);
    }

    fn node(&mut self, node: &Node<'_>) {
        self.fits = self.fits && self.def.is_node(self.position, node);
        self.position += 1;
    }
}
