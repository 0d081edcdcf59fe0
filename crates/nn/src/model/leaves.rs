//! A model's leaves as the parameters that mlx-rs sees.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::module::{ModuleParamMut, ModuleParamRef, ModuleParameters};
use mlx_rs::nested::{NestedHashMap, NestedValue};
use tacit_core::embedding::same_bits;
use tacit_core::{Aval, Error, Result};

use super::Model;
use super::own::Parts;
use crate::filter::{Leaf, ParameterFilter, Role};
use crate::parameters::listed;

impl<M: ModuleParameters> Model<M> {
    /// The leaves of a part by path, as they are.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::nn;
    /// use tacit_arrays::format::Nf4;
    /// use tacit_nn::{Model, ParameterFilter};
    ///
    /// let model = Model::new(nn::Linear::new(64, 64)?)?.quantize("weight", Nf4 { block: 64, double: false })?;
    /// let paths = |only| model.leaves(only).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    /// assert_eq!(paths(&ParameterFilter::All), ["bias", "weight.codes", "weight.scales"]);
    /// assert_eq!(paths(&ParameterFilter::Scales), ["weight.scales"]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn leaves(&self, only: &ParameterFilter) -> Vec<(String, &Array)> {
        self.chosen(only, |_| true)
    }

    /// The leaves that a gradient is taken of: the float ones of the part that are not frozen.
    pub(super) fn trainable(&self, only: &ParameterFilter) -> Vec<(String, &Array)> {
        let unfrozen = self.parts.module.trainable_parameters().flatten();
        self.chosen(only, |leaf| {
            leaf.aval.dtype.is_float() && self.is_trained(leaf.role, leaf.parameter, |path| unfrozen.contains_key(path))
        })
    }

    /// Whether a leaf of this parameter is trained, where `unfrozen` tells of the module's own parameters.
    ///
    /// Adapters are not the module's: they are frozen by the model's own [`freeze_parameters`](ModuleParameters), where they
    /// were there then. What stands in place of a parameter is as frozen as it is, under each of its paths.
    pub(super) fn is_trained(&self, role: Role, parameter: &str, unfrozen: impl Fn(&str) -> bool) -> bool {
        match role {
            Role::Statistic | Role::Choice | Role::Coded => false,
            Role::Factor => !self.parts.frozen.contains(parameter),
            Role::Dense | Role::Scale | Role::Master | Role::Base | Role::Other => {
                unfrozen(parameter) && self.parts.ties.others(parameter).all(unfrozen)
            }
        }
    }

    pub(crate) fn frozen_adapters(&self) -> &BTreeSet<String> {
        &self.parts.frozen
    }

    /// Freezes the adapters of these parameters, beside those that are frozen.
    pub(crate) fn freeze_adapters(&mut self, parameters: BTreeSet<String>) {
        self.parts.frozen.extend(parameters);
    }

    /// The leaves of a part for which `wanted` holds, sorted by path.
    pub(super) fn chosen(&self, only: &ParameterFilter, wanted: impl Fn(&Leaf<'_>) -> bool) -> Vec<(String, &Array)> {
        let mut chosen: Vec<(String, &Array)> = Vec::new();
        for (parameter, array) in self.parts.module.parameters().flatten() {
            if self.parts.ties.is_tied(&parameter) {
                continue;
            }
            let tied: Vec<&str> = self.parts.ties.others(&parameter).collect();
            let mut take = |path: &str, role: Role, array| {
                let leaf = Leaf { path, parameter: &parameter, tied: &tied, role, aval: Aval::from(array) };
                if only.chooses(&leaf) && wanted(&leaf) {
                    chosen.push((path.to_owned(), array));
                }
            };
            match self.parts.implicit.get(&*parameter) {
                Some(held) => held.leaves.iter().for_each(|leaf| take(&leaf.path, leaf.role, &leaf.array)),
                None => take(&parameter, Role::of_dense(&parameter), array),
            }
        }
        chosen.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        chosen
    }

    /// Every leaf by path, to be changed.
    pub(super) fn slots(&mut self) -> HashMap<Rc<str>, &mut Array> {
        let Parts { module, implicit, ties, .. } = &mut *self.parts;
        let mut slots = module.parameters_mut().flatten();
        slots.retain(|path, _| !ties.is_tied(path) && !implicit.contains_key(&**path));
        for leaf in implicit.values_mut().flat_map(|leaves| &mut leaves.leaves) {
            slots.insert(Rc::from(leaf.path.as_str()), &mut leaf.array);
        }
        slots
    }

    /// Replaces leaves by arrays of their own shapes and dtypes, all or none.
    ///
    /// # Errors
    ///
    /// The model has no leaf of a path, or one of another shape or dtype; or two paths of one leaf, which are
    /// [tied](Self::tie), are given different values.
    pub fn set_leaves(&mut self, arrays: impl IntoIterator<Item = (String, Array)>) -> Result<()> {
        let arrays = self.own_leaves(arrays)?;
        self.put_leaves(arrays)
    }

    /// Puts arrays by the paths of the model's own leaves in the place of these, all or none.
    pub(super) fn put_leaves(&mut self, arrays: BTreeMap<String, Array>) -> Result<()> {
        let mut slots = self.slots();
        for (path, array) in &arrays {
            let Some(slot) = slots.get(path.as_str()) else {
                return Err(Error::invalid(format!("the model has no leaf {path}"), listed(slots.keys())));
            };
            let (expected, found) = (Aval::from(&**slot), Aval::from(array));
            if expected != found {
                return Err(Error::invalid(
                    format!("the leaf {path} is {expected} and was given {found}"),
                    "give an array of the leaf's own shape and dtype, or set the whole parameter",
                ));
            }
        }
        for (path, array) in arrays {
            slots.entry(Rc::from(path)).and_modify(|slot| **slot = array);
        }
        Ok(())
    }

    /// The path of the model's leaf that a path names, which may be that of a tied parameter.
    pub(super) fn own_leaf(&self, path: &str) -> String {
        self.parts.ties.leaf(path).unwrap_or_else(|| path.to_owned())
    }

    /// Arrays by the paths of the model's own leaves.
    pub(super) fn own_leaves(
        &self,
        arrays: impl IntoIterator<Item = (String, Array)>,
    ) -> Result<BTreeMap<String, Array>> {
        let mut by_leaf: BTreeMap<String, (String, Array)> = BTreeMap::new();
        for (path, array) in arrays {
            let leaf = self.own_leaf(&path);
            if let Some((name, known)) = by_leaf.get(&leaf)
                && *name != path
                && !same_bits(known, &array)?
            {
                return Err(Error::invalid(
                    format!("the leaf {leaf} was given different values, as {name} and as {path}"),
                    "give one of them, or make the model without the tie",
                ));
            }
            // Of one path the last one counts.
            by_leaf.insert(leaf, (path, array));
        }
        Ok(by_leaf.into_iter().map(|(leaf, (_, array))| (leaf, array)).collect())
    }
}

