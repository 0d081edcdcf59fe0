//! The report of a model's parameters as they are now.

use std::rc::Rc;

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use tacit_core::{Aval, Value};

use super::Model;
use crate::Parameters;
use crate::array_leaves::ArrayLeaves;
use crate::parameters::sorted;
use crate::report::{Outcome, Report, Row};

impl<M: ModuleParameters> Model<M> {
    /// What each parameter is now, and what was done with it: by rules, by adapters, by setting and replacing.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::nn;
    /// use tacit_nn::{LoraConfig, Model};
    ///
    /// let model = Model::new(nn::Linear::new(64, 64)?)?.lora("weight", LoraConfig::default())?;
    /// let report = model.report();
    /// assert_eq!(report.bytes(), (64 * 64 * 4 + 64 * 4, model.nbytes()));
    /// assert!(report.to_string().contains("Lora(f32[64,64])"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn report(&self) -> Report {
        let parameters = sorted(&self.parts.module).into_iter().filter(|(path, _)| !self.parts.ties.is_tied(path));
        let row = |(path, array): (Rc<str>, &Array)| {
            let leaves = self.parts.implicit.get(&*path);
            let (aval, after) = leaves
                .map_or_else(|| (Aval::from(array), array.nbytes()), |leaves| (leaves.aval.clone(), leaves.nbytes()));
            let known = self.report.rows.get(&*path);
            let before = known.map_or(after, |row| row.before);
            let outcome = match (known, leaves) {
                // A function that ran on the module assigned a dense array, of which nothing was noted.
                (Some(row), None) if !matches!(row.outcome, Outcome::Left { .. }) => Outcome::dense(),
                (Some(row), _) => row.outcome.clone(),
                (None, Some(leaves)) => Outcome::Implicit { array: leaves.printed() },
                (None, None) => Outcome::unmatched(),
            };
            (path.to_string(), Row { aval, before, after, outcome })
        };
        Report { rows: parameters.map(row).collect(), ..self.report.clone() }
    }

    /// The report once these are in their places.
    pub(super) fn noted(&self, parameters: &Parameters) -> Report {
        let (avals, mut report) = (self.avals(), self.report.clone());
        for (path, value) in parameters {
            let parameter = self.parts.ties.parameter_path(path);
            let Some(aval) = avals.get(parameter) else { continue };
            let before = self.parts.implicit.get(parameter).map_or_else(|| aval.nbytes(), ArrayLeaves::nbytes);
            let new = || Row { aval: aval.clone(), before, after: before, outcome: Outcome::unmatched() };
            let row = report.rows.entry(parameter.to_owned()).or_insert_with(new);
            row.outcome = match (value, &row.outcome) {
                (Value::Implicit(_), _) => Outcome::Implicit { array: value.to_string() },
                // A dense parameter that is dense again is left for the same reason.
                (Value::Dense(_), Outcome::Left { .. }) => continue,
                (Value::Dense(_), _) => Outcome::dense(),
            };
        }
        report
    }
}
