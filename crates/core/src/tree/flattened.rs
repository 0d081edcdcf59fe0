//! Takes a tree apart.

use mlx_rs::Array;

use super::entry::{Entry, OwnNode};
use super::{Arguments, Node, Open, TreeDef, Visitor};
use crate::{Error, ImplicitArray, Result, Value};

/// Builds the definition of a tree while it is visited, and collects its leaves.
pub(crate) struct Flattened {
    entries: Vec<Entry>,
    leaves: Vec<Value>,
    open: Open,
    /// How many more layers are opened.
    layers: usize,
    failure: Option<Error>,
}

impl Flattened {
    pub(crate) fn of<T: Arguments + ?Sized>(tree: &T, open: Open) -> Result<(Vec<Value>, TreeDef)> {
        Self::shown(open, |visitor| tree.flatten(visitor))
    }

    /// As [`of`](Self::of) a tree that `show` shows.
    pub(crate) fn shown<'a>(
        open: Open,
        show: impl FnOnce(&mut dyn Visitor<'a>) -> Result<()>,
    ) -> Result<(Vec<Value>, TreeDef)> {
        let mut flattened = Self::new(open);
        show(&mut flattened)?;
        flattened.finish()
    }

    fn new(open: Open) -> Self {
        Self { entries: Vec::new(), leaves: Vec::new(), open, layers: open.layers(), failure: None }
    }

    fn finish(self) -> Result<(Vec<Value>, TreeDef)> {
        self.failure.map_or(Ok(()), Err)?;
        let def = TreeDef::new(self.entries, self.leaves.len());
        Ok((self.leaves, def))
    }

    fn leaf(&mut self, value: Value, frozen: bool) {
        self.entries.push(Entry::Leaf { frozen });
        self.leaves.push(value);
    }

    fn implicit_array(&mut self, array: &dyn ImplicitArray, frozen: bool) {
        if self.layers == 0 || !self.open.chooses(array) {
            return self.leaf(dyn_clone::clone_box(array).into(), frozen);
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
        self.entries.push(Entry::Implicit { skeleton, names: children.iter().map(|(name, _)| *name).collect() });
        self.layers -= 1;
        for (_, child) in children {
            self.value(child, frozen);
        }
        self.layers += 1;
    }

    fn value(&mut self, value: Value, frozen: bool) {
        match value {
            Value::Dense(_) => self.leaf(value, frozen),
            Value::Implicit(array) => self.implicit_array(&*array, frozen),
        }
    }
}

impl<'a> Visitor<'a> for Flattened {
    fn array(&mut self, array: &'a Array) {
        self.leaf(array.into(), false);
    }

    fn frozen(&mut self, array: &'a Array) {
        self.leaf(array.into(), true);
    }

    fn implicit(&mut self, array: &'a dyn ImplicitArray) {
        self.implicit_array(array, false);
    }

    fn made(&mut self, value: Value) {
        self.value(value, false);
    }

    fn node(&mut self, node: &Node<'_>) {
        self.entries.push(Entry::Node(OwnNode::of(node)));
    }
}

impl TreeDef {
    /// The same structure with every implicit array among its leaves fully opened, and the leaves of that.
    pub(crate) fn opened(&self, leaves: Vec<Value>) -> Result<(Vec<Value>, TreeDef)> {
        let mut leaves = leaves.into_iter();
        let mut flattened = Flattened::new(Open::Fully);
        for entry in self.entries() {
            match entry {
                Entry::Leaf { frozen } => leaves.next().into_iter().for_each(|leaf| flattened.value(leaf, *frozen)),
                node => flattened.entries.push(node.clone()),
            }
        }
        flattened.finish()
    }
}