impl<M: ModuleParameters> ModuleParameters for Model<M> {
    fn num_parameters(&self) -> usize {
        self.leaves(&ParameterFilter::All).len()
    }

    fn parameters(&self) -> ModuleParamRef<'_> {
        nested(self.leaves(&ParameterFilter::All).into_iter().map(|(path, array)| (path.into(), array)))
    }

    fn parameters_mut(&mut self) -> ModuleParamMut<'_> {
        nested(self.slots())
    }

    fn trainable_parameters(&self) -> ModuleParamRef<'_> {
        nested(self.trainable(&self.parts.trained).into_iter().map(|(path, array)| (path.into(), array)))
    }

    /// Adapters that are there are frozen, too; those that come later are there to be trained, and are not.
    fn freeze_parameters(&mut self, recursive: bool) {
        self.parts.module.freeze_parameters(recursive);
        let adapters = self.parts.implicit.iter().filter(|(_, leaves)| leaves.is_adapter());
        self.parts.frozen = adapters.map(|(path, _)| path.clone()).collect();
    }

    fn unfreeze_parameters(&mut self, recursive: bool) {
        self.parts.module.unfreeze_parameters(recursive);
        self.parts.frozen.clear();
    }

    fn all_frozen(&self) -> Option<bool> {
        let leaves = self.leaves(&ParameterFilter::All).len();
        (leaves > 0).then(|| self.trainable(&ParameterFilter::All).is_empty())
    }

    fn any_frozen(&self) -> Option<bool> {
        let leaves = self.leaves(&ParameterFilter::All).len();
        (leaves > 0).then(|| self.trainable(&self.parts.trained).len() < leaves)
    }
}

/// Arrays by path, whose dots need no maps of their own.
fn nested<T>(leaves: impl IntoIterator<Item = (Rc<str>, T)>) -> NestedHashMap<Rc<str>, T> {
    NestedHashMap { entries: leaves.into_iter().map(|(path, array)| (path, NestedValue::Value(array))).collect() }
}
