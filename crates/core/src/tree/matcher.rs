//! Compares a tree with a definition.

use mlx_rs::Array;

use super::entry::Entry;
use super::stamp::Part;
use super::{Node, Stamp, TreeDef, Visitor};
use crate::{ChildName, ChildRef, ImplicitArray, Value};

/// Compares a tree with a definition whose implicit arrays are fully opened, and lists its arrays.
///
/// It copies nothing that the tree holds, since a compiled call begins with it.
pub(crate) struct Matcher<'a, 'm> {
    def: &'m TreeDef,
    /// The parts that are not shown where they are what they were.
    known: &'m [Part],
    position: usize,
    fits: bool,
    matched: Matched<'a>,
}

/// The arrays of a tree that was compared with a definition.
#[derive(Default)]
pub(crate) struct Matched<'a> {
    /// The arrays of the tree, without those of known parts.
    pub(crate) arrays: Vec<Listed<'a>>,
    /// The numbers of the known parts that were passed over, in their order.
    pub(crate) passed: Vec<usize>,
    /// The entries that these begin with.
    pub(crate) passed_at: Vec<usize>,
    /// The stamps that were shown and are not known.
    pub(crate) stamps: Vec<Shown<'a>>,
}

/// A stamp that a tree showed.
pub(crate) struct Shown<'a> {
    pub(crate) stamp: &'a Stamp,
    /// The entry that it stands before.
    pub(crate) entry: usize,
    /// The array that it stands before, with those of known parts, and among [`Matched::arrays`].
    pub(crate) array: usize,
    pub(crate) listed: usize,
}

/// An array of a tree, which holds it or made it.
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

    pub(super) fn into_array(self) -> Array {
        match self {
            Self::Held(array) => array.clone(),
            Self::Made(array) => array,
        }
    }
}

impl<'a, 'm> Matcher<'a, 'm> {
    pub(crate) fn new(def: &'m TreeDef, known: &'m [Part]) -> Self {
        let arrays = Vec::with_capacity(if known.is_empty() { def.leaves() } else { 0 });
        Self { def, known, position: 0, fits: true, matched: Matched { arrays, ..Matched::default() } }
    }

    /// The arrays, if the tree is the definition's node for node.
    pub(crate) fn finish(self) -> Option<Matched<'a>> {
        (self.fits && self.position == self.def.len()).then_some(self.matched)
    }

    fn next(&mut self) -> Option<&'m Entry> {
        self.position += 1;
        self.def.entries.get(self.position - 1)
    }

    fn leaf(&mut self, array: Listed<'a>, frozen: bool) {
        let entry = self.next();
        self.fits = self.fits && entry.is_some_and(|entry| *entry == Entry::Leaf { frozen });
        self.matched.arrays.push(array);
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
        let entry = self.next();
        self.fits = self.fits && matches!(entry, Some(Entry::Node(entry)) if entry.is(node));
    }

    fn stamped(&mut self, stamp: &'a Stamp) -> bool {
        let is_next = |part: &Part| part.entries.0 == self.position && part.stamp == stamp.number;
        let Some(part) = self.known.iter().position(is_next) else {
            let listed = self.matched.arrays.len();
            let passed: usize = self.matched.passed.iter().map(|&part| self.known[part].arrays.1).sum();
            self.matched.stamps.push(Shown { stamp, entry: self.position, array: listed + passed, listed });
            return false;
        };
        self.matched.passed_at.push(self.position);
        self.position += self.known[part].entries.1;
        self.matched.passed.push(part);
        true
    }
}
