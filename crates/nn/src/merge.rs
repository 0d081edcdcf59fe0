//! Adapters of a model merged into their bases, and taken out again.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mlx_rs::module::ModuleParameters;
use tacit_arrays::format::AnyFormat;
use tacit_arrays::{Adapter, MergeLoss, Merged, merge, merge_exactly};
use tacit_core::{Error, Result, Value, printable};

use crate::within::mapped;
use crate::{Missing, Model, Parameters};

/// What became of a model's adapters: a table, and the adapters themselves, by which [`Model::unmerge`] undoes it.
#[derive(Clone, Debug)]
pub struct MergeReport {
    /// The adapted parameters by path.
    pub rows: BTreeMap<String, MergeRow>,
    adapters: Parameters,
    /// The paths of those that were frozen.
    frozen: BTreeSet<String>,
}

/// What a merge did with one adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeRow {
    /// The array that stands for adapter and base, as in `Nf4(f32[4,8])`.
    pub made: String,
    /// How far it is from what was trained; of several adapters in one parameter, the greatest of each number.
    pub loss: MergeLoss,
    /// The bytes of adapter and base.
    pub before: usize,
    /// The bytes of the merged array.
    pub after: usize,
}

impl MergeReport {
    /// The greatest relative error of all parameters: NaN where one of them is.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.rows.values().map(|row| row.loss.relative).fold(0.0, worse)
    }

    /// The greatest part of a change that was lost, of all parameters: NaN where one of them is.
    #[must_use]
    pub fn worst_of_change(&self) -> f64 {
        self.rows.values().map(|row| row.loss.of_change).fold(0.0, worse)
    }

    /// The adapters with their bases, which the report keeps alive.
    #[must_use]
    pub fn adapters(&self) -> &Parameters {
        &self.adapters
    }
}

impl fmt::Display for MergeReport {
    /// A table with a line for each parameter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wide = |least: usize, texts: &mut dyn Iterator<Item = usize>| texts.fold(least, usize::max);
        let path = wide(9, &mut self.rows.keys().map(|path| printable::name(path).len()));
        let made = wide(6, &mut self.rows.values().map(|row| row.made.len()));
        write!(
            f,
            "{:<path$}  {:<made$}  {:>9}  {:>9}  {:>12}  {:>12}",
            "parameter", "merged", "error", "of change", "before", "after"
        )?;
        for (name, MergeRow { made: value, loss, before, after }) in &self.rows {
            let name = printable::name(name);
            let (error, lost) = (loss.relative, 100.0 * loss.of_change);
            write!(f, "\n{name:<path$}  {value:<made$}  {error:>9.2e}  {lost:>8.1}%  {before:>12}  {after:>12}")?;
        }
        Ok(())
    }
}

impl<M: ModuleParameters> Model<M> {
    /// Merges every adapter into its base, in this format.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::nn;
    /// use tacit_arrays::format::Nf4;
    /// use tacit_nn::{LoraConfig, Model};
    ///
    /// let nf4 = Nf4 { block: 64, double: false };
    /// let mut model = Model::new(nn::Linear::new(64, 64)?)?
    ///     .quantize("weight", nf4)?
    ///     .lora("weight", LoraConfig::default().as_stored(nf4))?;
    /// let report = model.merge(nf4)?;
    /// assert!(report.rows["weight"].loss.is_none());
    /// assert_eq!(model.get("weight")?.to_string(), "Nf4(f32[64,64])");
    /// model.unmerge(report)?;
    /// assert_eq!(model.get("weight")?.to_string(), "AsStored(f32[64,64])");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The model has no adapter, one does not fit the format, or the policy forbids to build what has to be built. The
    /// model is then what it was.
    pub fn merge(&mut self, format: impl TryInto<AnyFormat, Error: Into<Error>>) -> Result<MergeReport> {
        let format = format.try_into().map_err(Into::into)?;
        self.merge_by(|adapter| merge(adapter, &format))
    }

