//! Compares a tree with a definition.

use mlx_rs::Array;

use super::entry::Entry;
use super::{Node, TreeDef, Visitor};
use crate::{ChildName, ChildRef, ImplicitArray, Value};

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

    fn next(&mut self) -> Option<&'m Entry> {
        self.position += 1;
        self.def.entries().get(self.position - 1)
    }

    fn leaf(&mut self, array: Listed<'a>, frozen: bool) {
        let own = self.next();
        self.fits = self.fits && own.is_some_and(|own| *own == Entry::Leaf { frozen });
        self.arrays.push(array);
    }

    /// Enters the node of an implicit array; the names of the children that must follow.
    fn enter(&mut self, array: &dyn ImplicitArray) -> &'m [ChildName] {
        match self.next() {
            Some(Entry::Implicit { skeleton, names }) if skeleton.aux_eq(array) => names,
            _ => {
                self.fits = false;
                &[]
            }
        }
    }

    fn made_value(&mut self, value: Value, frozen: bool) {
        match value {
            Value::Dense(array) => self.leaf(Listed::Made(array), frozen),
            Value::Implicit(array) => {
                let names = self.enter(&*array);
                let children = array.children();
                self.fits = self.fits && names.iter().eq(children.iter().map(|(name, _)| name));
                for (_, child) in children {
                    if self.fits {
                        self.made_value(child, frozen);
                    }
                }
            }
        }
    }
}

impl<'a> Visitor<'a> for Matcher<'a, '_> {
    fn array(&mut self, array: &'a Array) {
        self.leaf(Listed::Held(array), false);
    }

    fn frozen(&mut self, array: &'a Array) {
        self.leaf(Listed::Held(array), true);
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

    fn made(&mut self, value: Value, frozen: bool) {
        self.made_value(value, frozen);
    }

    fn node(&mut self, node: &Node<'_>) {
        let own = self.next();
        self.fits = self.fits && matches!(own, Some(Entry::Node(own)) if own.is(node));
    }
}
