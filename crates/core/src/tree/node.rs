//! One node of a tree: its kind, the labels of its children and its static fields.

use std::any::Any;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// A static field: part of the structure, compared, hashed and printed with it.
///
/// Everything that is `Clone + Debug + Eq + Hash + 'static` is one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the type of a static field",
    label = "not all of `Clone + Debug + Eq + Hash`",
    note = "derive the missing ones of `Clone, Debug, PartialEq, Eq, Hash`",
    note = "keep a float as its bits, and an array as a child, without `#[tree(static)]`"
)]
pub trait StaticField: Any + Debug {
    /// Whether `other` is of the same type and equal.
    fn equals(&self, other: &dyn StaticField) -> bool;

    /// Feeds the value to a hasher.
    fn hash_into(&self, state: &mut dyn Hasher);

    /// A copy for a [`TreeDef`](super::TreeDef).
    fn shared(&self) -> Rc<dyn StaticField>;

    /// The value as `Any`, for downcasts.
    fn as_any(&self) -> &dyn Any;
}

#[diagnostic::do_not_recommend]
impl<T: Clone + Debug + Eq + Hash + 'static> StaticField for T {
    fn equals(&self, other: &dyn StaticField) -> bool {
        other.as_any().downcast_ref::<T>() == Some(self)
    }

    fn hash_into(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }

    fn shared(&self) -> Rc<dyn StaticField> {
        Rc::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What kind of node it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// A tuple.
    Tuple,
    /// A `Vec`.
    List,
    /// An array of a fixed length.
    Array,
    /// A map with string keys.
    Map,
    /// An option that is `None`.
    None,
    /// An option with something in it.
    Some,
    /// A number or a string that is no array.
    Static,
    /// Stands where a leaf, or a whole subtree, has no gradient.
    Nothing,
    /// A type, or a variant of one, by its full path.
    Type(&'static str),
}

impl NodeKind {
    /// The kind's name: a type's full path, or `tuple`, `list`, `map`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tuple => "tuple",
            Self::List => "list",
            Self::Array => "array",
            Self::Map => "map",
            Self::None => "None",
            Self::Some => "Some",
            Self::Static => "static leaf",
            Self::Nothing => "nothing",
            Self::Type(name) => name,
        }
    }

    /// The kind's name without the path before it.
    pub(super) fn short(self) -> &'static str {
        let name = self.name();
        let path = name.split('<').next().unwrap_or(name);
        // An enum's variant keeps the enum's name: both begin with a capital letter.
        let mut parts = path.rsplitn(3, "::");
        let last = parts.next().unwrap_or(path);
        let length = match parts.next() {
            Some(parent) if parent.starts_with(char::is_uppercase) => parent.len() + 2 + last.len(),
            _ => last.len(),
        };
        &name[path.len() - length..]
    }
}

impl From<&'static str> for NodeKind {
    fn from(name: &'static str) -> Self {
        Self::Type(name)
    }
}

/// A node as a tree shows it to a visitor; its children follow.
#[derive(Clone, Copy)]
pub struct Node<'n> {
    /// What kind of node it is.
    pub kind: NodeKind,
    /// The labels of its children.
    pub labels: Labels<'n>,
    /// The static fields by name.
    pub statics: &'n [(&'static str, &'n dyn StaticField)],
    /// Makes what [`Reader`](super::Reader) hands back to a type that cannot be built from its leaves alone; it is no
    /// part of the structure, and must hold none of the tree's arrays.
    pub template: Option<&'n dyn Fn() -> Rc<dyn Any>>,
    /// Whether its static fields say what a call counted, as the tokens that it wrote: a state takes others for its own form.
    pub counts: bool,
    /// Whether its type may refuse an [assignment](super::Tree::assign) of its own form, as a full cache may. A compiled call then
    /// keeps a copy of the state until all of it is assigned.
    pub refuses: bool,
}

impl<'n> Node<'n> {
    /// A node without static fields.
    #[must_use]
    pub fn new(kind: impl Into<NodeKind>, labels: Labels<'n>) -> Self {
        Self { kind: kind.into(), labels, statics: &[], template: None, counts: false, refuses: false }
    }

    /// The same node with static fields.
    #[must_use]
    pub fn with_statics(self, statics: &'n [(&'static str, &'n dyn StaticField)]) -> Self {
        Self { statics, ..self }
    }

    /// The same node with a template.
    #[must_use]
    pub fn with_template(self, template: &'n dyn Fn() -> Rc<dyn Any>) -> Self {
        Self { template: Some(template), ..self }
    }

    /// The same node of a type whose static fields say what a call counted.
    #[must_use]
    pub fn that_counts(self) -> Self {
        Self { counts: true, ..self }
    }

    /// The same node of a type that may refuse what a call made of it.
    #[must_use]
    pub fn that_refuses(self) -> Self {
        Self { refuses: true, ..self }
    }
}

/// What the children of a node are called.
#[derive(Clone, Copy, Debug)]
pub enum Labels<'n> {
    /// So many children, called by their positions.
    Positions(usize),
    /// One child that has no label of its own.
    Inner,
    /// Fields.
    Fields(&'static [&'static str]),
    /// Keys, sorted.
    Keys(&'n [&'n str]),
}

impl Labels<'_> {
    /// The number of children.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Positions(count) => *count,
            Self::Inner => 1,
            Self::Fields(fields) => fields.len(),
            Self::Keys(keys) => keys.len(),
        }
    }

    /// Whether there are no children.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