    /// Merges every adapter into its base without a loss: into stored codes where these hold the sum, and into a dense array
    /// otherwise.
    ///
    /// The dense array is what the adapter stands for, in its dtype: half floats round the sum, which products with the adapter do
    /// not, and the report does not count that.
    ///
    /// # Errors
    ///
    /// As for [`merge`](Self::merge).
    pub fn merge_exactly(&mut self) -> Result<MergeReport> {
        self.merge_by(merge_exactly)
    }

    fn merge_by(&mut self, merge: impl Fn(&dyn Adapter) -> Result<Merged>) -> Result<MergeReport> {
        let (mut rows, mut parameters, mut adapters) = (BTreeMap::new(), Parameters::new(), Parameters::new());
        for (path, value) in self.values()? {
            let mut loss: Option<MergeLoss> = None;
            let merged = mapped(&value, &mut |value| {
                let Some(adapter) = value.family::<dyn Adapter>() else { return Ok(None) };
                let merged = merge(adapter)?;
                // Of several adapters in one parameter each number is the greatest, which need not be of one of them.
                let next = merged.loss;
                loss = Some(loss.map_or(next, |other| MergeLoss {
                    relative: worse(other.relative, next.relative),
                    change: worse(other.change, next.change),
                    of_change: worse(other.of_change, next.of_change),
                }));
                Ok(Some(merged.value))
            });
            let merged = merged.map_err(|error| error.of_parameter(&path))?;
            let (Some(merged), Some(loss)) = (merged, loss) else { continue };
            let row = MergeRow { made: merged.to_string(), loss, before: value.nbytes(), after: merged.nbytes() };
            rows.insert(path.clone(), row);
            parameters.insert(path.clone(), merged);
            adapters.insert(path, value);
        }
        if adapters.is_empty() {
            return Err(Error::invalid(
                "the model has no adapter to merge",
                "adapt it first, such as by `Model::lora`",
            ));
        }
        let frozen = self.frozen_adapters().clone();
        self.assign(parameters, Missing::Keep)?;
        Ok(MergeReport { rows, adapters, frozen })
    }

    /// Undoes a [`merge`](Self::merge): the adapters and their bases are the same again, bit for bit, and frozen as before.
    ///
    /// The base cannot be computed back from the merged array: of floats a rounding would stay, and of codes more. So the
    /// report holds the adapters and their bases, and their bytes; drop it where nothing is to be undone. One that is given by
    /// reference stays, also where this fails.
    ///
    /// # Errors
    ///
    /// The model has not these parameters. It is then what it was.
    pub fn unmerge(&mut self, report: impl Borrow<MergeReport>) -> Result<()> {
        let report = report.borrow();
        self.assign(report.adapters.clone(), Missing::Keep)?;
        self.freeze_adapters(report.frozen.clone());
        Ok(())
    }

    /// Removes the adapters and returns them; their bases stay in the model.
    ///
    /// Where a base is an adapter too, its own base stays.
    ///
    /// # Errors
    ///
    /// An implicit array refuses its own children.
    pub fn without_adapters(&mut self) -> Result<Parameters> {
        let (mut bases, mut adapters) = (Parameters::new(), Parameters::new());
        for (path, value) in self.values()? {
            if let Some(base) = without_adapter(&value)? {
                bases.insert(path.clone(), base);
                adapters.insert(path, value);
            }
        }
        self.assign(bases, Missing::Keep)?;
        Ok(adapters)
    }
}

/// The greater of two errors; one that is no number is worse than any.
fn worse(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// The value with the innermost bases in place of adapters; nothing where it has none.
pub(crate) fn without_adapter(value: &Value) -> Result<Option<Value>> {
    mapped(value, &mut |value| {
        let Some(adapter) = value.family::<dyn Adapter>() else { return Ok(None) };
        let base = adapter.base();
        Ok(Some(without_adapter(base)?.unwrap_or_else(|| base.clone())))
    })
}
