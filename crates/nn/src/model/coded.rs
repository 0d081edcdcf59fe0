//! Weights of a model that are trained as their codes, during a step.

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use tacit_arrays::TrainedCodes;
use tacit_core::{Error, Policy, Result, array_id};

use super::Model;
use crate::array_leaves::ArrayLeaves;
use crate::within::mapped;

impl<M: ModuleParameters> Model<M> {
    /// Whether a parameter is trained as its codes.
    pub(super) fn is_coded(&self) -> bool {
        self.parts.implicit.values().any(ArrayLeaves::is_coded)
    }

    /// Gives each of these parameters a leaf that a gradient is taken of, and tells whether it did: inside another gradient each has one,
    /// which is that gradient's.
    pub(super) fn lend_for_gradient(&mut self) -> Result<bool> {
        let mut lends = false;
        self.each_coded(&mut |codes| {
            if codes.value().is_some() {
                return Ok(codes.clone());
            }
            lends = true;
            codes.for_gradient()
        })?;
        Ok(lends)
    }

    /// Gives each of these parameters a leaf that an optimizer may move: its floats, which are not computed unless one does.
    pub(super) fn lend_for_step(&mut self) -> Result<Vec<Array>> {
        // That the floats of what moves are built is said where it is prepared.
        let _allow = Policy::Allow.scope();
        let mut lent = Vec::new();
        self.each_coded(&mut |codes| {
            if codes.value().is_some() {
                return Err(Error::invalid(
                    "a step is made inside a gradient, which does not go through codes that are rounded at random",
                    "make the step of what is trained as its codes after `Model::value_and_grad` has returned",
                ));
            }
            let codes = codes.for_step()?;
            lent.extend(codes.value().cloned());
            Ok(codes)
        })?;
        Ok(lent)
    }

    /// Takes these leaves back, and rounds those to codes that are not as they were lent.
    pub(super) fn take_steps(&mut self, lent: &[Array]) -> Result<()> {
        let lent: Vec<usize> = lent.iter().map(array_id).collect();
        self.each_coded(&mut |codes| {
            let is_moved = |value: &Array| !lent.contains(&array_id(value));
            if codes.value().is_some_and(is_moved) { codes.clone().stepped() } else { Ok(codes.clone().at_rest()) }
        })
    }

    /// Puts what `f` makes of each of these parameters in its place, or of none where it fails.
    pub(super) fn each_coded(&mut self, f: &mut dyn FnMut(&TrainedCodes) -> Result<TrainedCodes>) -> Result<()> {
        let mut changed = Vec::new();
        for (path, leaves) in self.parts.implicit.iter().filter(|(_, leaves)| leaves.is_coded()) {
            let other = mapped(&leaves.value()?, &mut |value| {
                value.downcast::<TrainedCodes>().map(|codes| Ok(f(codes)?.into())).transpose()
            })?;
            if let Some(other) = other {
                changed.push((path.clone(), ArrayLeaves::new(path, &other)?));
            }
        }
        if !changed.is_empty() {
            self.parts.implicit.extend(changed);
        }
        Ok(())
    }
}
