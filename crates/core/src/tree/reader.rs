//! Puts a tree together from its definition and leaves.

use mlx_rs::Array;
use tacit_bridge::Aval;

use super::def::{Entry, OwnLabels, OwnNode};
use super::gradient::NOTHING;
use super::{Gradient, TreeDef};
use crate::{Error, Result, Value};

/// A definition and leaves that a tree is put together from, read from the front.
pub struct Reader<'d> {
    entries: std::slice::Iter<'d, Entry>,
    leaves: Box<dyn Iterator<Item = Item> + 'd>,
}

/// What stands at a leaf.
pub(crate) enum Item {
    Value(Value),
    /// Nothing, in place of an array of this aval.
    Nothing(Aval),
}

/// A node that a [`Reader`] has entered.
pub struct Entered<'d>(&'d OwnNode);

impl<'d> Reader<'d> {
    /// A reader of these leaves in the structure of `def`.
    ///
    /// # Errors
    ///
    /// Their number does not fit.
    pub(crate) fn new<I>(def: &'d TreeDef, leaves: I) -> Result<Self>
    where
        I: IntoIterator<Item = Item>,
        I::IntoIter: ExactSizeIterator + 'd,
    {
        let leaves = leaves.into_iter();
        if leaves.len() != def.leaves() {
            return Err(Error::invalid(
                format!("{} leaves do not fit {def}, which has {}", leaves.len(), def.leaves()),
                "give one leaf for each `*`",
            ));
        }
        Ok(Self { entries: def.entries().iter(), leaves: Box::new(leaves) })
    }

    /// The next subtree as a value: a leaf, or an opened implicit array put together again.
    ///
    /// # Errors
    ///
    /// There is a node instead.
    pub fn value(&mut self) -> Result<Value> {
        match self.entries.next() {
            Some(Entry::Leaf) => self.leaf(),
            Some(Entry::Implicit { skeleton, names }) => {
                let children = names.iter().map(|_| self.value()).collect::<Result<_>>()?;
                Ok(skeleton.with_children(children)?.into())
            }
            Some(Entry::Node(node)) => Err(mismatch("a value", node.name)),
            None => Err(mismatch("a value", "nothing more")),
        }
    }

    /// The next value, whatever nodes are before it.
    pub(super) fn next_value(&mut self) -> Option<Result<Value>> {
        while let Some(Entry::Node(_)) = self.entries.as_slice().first() {
            self.entries.next();
        }
        (!self.entries.as_slice().is_empty()).then(|| self.value())
    }

    fn leaf(&mut self) -> Result<Value> {
        match self.leaves.next() {
            Some(Item::Value(value)) => Ok(value),
            Some(Item::Nothing(aval)) => Ok(mlx_rs::ops::zeros_dtype(&aval.shape, aval.dtype)?.into()),
            None => Err(mismatch("a leaf", "nothing more")),
        }
    }

    /// The next leaf as an array.
    ///
    /// # Errors
    ///
    /// There is a node or an implicit array instead.
    pub fn array(&mut self) -> Result<Array> {
        match self.value()? {
            Value::Dense(array) => Ok(array),
            implicit @ Value::Implicit(_) => Err(Error::invalid(
                format!("{implicit} stands where the structure holds a dense array"),
                "make the struct generic over its leaves, as in `struct Params<L> { weight: L }`, or give the field the type `Value`",
            )),
        }
    }

    /// The next subtree as a gradient: of a leaf, or of the float children of an implicit array.
    pub(super) fn gradient(&mut self) -> Result<Gradient> {
        match self.entries.next() {
            Some(Entry::Leaf) => match self.leaves.next() {
                Some(Item::Value(Value::Dense(array))) => Ok(Gradient::Dense(array)),
                _ => Ok(Gradient::Nothing),
            },
            Some(Entry::Implicit { skeleton, names }) => {
                let children =
                    names.iter().map(|name| Ok((name.to_string(), self.gradient()?))).collect::<Result<_>>()?;
                Ok(Gradient::Implicit { name: skeleton.typetag_name(), children })
            }
            // A gradient that is read again.
            Some(Entry::Node(node)) => match &node.labels {
                OwnLabels::Positions(0) if node.name == NOTHING => Ok(Gradient::Nothing),
                OwnLabels::Keys(keys) => {
                    let children =
                        keys.iter().map(|name| Ok((name.clone(), self.gradient()?))).collect::<Result<_>>()?;
                    Ok(Gradient::Implicit { name: node.name, children })
                }
                _ => Err(mismatch("a gradient", node.name)),
            },
            None => Err(mismatch("a gradient", "nothing more")),
        }
    }

    /// Whether the next node is of the kind `name`.
    #[must_use]
    pub fn is_at(&self, name: &str) -> bool {
        matches!(self.entries.as_slice().first(), Some(Entry::Node(node)) if node.name == name)
    }

    /// Enters the next node, which must be of the kind `name`; its children are read next.
    ///
    /// # Errors
    ///
    /// There is something else.
    pub fn enter(&mut self, name: &'static str) -> Result<Entered<'d>> {
        self.enter_any(&[name]).map(|(_, entered)| entered)
    }

    /// Enters the next node, which must be of one of these kinds, and tells which.
    ///
    /// # Errors
    ///
    /// There is something else.
    pub fn enter_any(&mut self, names: &[&'static str]) -> Result<(usize, Entered<'d>)> {
        let expected = || names.join(" or ");
        match self.entries.next() {
            Some(Entry::Node(node)) => match names.iter().position(|name| *name == node.name) {
                Some(which) => Ok((which, Entered(node))),
                None => Err(mismatch(&expected(), node.name)),
            },
            Some(Entry::Leaf) => Err(mismatch(&expected(), "an array")),
            Some(Entry::Implicit { skeleton, .. }) => Err(mismatch(&expected(), skeleton.typetag_name())),
            None => Err(mismatch(&expected(), "nothing more")),
        }
    }
}

fn mismatch(expected: &str, found: &str) -> Error {
    Error::invalid(
        format!("the structure holds {found} where {expected} is expected"),
        "use the definition of a tree of this very type",
    )
}

pub(super) fn wrong_len(name: &str, expected: usize, found: usize) -> Error {
    mismatch(&format!("{name} of {expected}"), &format!("{name} of {found}"))
}

impl<'d> Entered<'d> {
    /// The same node, if it has so many children.
    ///
    /// # Errors
    ///
    /// It has more or fewer.
    pub fn of_len(self, count: usize) -> Result<Self> {
        if self.len() == count { Ok(self) } else { Err(wrong_len(self.0.name, count, self.len())) }
    }

    /// The number of children.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.labels.len()
    }

    /// Whether there are no children.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys of the children; empty where they are not called by keys.
    #[must_use]
    pub fn keys(&self) -> &'d [String] {
        match &self.0.labels {
            OwnLabels::Keys(keys) => keys,
            OwnLabels::Positions(_) | OwnLabels::Inner | OwnLabels::Fields(_) => &[],
        }
    }

    /// What the tree left for those that are made of its definition.
    #[must_use]
    pub fn template<T: 'static>(&self) -> Option<&'d T> {
        self.0.template.as_ref()?.downcast_ref()
    }

    /// A static field.
    ///
    /// # Errors
    ///
    /// There is none of this name and type.
    pub fn static_field<T: Clone + 'static>(&self, name: &str) -> Result<T> {
        let found = self.0.statics.iter().find(|(own, _)| *own == name);
        found.and_then(|(_, value)| value.as_any().downcast_ref::<T>()).cloned().ok_or_else(|| {
            Error::invalid(
                format!("{} has no static field {name} of the type {}", self.0.name, std::any::type_name::<T>()),
                "use the definition of a tree of this very type",
            )
        })
    }
}
