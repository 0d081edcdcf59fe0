//! Observing the weights of a running model, and choosing codes by that.

use std::collections::{BTreeMap, BTreeSet};

use mlx_rs::Dtype;
use mlx_rs::module::ModuleParameters;
use tacit_arrays::format::AnyFormat;
use tacit_arrays::{Calibrate, Observed};
use tacit_core::{Aval, Error, Result, Value};

use super::Model;
use crate::observations::Observations;
use crate::path_order::path_order;
use crate::{IntoRules, Parameters, Pattern};

impl<M: ModuleParameters> Model<M> {
    /// Runs the model, in whatever calls `f` makes, and records what the weights that a pattern names are multiplied with.
    ///
    /// Nothing of the model need be known: a weight is observed where plain code multiplies it, by [`Observed`]. It may be
    /// dense or implicit; what is no float matrix or stack of matrices is passed by. Each product is computed at once, and its
    /// sums take `4 k^2` bytes for `k` inputs, of a stack for each of its matrices; weights that meet the very same rows, such as
    /// queries, keys and values, have them once. [`observation_groups`](Self::observation_groups) bounds the memory of large models.
    ///
    /// The model has its own weights back afterwards, also where `f` fails or panics.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::module::Module;
    /// use mlx_rs::{nn, random};
    /// use tacit_arrays::Gptq;
    /// use tacit_nn::Model;
    ///
    /// let batch = |seed| random::normal::<f32>(&[16, 64], None, None, &random::key(seed)?);
    /// let mut model = Model::new(nn::Linear::new(64, 8)?)?;
    /// let observations = model.observe("*", |model| {
    ///     model.forward(&batch(0)?)?;
    ///     model.forward(&batch(1)?)
    /// })?;
    /// assert_eq!(observations.get("weight")?.rows(), [32]);
    /// let model = model.quantize_observed("*", "affine:4:64", &observations, &Gptq::default())?;
    /// assert_eq!(model.get("weight")?.to_string(), "Affine(f32[8,64])");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The pattern names no weight that can be observed, or `f` fails. A weight that is multiplied inside `compile`, `vmap` or a
    /// gradient makes it fail. What was wrong with the activations of one weight is an error of [`Observations::get`].
    pub fn observe<P, O, E>(&mut self, pattern: P, f: impl FnOnce(&mut Self) -> Result<O, E>) -> Result<Observations>
    where
        P: TryInto<Pattern, Error: Into<Error>>,
        E: Into<Error>,
    {
        self.observe_by(&pattern.try_into().map_err(Into::into)?, Observed::new, f)
    }

    /// Observes as [`observe`](Self::observe) does, but records only the mean squares and magnitudes of inputs: `8 k` bytes for `k`
    /// inputs. [`Advisor`](crate::Advisor) and [`WeightedSearch`](tacit_arrays::WeightedSearch) need no more.
    ///
    /// # Errors
    ///
    /// As for [`observe`](Self::observe).
    pub fn observe_squares<P: TryInto<Pattern, Error: Into<Error>>, O, E: Into<Error>>(
        &mut self,
        pattern: P,
        f: impl FnOnce(&mut Self) -> Result<O, E>,
    ) -> Result<Observations> {
        self.observe_by(&pattern.try_into().map_err(Into::into)?, Observed::of_squares, f)
    }

    /// The weights that [`observe`](Self::observe) observes by a pattern, in groups whose sums take at most so many bytes.
    ///
    /// Observe one group after the other, each on the same inputs: the sums are the same bits as those of all weights at once.
    /// Weights are in the order of their layers. One whose sums alone take more bytes is a group by itself. Sums that weights share
    /// are counted for each of them.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::module::Module;
    /// use mlx_rs::{nn, ops};
    /// use tacit_nn::{Model, Pattern};
    ///
    /// let layers = nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Linear::new(64, 8)?);
    /// let mut model = Model::new(layers)?;
    /// let x = ops::ones::<f32>(&[2, 64])?;
    /// for paths in model.observation_groups("*", 4 * 64 * 64)? {
    ///     let seen = model.observe(Pattern::any(&paths), |model| model.forward(&x))?;
    ///     // Here each of them is quantized.
    ///     assert!(paths.iter().all(|path| seen.met(path)));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The text of the pattern cannot be read.
    pub fn observation_groups<P>(&self, pattern: P, bytes: usize) -> Result<Vec<Vec<String>>>
    where
        P: TryInto<Pattern, Error: Into<Error>>,
    {
        let mut weights = self.observable(&pattern.try_into().map_err(Into::into)?)?;
        weights.retain(|(.., can_be)| *can_be);
        weights.sort_by(|(a, ..), (b, ..)| path_order(a, b));
        let (mut groups, mut room) = (Vec::<Vec<String>>::new(), 0);
        for (path, value, _) in weights {
            let sums = bytes_of_sums(&value.aval()?);
            if let Some(group) = groups.last_mut().filter(|_| sums <= room) {
                group.push(path);
                room -= sums;
            } else {
                groups.push(vec![path]);
                room = bytes.saturating_sub(sums);
            }
        }
        Ok(groups)
    }

