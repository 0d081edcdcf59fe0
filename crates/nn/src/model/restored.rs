//! Restores a model to what it was before, where something fails.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use mlx_rs::module::ModuleParameters;
use mlx_rs::{Array, Dtype};
use tacit_arrays::format::AnyFormat;

use super::Model;
use super::ties::Ties;
use crate::ParameterFilter;
use crate::array_leaves::ArrayLeaves;
use crate::report::Report;

impl<M: ModuleParameters> Model<M> {
    /// Makes several changes, or none of them: where `f` fails, the parameters, their ties and the report are what they were.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{nn, ops};
    /// use tacit_nn::Model;
    ///
    /// let mut model = Model::new(nn::Linear::new(4, 4)?)?;
    /// let before = model.get("weight")?.dense()?;
    /// let changed = model.transaction(|model| {
    ///     model.set("weight", ops::zeros::<f32>(&[4, 4])?)?;
    ///     model.set("bias", ops::zeros::<f32>(&[5])?)
    /// });
    /// assert!(changed.is_err());
    /// assert!(model.get("weight")?.dense()?.eq_exact(&before)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What the module holds beside its parameters, such as which of them it freezes and whether it trains, stays as `f` left it; and so
    /// does which parameters it has, where `f` takes one out of the module itself or puts one there.
    ///
    /// # Errors
    ///
    /// `f` fails.
    pub fn transaction<O, E>(&mut self, f: impl FnOnce(&mut Self) -> Result<O, E>) -> Result<O, E> {
        let mut state = Restored::new(self);
        let output = f(state.model)?;
        state.keep();
        Ok(output)
    }
}

/// What a model is, but for what its module holds beside parameters.
struct State {
    arrays: Vec<(Rc<str>, Array)>,
    implicit: BTreeMap<String, ArrayLeaves>,
    ties: Ties,
    trained: ParameterFilter,
    frozen: BTreeSet<String>,
    saved: BTreeMap<String, AnyFormat>,
    halves: BTreeMap<String, Dtype>,
    report: Report,
}

/// A model that is what it was before, also after a panic, unless that is taken away.
pub(super) struct Restored<'m, M: ModuleParameters> {
    pub(super) model: &'m mut Model<M>,
    before: Option<State>,
}

impl<'m, M: ModuleParameters> Restored<'m, M> {
    pub(super) fn new(model: &'m mut Model<M>) -> Self {
        let arrays = model.parts.module.parameters().flatten().into_iter();
        let before = State {
            arrays: arrays.map(|(path, array)| (path, array.clone())).collect(),
            implicit: model.parts.implicit.clone(),
            ties: model.parts.ties.clone(),
            trained: model.parts.trained.clone(),
            frozen: model.parts.frozen.clone(),
            saved: model.parts.saved.clone(),
            halves: model.halves.clone(),
            report: model.report.clone(),
        };
        Self { before: Some(before), model }
    }

    /// The model stays as it is now.
    pub(super) fn keep(&mut self) {
        self.before = None;
    }
}

impl<M: ModuleParameters> Drop for Restored<'_, M> {
    fn drop(&mut self) {
        let Some(State { arrays, implicit, ties, trained, frozen, saved, halves, report }) = self.before.take() else {
            return;
        };
        let parts = &mut *self.model.parts;
        (parts.implicit, parts.ties) = (implicit, ties);
        (parts.trained, parts.frozen, parts.saved) = (trained, frozen, saved);
        (self.model.halves, self.model.report) = (halves, report);
        let mut slots = self.model.parts.module.parameters_mut().flatten();
        for (path, array) in arrays {
            slots.entry(path).and_modify(|slot| **slot = array);
        }
    }
}
