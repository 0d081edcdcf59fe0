//! Takes a tree apart.

use mlx_rs::Array;

use super::entry::{Entry, OwnNode};
use super::places::Places;
use super::reader::PASSED;
use super::{Arguments, Branch, Labels, Node, Open, Path, Stamp, TreeDef, Visitor};
use crate::{Error, ImplicitArray, Result, Value};

/// Builds the definition of a tree while it is visited, and collects its leaves.
pub(crate) struct Flattened<'f> {
    entries: Vec<Entry>,
    leaves: Vec<Value>,
    open: Open<'f>,
    /// How many more layers are opened.
    layers: usize,
    /// Where the visit is, if a function chooses what is opened.
    places: Places,
    /// How deep the container is that the function did not choose, while the visit is in it.
    stopped: Option<usize>,
    /// The numbers of the stamps whose trees are passed over.
    passed: &'f [u64],
    failure: Option<Error>,
}

impl<'f> Flattened<'f> {
    pub(crate) fn flatten<T: Arguments + ?Sized>(tree: &T, open: Open<'f>) -> Result<(Vec<Value>, TreeDef)> {
        Self::shown(open, |visitor| tree.flatten(visitor))
    }

    /// As [`flatten`](Self::flatten) a tree that `show` shows.
    pub(crate) fn shown<'a>(
        open: Open<'f>,
        show: impl FnOnce(&mut dyn Visitor<'a>) -> Result<()>,
    ) -> Result<(Vec<Value>, TreeDef)> {
        let mut flattened = Self::new(open);
        show(&mut flattened)?;
        flattened.finish()
    }

    /// As [`flatten`](Self::flatten), closed, where a [`Reader`] passes over what has one of these stamps: that is not taken apart.
    ///
    /// [`Reader`]: super::Reader
    pub(crate) fn beside(tree: &impl Arguments, passed: &'f [u64]) -> Result<(Vec<Value>, TreeDef)> {
        let mut flattened = Self { passed, ..Self::new(Open::Closed) };
        tree.flatten(&mut flattened)?;
        flattened.finish()
    }

    fn new(open: Open<'f>) -> Self {
        Self {
            entries: Vec::new(),
            leaves: Vec::new(),
            open,
            layers: open.layers(),
            places: Places::default(),
            stopped: None,
            passed: &[],
            failure: None,
        }
    }

    /// Goes on to the next entry; its path, where a function asks for it.
    fn next(&mut self) -> Option<Path> {
        let Open::Where(_) = self.open else { return None };
        let path = self.places.next(&self.entries);
        self.stopped = self.stopped.filter(|stopped| self.places.depth() > *stopped);
        Some(path)
    }

    /// Whether the visit goes into what is at this path.
    fn chooses(&self, path: Option<&Path>, branch: Branch<'_>) -> bool {
        match (self.open, path) {
            (Open::Where(chooses), Some(path)) => self.stopped.is_none() && chooses(path, &branch),
            _ => true,
        }
    }

    fn push(&mut self, entry: Entry, path: Option<Path>) {
        if let Some(path) = path {
            self.places.enter(self.entries.len(), path);
        }
        self.entries.push(entry);
    }

    fn finish(self) -> Result<(Vec<Value>, TreeDef)> {
        self.failure.map_or(Ok(()), Err)?;
        let def = TreeDef::new(self.entries, self.leaves.len());
        Ok((self.leaves, def))
    }

    fn leaf(&mut self, value: Value, frozen: bool, path: Option<Path>) {
        self.push(Entry::Leaf { frozen }, path);
        self.leaves.push(value);
    }

    fn implicit_array(&mut self, array: &dyn ImplicitArray, frozen: bool) {
        let path = self.next();
        if self.layers == 0 || !self.chooses(path.as_ref(), Branch::Implicit(array)) {
            return self.leaf(dyn_clone::clone_box(array).into(), frozen, path);
        }
        let children = array.children();
        // One element stands for every child: the structure must not keep the data.
        let nothing = Value::from(Array::from_bool(false));
        let skeleton = match array.with_children(vec![nothing; children.len()]) {
            Ok(skeleton) => skeleton,
            Err(error) => {
                self.failure.get_or_insert(error);
                return;
            }
        };
        self.push(Entry::Implicit { skeleton, names: children.iter().map(|(name, _)| *name).collect() }, path);
        self.layers -= 1;
        for (_, child) in children {
            self.value(child, frozen);
        }
        self.layers += 1;
    }

    fn value(&mut self, value: Value, frozen: bool) {
        match value {
            Value::Dense(_) => {
                let path = self.next();
                self.leaf(value, frozen, path);
            }
            Value::Implicit(array) => self.implicit_array(&*array, frozen),
        }
    }
}

impl<'a> Visitor<'a> for Flattened<'_> {
    fn array(&mut self, array: &'a Array) {
        self.value(array.into(), false);
    }

    fn frozen(&mut self, array: &'a Array) {
        self.value(array.into(), true);
    }

    fn implicit(&mut self, array: &'a dyn ImplicitArray) {
        self.implicit_array(array, false);
    }

    fn made(&mut self, value: Value, frozen: bool) {
        self.value(value, frozen);
    }

    fn node(&mut self, node: &Node<'_>) {
        let path = self.next();
        if self.stopped.is_none() && !self.chooses(path.as_ref(), Branch::Node(node)) {
            self.stopped = Some(self.places.depth());
        }
        self.push(Entry::Node(OwnNode::from_node(node)), path);
    }

    fn stamped(&mut self, stamp: &'a Stamp) -> bool {
        let passes = self.passed.contains(&stamp.number);
        if passes {
            self.node(&Node::new(PASSED, Labels::Positions(0)));
        }
        passes
    }
}

impl TreeDef {
    /// The same structure with every implicit array among its leaves fully opened, and the leaves of that.
    pub(crate) fn opened(&self, leaves: Vec<Value>) -> Result<(Vec<Value>, TreeDef)> {
        let mut leaves = leaves.into_iter();
        let mut flattened = Flattened::new(Open::Fully);
        for entry in &*self.entries {
            match entry {
                Entry::Leaf { frozen } => leaves.next().into_iter().for_each(|leaf| flattened.value(leaf, *frozen)),
                node => flattened.entries.push(node.clone()),
            }
        }
        flattened.finish()
    }
}