    /// The parameters that a pattern names, and whether they can be observed.
    fn observable(&self, pattern: &Pattern) -> Result<Vec<(String, Value, bool)>> {
        let mut named = Vec::new();
        for (path, value) in self.values()? {
            let aval = value.aval()?;
            if pattern.names(&self.parts.ties.paths(&path), &aval) {
                let can_be = (2..=3).contains(&aval.shape.len()) && aval.dtype.is_float();
                named.push((path, value, can_be));
            }
        }
        Ok(named)
    }

    /// Observes weights: the first one by `first`, and the others beside it.
    fn observe_by<O, E: Into<Error>>(
        &mut self,
        pattern: &Pattern,
        first: fn(Value) -> Result<Observed>,
        f: impl FnOnce(&mut Self) -> Result<O, E>,
    ) -> Result<Observations> {
        let (mut originals, mut observed) = (Parameters::new(), Vec::<(String, Observed)>::new());
        for (path, value, can_be) in self.observable(pattern)? {
            if can_be || pattern.is_exact() {
                let weight = observed.first().map_or_else(|| first(value.clone()), |(_, other)| other.beside(&value));
                let weight = weight.map_err(|error| error.of_parameter(&path))?;
                observed.push((path.clone(), weight));
                originals.insert(path, value);
            }
        }
        if observed.is_empty() {
            let message = format!("the pattern {pattern} names no weight of the model that can be observed");
            return Err(Error::invalid(message, self.listed()));
        }
        let mut watched =
            Watched { originals, frozen: self.parts.frozen.clone(), halves: self.halves.clone(), model: self };
        let weights = observed.iter().map(|(path, weight)| (path.clone(), Value::from(weight.clone())));
        watched.model.put(weights.collect())?;
        f(watched.model).map_err(Into::into)?;
        watched.give_back()?;
        Ok(Observations::from_observed(observed))
    }

    /// Quantizes as [`quantize`](Self::quantize) does, with codes that `method` chooses by what was seen of each weight:
    /// [`Gptq`](tacit_arrays::Gptq), [`Awq`](tacit_arrays::Awq) or one of your own.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::module::Module;
    /// use mlx_rs::{nn, ops};
    /// use tacit_arrays::Awq;
    /// use tacit_nn::{Model, Rules};
    ///
    /// let layers = nn::Sequential::new().append(nn::Linear::new(64, 64)?).append(nn::Linear::new(64, 64)?);
    /// let mut model = Model::new(layers)?;
    /// let seen = model.observe("*", |model| model.forward(&ops::ones::<f32>(&[2, 64])?))?;
    /// let rules = Rules::new().quantize("layers.0.*", "nf4:64")?.quantize("layers.1.*", "affine:8:64")?;
    /// let model = model.quantize_observed("*", &rules, &seen, &Awq::default())?;
    /// assert_eq!(model.report().rows["layers.0.bias"].after, 64 * 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`quantize`](Self::quantize); a weight that the rules name has no observations, or `method` refuses them.
    /// The model is dropped then.
    pub fn quantize_observed(
        self,
        pattern: impl TryInto<Pattern, Error: Into<Error>>,
        formats: impl IntoRules,
        observations: &Observations,
        method: &dyn Calibrate,
    ) -> Result<Self> {
        self.quantize_by(pattern, formats, &|path: &str, format: &AnyFormat, value: &Value| {
            let observation = observations.get(path)?;
            let weight = value.dense()?;
            method.quantize(format, &weight, observation).map_err(|error| error.of_parameter(path))
        })
    }
}

/// What the products of the inputs of a weight `[n, k]` or `[e, n, k]` take as floats.
fn bytes_of_sums(aval: &Aval) -> usize {
    let [stack @ .., _, k] = &aval.shape[..] else { return 0 };
    stack.iter().fold(4 * (*k as usize).pow(2), |bytes, &matrices| bytes * matrices as usize)
}

/// A model with other weights, until it is dropped.
struct Watched<'m, M: ModuleParameters> {
    model: &'m mut Model<M>,
    originals: Parameters,
    /// What placing a value forgets of a parameter.
    frozen: BTreeSet<String>,
    halves: BTreeMap<String, Dtype>,
}

impl<M: ModuleParameters> Watched<'_, M> {
    fn give_back(&mut self) -> Result<()> {
        self.model.refresh();
        let originals = std::mem::take(&mut self.originals);
        let there =
            originals.into_iter().filter(|(path, _)| self.model.parts.places.find(path).is_some()).collect::<Vec<_>>();
        if !there.is_empty() {
            self.model.put(there)?;
            self.model.parts.frozen = std::mem::take(&mut self.frozen);
            self.model.halves = std::mem::take(&mut self.halves);
        }
        Ok(())
    }
}

impl<M: ModuleParameters> Drop for Watched<'_, M> {
    fn drop(&mut self) {
        // What fails here failed before, when the weights were taken.
        let _ = self.give_back();
    }
}
