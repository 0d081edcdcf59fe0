//! The gradient of a leaf.

use std::fmt;

use mlx_rs::Array;

use super::{Labels, Leaf, Node, Reader, Tree, Visitor};
use crate::{Aval, Error, Result};

/// The gradient of one leaf of a tree.
///
/// That of an implicit array has the array's own structure: gradients at its float children, nothing at the others.
#[derive(Clone, Debug, Default)]
pub enum Gradient {
    /// There is none: the leaf is not float, or was not asked for.
    #[default]
    Nothing,
    /// Of a dense leaf, with its shape and dtype.
    Dense(Array),
    /// Of an implicit array, child by child.
    Implicit {
        /// The array's type.
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
            Self::Implicit { name, children } => Err(Error::invalid(
                format!("the gradient of {name} is not one array"),
                format!(
                    "take a child's with `child`: {}",
                    children.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
                ),
            )),
        }
    }

    /// The gradient of a child of an implicit array; nothing where there is no such child.
    #[must_use]
    pub fn child(&self, name: &str) -> &Gradient {
        const NOTHING: &Gradient = &Gradient::Nothing;
        match self {
            Self::Implicit { children, .. } => {
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
            Self::Implicit { children, .. } => children.iter().all(|(_, child)| child.is_nothing()),
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
            Self::Implicit { name, children } => {
                write!(f, "{name}{{")?;
                for (i, (name, child)) in children.iter().enumerate() {
                    write!(f, "{}{name}: {child}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

/// What stands in the tree for a leaf without a gradient.
pub(crate) const NOTHING: &str = "nothing";

/// A gradient stays one, whatever the other leaves become.
impl Tree for Gradient {
    type With<L: Leaf> = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        match self {
            Self::Nothing => visitor.node(&Node::new(NOTHING, Labels::Positions(0))),
            Self::Dense(array) => visitor.array(array),
            Self::Implicit { name, children } => {
                let keys: Vec<&str> = children.iter().map(|(name, _)| name.as_str()).collect();
                visitor.node(&Node::new(name, Labels::Keys(&keys)));
                for (_, child) in children {
                    child.flatten(visitor)?;
                }
            }
        }
        Ok(())
    }

    /// Reads a gradient again, or the definition of the tree that was differentiated with gradients at its leaves.
    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        reader.gradient()
    }
}
