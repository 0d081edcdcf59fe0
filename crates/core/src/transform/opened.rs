//! The arguments of a transform: dense arrays, and the tree that they make.

use mlx_rs::{Array, ops};

use crate::tree::{self, Item, Reader, TreeDef};
use crate::values::Values;
use crate::{Result, Tree, Value};

/// The dense leaves of a tree, whose implicit arrays are open.
pub(super) struct Opened {
    pub(super) def: TreeDef,
    pub(super) leaves: Vec<Array>,
}

impl Opened {
    pub(super) fn from_values(values: &Values) -> Result<Self> {
        let (leaves, def) = values.def.opened(values.values.clone())?;
        Ok(Self { def, leaves: leaves.iter().map(Value::dense).collect::<Result<_>>()? })
    }

    /// The tree with other arrays at the `chosen` leaves.
    fn with<T: Tree>(&self, chosen: &[usize], arrays: &[Array]) -> Result<T> {
        let mut leaves: Vec<Value> = self.leaves.iter().map(Value::from).collect();
        for (&position, array) in chosen.iter().zip(arrays) {
            leaves[position] = array.into();
        }
        tree::unflatten(&self.def, leaves)
    }

    fn chosen(&self, chosen: &[usize]) -> Vec<Array> {
        chosen.iter().map(|&position| self.leaves[position].clone()).collect()
    }

    /// The gradients of the chosen leaves: the vjp of what `f` gives for the tree.
    pub(super) fn vjp<T: Tree>(
        &self,
        chosen: &[usize],
        cotangents: &[Array],
        mut f: impl FnMut(T) -> Result<Vec<Array>>,
    ) -> Result<Vec<Array>> {
        let mut function = |arrays: Vec<Array>| Ok(self.with(chosen, &arrays).and_then(&mut f)?);
        Ok(tacit_bridge::vjp(&self.chosen(chosen), cotangents, &mut function)?)
    }

    /// The tangents of what `f` gives for the tree, whose chosen leaves have these tangents.
    pub(super) fn jvp<T: Tree>(
        &self,
        chosen: &[usize],
        tangents: &[Array],
        mut f: impl FnMut(T) -> Result<Vec<Array>>,
    ) -> Result<Vec<Array>> {
        let mut function = |arrays: Vec<Array>| Ok(self.with(chosen, &arrays).and_then(&mut f)?);
        Ok(tacit_bridge::jvp(&self.chosen(chosen), tangents, &mut function)?)
    }

    /// The gradients of the chosen leaves as a tree, with nothing at the others.
    pub(super) fn gradients<T: Tree>(&self, chosen: &[usize], gradients: Vec<Array>) -> Result<T> {
        let mut items: Vec<Item> = self.leaves.iter().map(|_| Item::Nothing).collect();
        for (&position, gradient) in chosen.iter().zip(gradients) {
            items[position] = gradient.into();
        }
        T::unflatten(&mut Reader::new(&self.def, items)?)
    }
}

/// What was found of those arrays that may have a derivative, in their order, and zeros for the others.
pub(super) fn with_zeros(arrays: &[Array], found: Vec<Array>) -> Result<Vec<Array>> {
    let mut found = found.into_iter();
    let next = |array| match is_differentiable(array).then(|| found.next()).flatten() {
        Some(derivative) => Ok(derivative),
        None => Ok(ops::zeros_like(array)?),
    };
    arrays.iter().map(next).collect()
}

pub(super) fn is_differentiable(array: &Array) -> bool {
    array.dtype().is_inexact()
}
