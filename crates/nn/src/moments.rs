//! The moments of an optimizer, some of which are implicit arrays, and how a state is saved and restored.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use mlx_rs::error::{IoError, StateProjectionError, UnflattenError};
use mlx_rs::optimizers::{OptimizerState, State};
use mlx_rs::utils::StateProjection;
use mlx_rs::{Array, random};
use tacit_core::{Aval, Error, Result, Value};

use crate::Parameters;
use crate::apollo::SLOTS;
use crate::held::Held;

/// The state of an optimizer that is saved as values and restored from them.
///
/// The states of mlx-rs's optimizers are such, and [`Moments`].
pub trait SavedMoments: OptimizerState {
    /// Each moment by its key, `layers.0.weight.1` for the second of a parameter.
    ///
    /// # Errors
    ///
    /// mlx-rs cannot list the state.
    fn values(&self) -> Result<Parameters>;

    /// The state of these values, none where they are of another kind of state.
    ///
    /// # Errors
    ///
    /// The state holds arrays, and the policy forbids to build one of an implicit value; the moments are those of
    /// [`Apollo`](crate::Apollo), and the state does not project; or mlx-rs cannot list it.
    fn of_values(values: &Parameters) -> Result<Option<Self>>;
}

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
        if values.keys().any(|key| SLOTS.iter().any(|slot| key.ends_with(slot))) {
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
        let found = state.flatten().map_err(unlisted)?;
        let whole = found.iter().map(|(key, _)| &**key).eq(values().map(|(key, _)| key.as_str()));
        Ok(whole.then_some(state))
    }
}

/// What mlx-rs says of a state that it cannot list.
pub(crate) fn unlisted(error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("mlx-rs cannot list the state: {error}"), "give each entry its own key")
}

/// The key of the random key among the moments: no path begins so.
pub(crate) const KEY: &str = "@key";

/// The moments of a [`QuantizedState`](crate::QuantizedState) by their keys, which are those of mlx-rs.
///
/// mlx-rs sees the arrays that they are made of, such as `weight.0.codes`. Those are loaded into moments that there are; a state
/// is made of [`values`](SavedMoments::values).
#[derive(Clone, Debug, Default)]
pub struct Moments {
    pub(crate) held: BTreeMap<Rc<str>, Held>,
}

impl Moments {
    /// The bytes of all arrays.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.held.values().map(Held::nbytes).sum()
    }

    /// The moments of one parameter that are its optimizer's own: what their keys have behind its path, and their values.
    pub(crate) fn of(&self, path: &Rc<str>) -> Result<Vec<(String, Value)>> {
        let behind = |key: &str| {
            let behind = &key[path.len()..];
            let own = behind.is_empty() || behind.strip_prefix('.').is_some_and(|slot| !slot.contains('.'));
            (own && !SLOTS.contains(&behind)).then(|| behind.to_owned())
        };
        let from = self.held.range(path.clone()..).take_while(|(key, _)| key.starts_with(&**path));
        from.filter_map(|(key, held)| Some((behind(key)?, held)))
            .map(|(slot, held)| Ok((slot, held.value()?)))
            .collect()
    }

    /// A random key of its own for each call: one half of the present one, whose other half is kept. The first is made of a seed.
    pub(crate) fn next_key(&mut self, seed: u64) -> Result<Array> {
        let present = match self.held.get(KEY) {
            Some(held) => held.value()?.dense()?,
            None => random::key(seed)?,
        };
        let (kept, next) = random::split(&present, 2)?;
        self.put(KEY.into(), &kept.into())?;
        Ok(next)
    }

    /// The array of this key, if there is one.
    pub(crate) fn array(&self, key: &str) -> Result<Option<Array>> {
        self.held.get(key).map(|held| held.value()?.dense()).transpose()
    }

    pub(crate) fn put(&mut self, key: Rc<str>, value: &Value) -> Result<()> {
        let held = Held::new(&key, value)?;
        self.held.insert(key, held);
        Ok(())
    }
}

impl OptimizerState for Moments {
    type UnflattenError = UnflattenError;

    fn state_projection(&mut self) -> Result<StateProjection<'_>, StateProjectionError> {
        let mut projection = StateProjection::new();
        for leaf in self.held.values_mut().flat_map(|held| &mut held.leaves) {
            projection.required(leaf.path.clone(), &mut leaf.array)?;
        }
        Ok(projection)
    }

    /// Arrays alone do not say what they are the parts of.
    fn unflatten<I, K>(input: I) -> Result<Self, UnflattenError>
    where
        I: IntoIterator<Item = (K, Array)>,
        K: Ord + AsRef<str> + Into<Rc<str>>,
    {
        if input.into_iter().next().is_some() { Err(UnflattenError::InvalidKey) } else { Ok(Self::default()) }
    }

    /// The arrays of moments that there are: no others, and each of its own shape and dtype.
    fn load_safetensors(&mut self, path: impl AsRef<Path>) -> Result<(), IoError> {
        let mut loaded = Array::load_safetensors(path)?;
        let mut new = self.clone();
        for leaf in new.held.values_mut().flat_map(|held| &mut held.leaves) {
            let array = loaded.remove(leaf.path.as_str()).filter(|array| Aval::from(array) == Aval::from(&leaf.array));
            leaf.array = array.ok_or(UnflattenError::InvalidKey)?;
        }
        if !loaded.is_empty() {
            return Err(UnflattenError::InvalidKey.into());
        }
        *self = new;
        Ok(())
    }
}

impl SavedMoments for Moments {
    fn values(&self) -> Result<Parameters> {
        self.held.iter().map(|(key, held)| Ok((key.as_ref().to_owned(), held.value()?))).collect()
    }

    fn of_values(values: &Parameters) -> Result<Option<Self>> {
        let mut moments = Self::default();
        for (key, value) in values {
            moments.put(key.as_str().into(), value)?;
        }
        Ok(Some(moments))
    }
}
