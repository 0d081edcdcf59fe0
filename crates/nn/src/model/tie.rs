//! Declaring that parameters are one, and telling of those that were one array.

use std::collections::HashMap;

use mlx_rs::module::ModuleParameters;
use tacit_core::{Error, Result, Value, array_id};

use super::Model;
use super::own::Parts;
use super::ties::{Ties, is_of};
use crate::parameters::some_of;

impl<M: ModuleParameters> Model<M> {
    /// Makes the parameter at `path` the one at `to`: one value, quantized, trained, frozen and saved once, under the path `to`.
    ///
    /// Whatever names either path means it.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::macros::ModuleParameters;
    /// use mlx_rs::nn;
    /// use tacit_arrays::format::Affine;
    /// use tacit_nn::Model;
    ///
    /// #[derive(Debug, ModuleParameters)]
    /// #[module(root = mlx_rs)]
    /// struct Decoder {
    ///     #[param]
    ///     embed_tokens: nn::Embedding,
    ///     #[param]
    ///     lm_head: nn::Linear,
    /// }
    ///
    /// let decoder = Decoder { embed_tokens: nn::Embedding::new(16, 64)?, lm_head: nn::Linear::new(64, 16)? };
    /// let mut model = Model::new(decoder)?.tie("lm_head.weight", "embed_tokens.weight")?;
    /// assert_eq!(model.values()?.into_keys().collect::<Vec<_>>(), ["embed_tokens.weight", "lm_head.bias"]);
    /// model = model.quantize("lm_head.weight", Affine { bits: 8, group: 64 })?;
    /// assert_eq!(model.get("embed_tokens.weight")?.to_string(), "Affine(f32[16,64])");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What was at `path` is let go of. Ties are the model's and not the checkpoint's: a file has the one parameter, and may
    /// name it by either path; where it has both, they have to be equal.
    ///
    /// # Errors
    ///
    /// The model has no parameter of one of the paths, or they are of different shapes.
    pub fn tie(mut self, path: &str, to: &str) -> Result<Self> {
        let (from, target) =
            (self.parts.ties.parameter_path(path).to_owned(), self.parts.ties.parameter_path(to).to_owned());
        let avals = self.avals();
        let aval = |parameter: &str, path: &str| avals.get(parameter).ok_or_else(|| self.no(path));
        let (tied, kept) = (aval(&from, path)?, aval(&target, to)?);
        if tied.shape != kept.shape {
            return Err(Error::invalid(
                format!("the parameter {path} is {tied}, and {to} is {kept}"),
                "tie parameters of one shape",
            ));
        }
        if from == target {
            return Ok(self);
        }
        let value = self.get(&target)?;
        let mut ties = self.parts.ties.clone();
        ties.tie(&from, &target);
        self.set_ties(ties);
        // What was at the path goes with this.
        self.put(vec![(target, value)])?;
        Ok(self)
    }

    /// Gives the model these ties for its own. What is tied is held, frozen and told of under the other path alone.
    pub(super) fn set_ties(&mut self, ties: Ties) {
        let Parts { implicit, frozen, saved, ties: known, .. } = &mut *self.parts;
        *known = ties;
        implicit.retain(|path, _| !known.is_tied(path));
        frozen.retain(|path| !known.is_tied(path));
        saved.retain(|path, _| !known.is_tied(path));
        self.report.rows.retain(|path, _| !known.is_tied(path));
        for group in &mut self.report.shared {
            group.retain(|path| !known.is_tied(path));
        }
        self.report.shared.retain(|group| group.len() > 1);
    }

    /// Says once, where parameters are trained that were one array in the module, that each is trained by itself.
    pub(super) fn tell_of_shared(&mut self, leaves: &[String]) {
        if self.told || self.report.shared.is_empty() {
            return;
        }
        let trained = |path: &&String| leaves.iter().any(|leaf| is_of(leaf, path));
        let groups = self.report.shared.iter().map(|group| group.iter().filter(trained).collect::<Vec<_>>());
        if let Some(group) = groups.into_iter().find(|group| group.len() > 1) {
            tracing::warn!(
                target: "tacit",
                "parameters that were one array in the module are trained each by itself: {}; where they are to be one, \
                 declare it by `Model::tie`",
                some_of(&group)
            );
            self.told = true;
        }
    }

    /// Checks that a function which assigned two paths of one parameter gave both the same array.
    pub(super) fn assigned_once(&self, assigned: &[(String, Value)]) -> Result<()> {
        let mut known: HashMap<&str, (&str, Option<usize>)> = HashMap::new();
        for (path, value) in assigned.iter().filter(|_| !self.parts.ties.is_empty()) {
            let array = value.as_dense().map(array_id);
            let (first, other) = *known.entry(self.parts.ties.parameter_path(path)).or_insert((path, array));
            if first != path && (array.is_none() || array != other) {
                return Err(Error::invalid(
                    format!("the function assigned {first} and {path}, which are tied, different arrays"),
                    "assign one of them",
                ));
            }
        }
        Ok(())
    }

    /// All paths of a parameter, its own first.
    pub(crate) fn paths<'p>(&'p self, own: &'p str) -> Vec<&'p str> {
        self.parts.ties.paths(own)
    }
}
