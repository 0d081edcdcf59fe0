//! What a definition keeps of each leaf and each node.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use super::{Labels, Node, NodeKind, Path, StaticField};
use crate::{ChildName, ImplicitArray};

#[derive(Clone)]
pub(super) enum Entry {
    Leaf {
        /// Whether no gradient is taken of it.
        frozen: bool,
    },
    Implicit {
        /// The array with children that hold nothing.
        skeleton: Box<dyn ImplicitArray>,
        names: Vec<ChildName>,
    },
    Node(OwnNode),
}

#[derive(Clone)]
pub(super) struct OwnNode {
    pub(super) kind: NodeKind,
    pub(super) labels: OwnLabels,
    pub(super) statics: Vec<(&'static str, Rc<dyn StaticField>)>,
    pub(super) template: Option<Rc<dyn Any>>,
    pub(super) counts: bool,
    pub(super) refuses: bool,
}

#[derive(Clone, PartialEq)]
pub(super) enum OwnLabels {
    Positions(usize),
    Inner,
    Fields(&'static [&'static str]),
    Keys(Vec<String>),
}

impl Entry {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Leaf { .. } => 0,
            Self::Implicit { names, .. } => names.len(),
            Self::Node(node) => node.labels.len(),
        }
    }

    /// The entries and the leaves of the subtree that these entries begin with.
    pub(super) fn extent(entries: &[Self]) -> (usize, usize) {
        let (mut open, mut count, mut leaves) = (1, 0, 0);
        for entry in entries {
            if open == 0 {
                break;
            }
            open += entry.len();
            open -= 1;
            count += 1;
            leaves += usize::from(entry.is_leaf());
        }
        (count, leaves)
    }

    pub(super) fn is_leaf(&self) -> bool {
        matches!(self, Self::Leaf { .. })
    }

    /// Whether a state that has the other takes this in its place, whatever either is a leaf of or counts.
    pub(super) fn is_taken_for(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leaf { .. }, Self::Leaf { .. }) => true,
            (Self::Node(own), Self::Node(other)) => {
                let is_alike = own == other || own.counts && own.kind == other.kind && own.labels == other.labels;
                is_alike && !own.refuses
            }
            _ => self == other,
        }
    }

    /// What a child is called; nothing where it is the only one and has no name of its own.
    pub(super) fn label(&self, child: usize) -> Option<String> {
        match self {
            Self::Leaf { .. } => None,
            Self::Implicit { names, .. } => Some(names[child].to_string()),
            Self::Node(node) => match &node.labels {
                OwnLabels::Inner => None,
                OwnLabels::Positions(_) => Some(child.to_string()),
                OwnLabels::Fields(fields) => Some(fields[child].to_owned()),
                OwnLabels::Keys(keys) => Some(keys[child].clone()),
            },
        }
    }

    pub(super) fn child(&self, parent: &Path, child: usize) -> Path {
        self.label(child).map_or_else(|| parent.clone(), |label| parent.join(&label))
    }

    /// What type or container it is.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Leaf { .. } => "an array",
            Self::Implicit { skeleton, .. } => skeleton.typetag_name(),
            Self::Node(node) => node.kind.name(),
        }
    }
}

impl OwnNode {
    pub(super) fn from_node(node: &Node<'_>) -> Self {
        Self {
            kind: node.kind,
            labels: match node.labels {
                Labels::Positions(count) => OwnLabels::Positions(count),
                Labels::Inner => OwnLabels::Inner,
                Labels::Fields(fields) => OwnLabels::Fields(fields),
                Labels::Keys(keys) => OwnLabels::Keys(keys.iter().map(|key| (*key).to_owned()).collect()),
            },
            statics: node.statics.iter().map(|(name, value)| (*name, value.shared())).collect(),
            template: node.template.map(|make| make()),
            counts: node.counts,
            refuses: node.refuses,
        }
    }

    pub(super) fn is(&self, node: &Node<'_>) -> bool {
        self.kind == node.kind
            && self.labels.are(node.labels)
            && self.has_statics(node.statics.iter().map(|(name, value)| (*name, *value)))
    }

    fn has_statics<'a>(&self, others: impl ExactSizeIterator<Item = (&'static str, &'a dyn StaticField)>) -> bool {
        self.statics.len() == others.len()
            && self.statics.iter().zip(others).all(|((a, own), (b, other))| *a == b && own.equals(other))
    }
}

impl OwnLabels {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Positions(count) => *count,
            Self::Inner => 1,
            Self::Fields(fields) => fields.len(),
            Self::Keys(keys) => keys.len(),
        }
    }

    fn are(&self, labels: Labels<'_>) -> bool {
        match (self, labels) {
            (Self::Positions(own), Labels::Positions(other)) => *own == other,
            (Self::Inner, Labels::Inner) => true,
            (Self::Fields(own), Labels::Fields(other)) => *own == other,
            (Self::Keys(own), Labels::Keys(other)) => own.iter().eq(other.iter()),
            _ => false,
        }
    }
}

impl PartialEq for OwnNode {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.labels == other.labels
            && self.has_statics(other.statics.iter().map(|(name, value)| (*name, &**value)))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Leaf { frozen: a }, Self::Leaf { frozen: b }) => a == b,
            (Self::Implicit { skeleton: a, names: x }, Self::Implicit { skeleton: b, names: y }) => {
                a.aux_eq(&**b) && x == y
            }
            (Self::Node(a), Self::Node(b)) => a == b,
            _ => false,
        }
    }
}

impl Hash for Entry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        match self {
            Self::Leaf { frozen } => frozen.hash(state),
            Self::Implicit { skeleton, .. } => skeleton.aux_hash(state),
            Self::Node(node) => {
                node.kind.hash(state);
                node.statics.iter().for_each(|(_, value)| value.hash_into(state));
            }
        }
    }
}
