//! Puts a tree together from its definition and leaves.

use mlx_rs::Array;

#[cfg(doc)]
use super::Node;
use super::entry::{Entry, OwnLabels, OwnNode};
use super::unchanged::Unchanged;
use super::{NodeKind, StaticField, TreeDef};
use crate::{Error, Result, Value};

/// A definition and leaves that a tree is put together from, read from the front.
pub struct Reader<'d> {
    entries: std::slice::Iter<'d, Entry>,
    leaves: Box<dyn Iterator<Item = Item> + 'd>,
    origin: Origin<'d>,
}

#[derive(Clone, Copy)]
enum Origin<'d> {
    Any,
    /// What a compiled function is given where it is traced.
    Traced,
    /// What a state was before a call.
    GivenBack,
    /// What a call made of a state, and what of that is as it was, which is known of replays alone.
    Made(Option<&'d Unchanged>),
}

/// What stands at a leaf.
pub(crate) enum Item {
    Value(Value),
    /// There is no gradient.
    Nothing,
}

impl From<Value> for Item {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

impl From<Array> for Item {
    fn from(array: Array) -> Self {
        Self::Value(array.into())
    }
}

/// Leaves as items. One that is passed over is not made.
struct Items<I>(I);

impl<I: Iterator<Item: Into<Item>>> Iterator for Items<I> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        self.0.next().map(Into::into)
    }

    fn nth(&mut self, n: usize) -> Option<Item> {
        self.0.nth(n).map(Into::into)
    }
}

/// Stands in a definition for a part of the state that a call leaves alone.
pub(super) const PASSED: NodeKind = NodeKind::Type("what stays as it is");

/// A node that a [`Reader`] has entered.
pub struct Entered<'d>(&'d OwnNode);

impl<'d> Reader<'d> {
    /// A reader of these leaves in the structure of `def`; an error if their number does not fit.
    pub(crate) fn new<I>(def: &'d TreeDef, leaves: I) -> Result<Self>
    where
        I: IntoIterator<Item: Into<Item> + 'd>,
        I::IntoIter: ExactSizeIterator + 'd,
    {
        let leaves = leaves.into_iter();
        if leaves.len() != def.leaves() {
            return Err(Error::invalid(
                format!("{} leaves do not fit {def}, which has {}", leaves.len(), def.leaves()),
                "give one leaf for each `*`",
            ));
        }
        Ok(Self { entries: def.entries.iter(), leaves: Box::new(Items(leaves)), origin: Origin::Any })
    }

    /// It is what a compiled function is given where it is traced, as [`is_traced`](Self::is_traced) then says.
    pub(crate) fn traced(self) -> Self {
        Self { origin: Origin::Traced, ..self }
    }

    /// It is what a state was before a call, as [`is_given_back`](Self::is_given_back) then says.
    pub(crate) fn given_back(self) -> Self {
        Self { origin: Origin::GivenBack, ..self }
    }

    /// It is what a call made of a state, as [`is_made`](Self::is_made) then says. Where the call
    /// [replayed](Self::is_replayed) a trace, `unchanged` is what of that is as it was.
    pub(crate) fn made(self, unchanged: Option<&'d Unchanged>) -> Self {
        Self { origin: Origin::Made(unchanged), ..self }
    }

    /// Whether this is what a call made of a state. Otherwise it is the state itself, which is lent to a call, or given back
    /// where one fails.
    ///
    /// A compiled call makes it by the structure of its trace. What a type counts on the host beside its arrays, it counts on
    /// from what it is: a [template](Node::with_template) is that of the trace.
    #[must_use]
    pub fn is_made(&self) -> bool {
        matches!(self.origin, Origin::Made(_))
    }

    /// Whether this is what a compiled function is given in a call that traces it. Later calls replay what becomes of it.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        matches!(self.origin, Origin::Traced)
    }

    /// Whether a state gets back what it was before a call: the call failed, or the function was only recorded.
    ///
    /// What a type has beside its arrays, such as a mode, is then again what its structure says.
    #[must_use]
    pub fn is_given_back(&self) -> bool {
        matches!(self.origin, Origin::GivenBack)
    }

