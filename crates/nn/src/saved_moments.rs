//! The states of optimizers as values by the keys of files.

use mlx_rs::Array;
use mlx_rs::optimizers::{OptimizerState, State};
use tacit_core::{Error, Result};

use crate::Parameters;

/// The state of an optimizer that is saved as values and restored from them.
///
/// It is implemented by the states of mlx-rs's optimizers and by [`Moments`](crate::Moments).
pub trait SavedMoments: OptimizerState {
    /// Each moment by its key, `layers.0.weight.1` for the second of a parameter.
    ///
    /// # Errors
    ///
    /// mlx-rs cannot list the state.
    fn values(&self) -> Result<Parameters>;

    /// The state of these values; `None` where they are of another kind of state.
    ///
    /// # Errors
    ///
    /// The state holds arrays, and the policy forbids to build one of an implicit value; the moments are those of
    /// [`Apollo`](crate::Apollo), and the state does not project; or mlx-rs cannot list it.
    fn of_values(values: &Parameters) -> Result<Option<Self>>;
}

/// The key of the random key: no path begins so.
pub(crate) const KEY: &str = "@key";

/// What the key of a seed of projections has behind the path of its parameter.
pub(crate) const DRAW: &str = ".apollo_draw";

/// What the key of the norm of a projected update has behind the path of its parameter.
pub(crate) const NORM: &str = ".apollo_norm";

impl<V: Clone> SavedMoments for State<V>
where
    Self: OptimizerState,
{
    fn values(&self) -> Result<Parameters> {
        let mut state = self.clone();
        let arrays = state.flatten().map_err(unlisted)?;
        Ok(arrays.into_iter().map(|(key, array)| (key.as_ref().to_owned(), array.into())).collect())
    }

    fn of_values(values: &Parameters) -> Result<Option<Self>> {
        /// Stands for a dot in a path.
        const DOT: &str = "\u{1}";
        // A state of one moment takes any key.
        if values.keys().any(|key| key.ends_with(DRAW) || key.ends_with(NORM)) {
            return Err(Error::invalid(
                "the moments are of gradients of a low rank",
                "restore them into a `QuantizedState` with the same `apollo`",
            ));
        }
        // A state of arrays rounds nothing.
        let values = || values.iter().filter(|(key, _)| *key != KEY);
        // What mlx-rs reads back takes a key apart at its dots, of which a path has some too.
        let arrays = values().map(|(key, value)| {
            let key = key.rsplit_once('.').map_or(key.clone(), |(path, slot)| path.replace('.', DOT) + "." + slot);
            Ok((key, value.dense()?))
        });
        let arrays: Vec<(String, Array)> = arrays.collect::<Result<_>>()?;
        let Ok(read) = <Self as OptimizerState>::unflatten(arrays) else { return Ok(None) };
        let mut state: Self = read.into_iter().map(|(path, slot)| (path.replace(DOT, ".").into(), slot)).collect();
        let arrays = state.flatten().map_err(unlisted)?;
        let whole = arrays.iter().map(|(key, _)| &**key).eq(values().map(|(key, _)| key.as_str()));
        Ok(whole.then_some(state))
    }
}

/// What mlx-rs says of a state that it cannot list.
pub(crate) fn unlisted(error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("mlx-rs cannot list the state: {error}"), "give each entry its own key")
}
