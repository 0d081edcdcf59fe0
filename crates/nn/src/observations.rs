//! Observations of a model's weights, by path.

use std::collections::BTreeMap;

use mlx_rs::Array;
use tacit_arrays::{Observation, Observed};
use tacit_core::{Error, Result};

use crate::lora::seed_of;
use crate::parameters::{of_one, some_of};

/// What the weights of a model were multiplied with, by path: what [`Model::observe`](crate::Model::observe) gives, and
/// [`Model::observe_squares`](crate::Model::observe_squares).
///
/// They can also be made of sums by path, for instance of what other programs saw; where each rank of a group saw a part of the
/// inputs, [`over_ranks`](Self::over_ranks) adds them up:
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::Observation;
/// use tacit_nn::Observations;
///
/// let seen = Observation::from_inputs(&ops::ones::<f32>(&[4, 8])?)?;
/// let both = seen.plus(&seen)?;
/// let observations: Observations = [("layers.0.weight".to_owned(), both)].into_iter().collect();
/// assert_eq!(observations.get("layers.0.weight")?.rows(), [8]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Observations(BTreeMap<String, Seen>);

#[derive(Debug)]
struct Seen {
    /// Whether there was a product.
    met: bool,
    sums: Result<Observation>,
}

impl Observations {
    /// Ends the recordings of these weights.
    pub(crate) fn from_observed(observed: impl IntoIterator<Item = (String, Observed)>) -> Self {
        let seen = |weight: &Observed| Seen { met: weight.met(), sums: weight.finish() };
        Self(observed.into_iter().map(|(path, weight)| (path, seen(&weight))).collect())
    }

    /// What was seen of the weight at `path`, under its own path where others are tied to it.
    ///
    /// # Errors
    ///
    /// The weight was not observed; it met no product, or one that is not along its last axis; or activations were not
    /// finite.
    pub fn get(&self, path: &str) -> Result<&Observation> {
        match self.0.get(path).map(|weight| &weight.sums) {
            Some(Ok(sums)) => Ok(sums),
            Some(Err(error)) => Err(of_one(&format!("the parameter {path}"), error)),
            None => Err(Error::invalid(
                format!("the parameter {path} was not observed"),
                format!(
                    "observe it, or quantize it without observations first; observed are {}",
                    some_of(self.0.keys())
                ),
            )),
        }
    }

    /// What all ranks of a group saw together: `all_sum` adds an array up over them, as `Group::all_sum` does.
    ///
    /// Each rank calls it, with observations of the same weights. A weight that has no sums on one of them, such as one that met no
    /// product there, has none of all: [`get`](Self::get) says so.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{Array, ops};
    /// use tacit_arrays::Observation;
    /// use tacit_nn::Observations;
    ///
    /// let seen = Observation::from_inputs(&ops::ones::<f32>(&[4, 8])?)?;
    /// let own: Observations = [("layers.0.weight".to_owned(), seen)].into_iter().collect();
    /// // Two ranks that saw the same; with a group it is `|sums| group.all_sum(sums)`.
    /// let all = own.over_ranks(|sums: &Array| Ok(sums.add(sums)?))?;
    /// assert_eq!(all.get("layers.0.weight")?.rows(), [8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// An array cannot be added up, or the ranks observed different weights.
    pub fn over_ranks(self, mut all_sum: impl FnMut(&Array) -> Result<Array>) -> Result<Self> {
        // All of them learn first what each has: one that has nothing to add would be waited for, and sums of another weight would be
        // added to these. The first counts the ranks; only of equal numbers is the mean of the squares the square of the mean.
        let paths = i64::from(self.0.keys().fold(0, |seed, path| seed_of(seed, path)) as u16);
        let flags = self.0.values().flat_map(|flags| [flags.met, flags.sums.is_ok()]);
        let told: Vec<i64> = [1, paths, paths * paths].into_iter().chain(flags.map(i64::from)).collect();
        let told = all_sum(&Array::from_slice(&told, &[told.len() as i32]))?;
        let [ranks, paths, squares, flags @ ..] = told.try_as_slice::<i64>()? else { return Err(unlike()) };
        if flags.len() != 2 * self.0.len() || ranks * squares != paths * paths {
            return Err(unlike());
        }
        let mut by_path = BTreeMap::new();
        for ((path, Seen { sums, .. }), &[met, has]) in self.0.into_iter().zip(flags.as_chunks::<2>().0) {
            let sums = match sums {
                Ok(own) if has == *ranks => match own.over_ranks(&mut all_sum) {
                    // Sums beyond `f32` are of this weight, and so on each rank. What else fails is of the group.
                    summed @ (Ok(_) | Err(Error::Invalid { .. })) => summed,
                    Err(error) => return Err(error),
                },
                Ok(_) => Err(Error::invalid(
                    format!("the weight has sums on {has} of {ranks} ranks"),
                    "observe inputs on each rank that reach it, or leave it out",
                )),
                Err(error) => Err(error),
            };
            by_path.insert(path, Seen { met: met > 0, sums });
        }
        Ok(Self(by_path))
    }

    /// Whether the weight at `path` met a product at all, on any rank, as an embedding does not whose rows are only looked up.
    #[must_use]
    pub fn met(&self, path: &str) -> bool {
        self.0.get(path).is_some_and(|seen| seen.met)
    }

    /// The paths of all weights that were observed, those that met nothing included.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

fn unlike() -> Error {
    Error::invalid("other weights were observed on another rank", "observe the same weights on each rank")
}

impl FromIterator<(String, Observation)> for Observations {
    /// Sums of one path are added.
    fn from_iter<I: IntoIterator<Item = (String, Observation)>>(observations: I) -> Self {
        let mut by_path: BTreeMap<String, Seen> = BTreeMap::new();
        for (path, observation) in observations {
            let sums = match by_path.remove(&path) {
                Some(before) => before.sums.and_then(|before| before.plus(&observation)),
                None => Ok(observation),
            };
            by_path.insert(path, Seen { met: true, sums });
        }
        Self(by_path)
    }
}