    /// Whether a call made this by the trace of an earlier call, so that each [template](Node::with_template) is of that call.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        matches!(self.origin, Origin::Made(Some(_)))
    }

    /// Skips the next subtree if a call left it as it was, structure and leaves, and returns whether it did.
    ///
    /// A state whose assignment takes time, such as a model, asks first: a step that only reads it then costs no assignment.
    pub fn skip_unchanged(&mut self) -> bool {
        if self.is_at(PASSED) {
            self.entries.next();
            return true;
        }
        let Origin::Made(Some(unchanged)) = self.origin else { return false };
        let rest = self.entries.as_slice();
        let Some((entries, leaves)) = unchanged.subtree(rest.len()) else { return false };
        self.entries = rest[entries..].iter();
        if let Some(last) = leaves.checked_sub(1) {
            drop(self.leaves.nth(last));
        }
        true
    }

    /// The next subtree as a value: a leaf, or an opened implicit array put together again.
    ///
    /// # Errors
    ///
    /// There is a node instead.
    pub fn value(&mut self) -> Result<Value> {
        match self.entries.next() {
            Some(Entry::Leaf { .. }) => match self.next_item() {
                Some(Item::Value(value)) => Ok(value),
                Some(Item::Nothing) => Err(mismatch("an array", "nothing")),
                None => Err(mismatch("a leaf", "nothing more")),
            },
            Some(Entry::Implicit { skeleton, names }) => {
                let children = names.iter().map(|_| self.value()).collect::<Result<_>>()?;
                Ok(skeleton.with_children(children)?.into())
            }
            Some(Entry::Node(node)) => Err(mismatch("a value", node.kind.name())),
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

    pub(super) fn next_entry(&mut self) -> Option<&'d Entry> {
        self.entries.next()
    }

    pub(super) fn next_item(&mut self) -> Option<Item> {
        self.leaves.next()
    }

    /// Whether the next node is of this kind.
    #[must_use]
    pub fn is_at(&self, kind: impl Into<NodeKind>) -> bool {
        let kind = kind.into();
        matches!(self.entries.as_slice().first(), Some(Entry::Node(node)) if node.kind == kind)
    }

    /// Enters the next node, which must be of this kind; its children are read next.
    ///
    /// # Errors
    ///
    /// There is something else.
    pub fn enter(&mut self, kind: impl Into<NodeKind>) -> Result<Entered<'d>> {
        self.enter_any(&[kind.into()]).map(|(_, entered)| entered)
    }

    /// Enters the next node, which must be of one of these kinds, and tells which.
    ///
    /// # Errors
    ///
    /// There is something else.
    pub fn enter_any<K: Into<NodeKind> + Copy>(&mut self, kinds: &[K]) -> Result<(usize, Entered<'d>)> {
        let next = self.entries.next();
        if let Some(Entry::Node(node)) = next
            && let Some(which) = kinds.iter().position(|kind| (*kind).into() == node.kind)
        {
            return Ok((which, Entered(node)));
        }
        let expected: Vec<&str> = kinds.iter().map(|kind| (*kind).into().name()).collect();
        Err(mismatch(&expected.join(" or "), next.map_or("nothing more", Entry::name)))
    }
}

pub(super) fn mismatch(expected: &str, found: &str) -> Error {
    Error::invalid(
        format!("the structure holds {found} where {expected} is expected"),
        "use the definition of a tree of this very type",
    )
}

pub(super) fn wrong_len(kind: NodeKind, expected: usize, found: usize) -> Error {
    let name = kind.name();
    mismatch(&format!("{name} of {expected}"), &format!("{name} of {found}"))
}

impl<'d> Entered<'d> {
    /// The same node, if it has so many children.
    ///
    /// # Errors
    ///
    /// It has more or fewer.
    pub fn of_len(self, count: usize) -> Result<Self> {
        if self.len() == count { Ok(self) } else { Err(wrong_len(self.0.kind, count, self.len())) }
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

    /// What the [template](Node::with_template) of the node made, if that is of this type.
    #[must_use]
    pub fn template<T: 'static>(&self) -> Option<&'d T> {
        self.0.template.as_ref()?.downcast_ref()
    }

    pub(super) fn static_value(&self, name: &str) -> Option<&'d dyn StaticField> {
        self.0.statics.iter().find(|(field, _)| *field == name).map(|(_, value)| &**value)
    }

    /// A static field.
    ///
    /// # Errors
    ///
    /// There is none of this name and type.
    pub fn static_field<T: Clone + 'static>(&self, name: &str) -> Result<T> {
        let found = self.static_value(name).and_then(|value| value.as_any().downcast_ref::<T>());
        found.cloned().ok_or_else(|| {
            Error::invalid(
                format!("{} has no static field {name} of the type {}", self.0.kind.name(), std::any::type_name::<T>()),
                "use the definition of a tree of this very type",
            )
        })
    }
}

impl TreeDef {
    /// The values of an opened structure: its implicit arrays put together again.
    pub(crate) fn closed(&self, arrays: Vec<Array>) -> Result<Vec<Value>> {
        let mut reader = Reader::new(self, arrays)?;
        let mut values = Vec::new();
        while let Some(value) = reader.next_value() {
            values.push(value?);
        }
        Ok(values)
    }
}
