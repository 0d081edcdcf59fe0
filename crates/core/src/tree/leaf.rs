//! The leaves: arrays, values, gradients.

use std::fmt::Debug;

use mlx_rs::Array;

use super::{Arguments, Reader, Tree, Visitor};
use crate::{Result, Value};

/// What may stand at the leaves of a tree: an [`Array`] inside a traced function, a [`Value`] outside, a
/// [`Gradient`](super::Gradient) in what a transform returns.
pub trait Leaf: Tree + Arguments<Arrays = Array> + Clone + Debug + sealed::Sealed + 'static {
    /// What stands for a tree `T` whose leaves cannot be others: the tree itself, or its gradients.
    type Fixed<T: Tree>: Tree;
}

pub(super) mod sealed {
    pub trait Sealed {}
    impl Sealed for mlx_rs::Array {}
    impl Sealed for crate::Value {}
}

impl Leaf for Array {
    type Fixed<T: Tree> = T;
}

impl Leaf for Value {
    type Fixed<T: Tree> = T;
}

impl Arguments for Array {
    type Arrays = Self;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        visitor.array(self);
        Ok(())
    }
}

impl Tree for Array {
    type With<L: Leaf> = L;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        reader.array()
    }
}

impl Arguments for Value {
    type Arrays = Array;

    fn flatten<'a>(&'a self, visitor: &mut dyn Visitor<'a>) -> Result<()> {
        match self {
            Self::Dense(array) => visitor.array(array),
            Self::Implicit(array) => visitor.implicit(&**array),
        }
        Ok(())
    }
}

impl Tree for Value {
    type With<L: Leaf> = L;

    fn unflatten(reader: &mut Reader<'_>) -> Result<Self> {
        reader.value()
    }
}
