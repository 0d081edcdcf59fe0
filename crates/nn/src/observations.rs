//! What was seen of a model's weights.

use std::collections::BTreeMap;

use tacit_arrays::{Observation, Observed};
use tacit_core::{Error, Result};

use crate::parameters::{of_one, some_of};

/// What the weights of a model were multiplied with, by path: what [`Model::observe`](crate::Model::observe) gives.
///
/// They can also be made of sums by path, for instance where each rank of a group saw a part of the inputs:
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::ops;
/// use tacit_arrays::Observation;
/// use tacit_nn::Observations;
///
/// let seen = Observation::of(&ops::ones::<f32>(&[4, 8])?)?;
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
    pub(crate) fn of(observed: impl IntoIterator<Item = (String, Observed)>) -> Self {
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
        match self.0.get(path).map(|seen| &seen.sums) {
            Some(Ok(seen)) => Ok(seen),
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

    /// Whether the weight at `path` met a product at all, as an embedding does not whose rows are only looked up.
    #[must_use]
    pub fn met(&self, path: &str) -> bool {
        self.0.get(path).is_some_and(|seen| seen.met)
    }

    /// The paths of all weights that were observed, those that met nothing included.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl FromIterator<(String, Observation)> for Observations {
    /// Sums of one path are added.
    fn from_iter<I: IntoIterator<Item = (String, Observation)>>(seen: I) -> Self {
        let mut all: BTreeMap<String, Seen> = BTreeMap::new();
        for (path, seen) in seen {
            let sums = match all.remove(&path) {
                Some(before) => before.sums.and_then(|before| before.plus(&seen)),
                None => Ok(seen),
            };
            all.insert(path, Seen { met: true, sums });
        }
        Self(all)
    }
}
