//! The arguments of a transform: dense arrays, and the tree that they make.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::transforms::{fallible_jvp, fallible_vjp};
use tacit_bridge::{
    OuterTracers, check_depth, distinct, in_transform, make_differentiable, make_forward_differentiable,
};

use crate::tree::{self, Item, Reader, TreeDef};
use crate::values::Values;
use crate::{Error, Result, Tree, Value};

/// The dense leaves of a tree, whose implicit arrays are open.
pub(super) struct Opened {
    pub(super) def: TreeDef,
    pub(super) leaves: Vec<Array>,
}

impl Opened {
    pub(super) fn of(given: &Values) -> Result<Self> {
        let (leaves, def) = given.def.opened(given.values.clone())?;
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

    /// The chosen leaves.
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
        self.derived(
            chosen,
            |arrays| {
                let results = self.with(chosen, arrays).and_then(&mut f)?;
                check_depth(&results, arrays)?;
                make_differentiable(&results, arrays)?;
                Ok(distinct(results)?)
            },
            |function, primals| fallible_vjp(function, primals, cotangents),
        )
    }

    /// The tangents of what `f` gives for the tree, whose chosen leaves have these tangents.
    pub(super) fn jvp<T: Tree>(
        &self,
        chosen: &[usize],
        tangents: &[Array],
        mut f: impl FnMut(T) -> Result<Vec<Array>>,
    ) -> Result<Vec<Array>> {
        self.derived(
            chosen,
            |arrays| {
                let results = self.with(chosen, arrays).and_then(&mut f)?;
                check_depth(&results, arrays)?;
                make_forward_differentiable(&results, arrays)?;
                Ok(results)
            },
            |function, primals| fallible_jvp(function, primals, tangents),
        )
    }

    /// What a transform of MLX's gives for `function` at the chosen leaves.
    fn derived(
        &self,
        chosen: &[usize],
        mut function: impl FnMut(&[Array]) -> Result<Vec<Array>>,
        transform: impl FnOnce(
            &mut dyn FnMut(&[Array]) -> Result<Vec<Array>, Exception>,
            &[Array],
        ) -> Result<(Vec<Array>, Vec<Array>), Exception>,
    ) -> Result<Vec<Array>> {
        let inside = in_transform();
        let (mut failure, mut outer) = (None, OuterTracers::default());
        let outcome = transform(
            &mut |arrays: &[Array]| {
                let seen = function(arrays).and_then(|results| {
                    if inside {
                        outer = OuterTracers::of(&results, arrays)?;
                    }
                    Ok(results)
                });
                seen.map_err(|error| keep(&mut failure, error))
            },
            &self.chosen(chosen),
        );
        // Also after an error: the function around may go on.
        outer.mark(outcome.as_ref().map_or(&[], |(_, derivatives)| derivatives))?;
        failure.map_or(Ok(()), Err)?;
        Ok(outcome?.1)
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

/// Keeps an error of the user's beside the transform, which passes on only its text.
fn keep(failure: &mut Option<Error>, error: Error) -> Exception {
    let text = error.to_string();
    *failure = Some(error);
    Exception::custom(text)
}

/// Whether an array can have a gradient.
pub(super) fn is_differentiable(array: &Array) -> bool {
    array.dtype().is_inexact()
}
