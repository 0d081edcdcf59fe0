//! The gradient of a leaf, or of a tree with fixed leaves.

use std::fmt;

use mlx_rs::Array;

use super::entry::{Entry, OwnLabels, OwnNode};
use super::leaf::sealed::Sealed;
use super::reader::{Item, mismatch};
use super::{Arguments, Labels, Leaf, Node, NodeKind, Reader, Tree, Visitor};
use crate::{Aval, Error, Result, Value};

/// The gradient of one leaf of a tree.
///
/// That of an implicit array has the array's own structure: gradients at its float children, nothing at the others. So
/// has that of a tree whose leaves are arrays and nothing else, such as an mlx-rs module: gradients at the parameters that
/// were differentiated, nothing at those that are frozen.
#[derive(Clone, Debug, Default)]
pub enum Gradient {
    /// There is none: the leaf is not float, frozen, or was not asked for.
    #[default]
    Nothing,
    /// The gradient of a dense leaf, with its shape and dtype.
    Dense(Array),
    /// The gradients of an implicit array or a fixed tree, child by child.
    Node {
        /// The type.
        name: &'static str,
        /// The children's gradients by name, in order.
        children: Vec<(String, Gradient)>,
    },
}

impl Gradient {
    /// The gradient of a dense leaf.
    ///
    /// # Errors
    ///
    /// The leaf was implicit, or has none.
    pub fn array(&self) -> Result<&Array> {
        match self {
            Self::Dense(array) => Ok(array),
            Self::Nothing => Err(Error::invalid(
                "the leaf has no gradient",
                "differentiate with respect to float arrays, and name them if only some are chosen",
            )),
            Self::Node { name, children } => Err(Error::invalid(
                format!("the gradient of {name} is not one array"),
                format!(
                    "take a child's with `child`: {}",
                    children.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
                ),
            )),
        }
    }

    /// The gradient of a child by its name; nothing where there is no such child.
    #[must_use]
    pub fn child(&self, name: &str) -> &Gradient {
        const NOTHING: &Gradient = &Gradient::Nothing;
        match self {
            Self::Node { children, .. } => {
                children.iter().find(|(own, _)| own == name).map_or(NOTHING, |(_, gradient)| gradient)
            }
            Self::Nothing | Self::Dense(_) => NOTHING,
        }
    }

    /// Whether there is no gradient, in no child either.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Dense(_) => false,
            Self::Node { children, .. } => children.iter().all(|(_, child)| child.is_nothing()),
        }
    }
}

impl From<Array> for Gradient {
    fn from(array: Array) -> Self {
        Self::Dense(array)
    }
}

impl fmt::Display for Gradient {
    /// As `f32[4,8]`, `nothing`, or `tacit.Nf4{packed: nothing, absmax: f32[8]}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Dense(array) => Aval::from(array).fmt(f),
            Self::Node { name, children } => {
                write!(f, "{name}{{")?;
                for (i, (name, child)) in children.iter().enumerate() {
                    write!(f, "{}{name}: {child}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

impl Sealed for Gradient {}

impl Leaf for Gradient {
    type Fixed<T: Tree> = Self;
}

/// A function takes the array of a gradient, and there must be one.
impl Arguments for Gradient {
    type Arrays = Array;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        match self {
            Self::Nothing => visitor.node(&Node::new(NodeKind::Nothing, Labels::Positions(0))),
            Self::Dense(array) => visitor.array(array),
            Self::Node { name, children } => {
                let keys: Vec<&str> = children.iter().map(|(name, _)| name.as_str()).collect();
                visitor.node(&Node::new(*name, Labels::Keys(&keys)));
                for (_, child) in children {
                    child.flatten(visitor)?;
                }
            }
        }
        Ok(())
    }
}

/// A gradient stays one, whatever the other leaves become.
impl Tree for Gradient {
    type With<L: Leaf> = Self;

    /// Reads a gradient again, or the definition of the tree that was differentiated with gradients at its leaves.
    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        let entry = reader.next_entry().ok_or_else(|| mismatch("a gradient", "nothing more"))?;
        match entry {
            Entry::Leaf { .. } => match reader.next_item() {
                Some(Item::Value(Value::Dense(array))) => Ok(Self::Dense(array)),
                _ => Ok(Self::Nothing),
            },
            Entry::Node(OwnNode { kind: NodeKind::Nothing, .. }) => Ok(Self::Nothing),
            Entry::Node(OwnNode { labels: OwnLabels::Inner, .. }) => Self::unflatten(reader),
            Entry::Implicit { .. } | Entry::Node(_) => {
                let child = |i| Ok((entry.label(i).unwrap_or_default(), Self::unflatten(reader)?));
                Ok(Self::Node { name: entry.name(), children: (0..entry.len()).map(child).collect::<Result<_>>()? })
            }
        }
    }
}
