//! The moments of an optimizer by parameter, some of which are implicit arrays.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::Path;
use std::rc::Rc;

use mlx_rs::error::{IoError, StateProjectionError, UnflattenError};
use mlx_rs::optimizers::{Optimizer, OptimizerState};
use mlx_rs::utils::StateProjection;
use mlx_rs::{Array, random};
use tacit_core::{Aval, Result, Value};

use crate::Parameters;
use crate::apollo::Kept;
use crate::array_leaves::{ArrayLeaf, ArrayLeaves};
use crate::saved_moments::{DRAW, KEY, NORM, SavedMoments};

/// The moments of a [`QuantizedState`](crate::QuantizedState), whose optimizer is `O`.
///
/// mlx-rs sees the arrays that they are made of, such as `weight.0.codes`, and loads such arrays into moments that exist. New moments
/// are made by [`of_values`](SavedMoments::of_values).
#[derive(Debug)]
pub struct Moments<O> {
    /// The key by which moments are rounded at random; there is none until one is.
    pub(crate) key: Option<ArrayLeaves>,
    parameters: BTreeMap<Rc<str>, Record>,
    optimizer: PhantomData<O>,
}

/// What is held of one parameter.
#[derive(Clone, Debug, Default)]
struct Record {
    /// The optimizer's own moments, by their names.
    moments: BTreeMap<String, ArrayLeaves>,
    /// What is [`Kept`] of it, where its gradients are projected.
    draw: Option<ArrayLeaves>,
    norm: Option<ArrayLeaves>,
}

/// The key that mlx-rs gives a moment: the path of its parameter and its name, which is empty where there is one moment.
pub(crate) fn key_of(path: &str, name: &str) -> String {
    if name.is_empty() { path.to_owned() } else { format!("{path}.{name}") }
}

impl<O> Moments<O> {
    /// The bytes of all arrays.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.arrays().map(ArrayLeaves::nbytes).sum()
    }

    /// All that is held, the random key first.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &ArrayLeaves> {
        let records = self.parameters.values();
        self.key.iter().chain(records.flat_map(|one| one.moments.values().chain(&one.draw).chain(&one.norm)))
    }

    pub(crate) fn leaves_mut(&mut self) -> impl Iterator<Item = &mut ArrayLeaf> {
        let records = self.parameters.values_mut();
        let of_one = records.flat_map(|one| one.moments.values_mut().chain(&mut one.draw).chain(&mut one.norm));
        self.key.iter_mut().chain(of_one).flat_map(|moment| &mut moment.leaves)
    }

    /// The optimizer's own moments of a parameter, by their names.
    pub(crate) fn of(&self, path: &str) -> impl Iterator<Item = (&String, &ArrayLeaves)> {
        self.parameters.get(path).into_iter().flat_map(|record| &record.moments)
    }

    pub(crate) fn put(&mut self, path: &Rc<str>, name: &str, value: &Value) -> Result<()> {
        let leaves = ArrayLeaves::new(&key_of(path, name), value)?;
        self.record(path.clone()).moments.insert(name.to_owned(), leaves);
        Ok(())
    }

    /// What the latest step with a projected gradient left of a parameter.
    pub(crate) fn kept(&self, path: &str) -> Result<Option<Kept>> {
        let Some(Record { draw: Some(draw), norm: Some(norm), .. }) = self.parameters.get(path) else {
            return Ok(None);
        };
        Ok(Some(Kept { draw: draw.value()?.dense()?, norm: norm.value()?.dense()? }))
    }

    pub(crate) fn keep(&mut self, path: &Rc<str>, Kept { draw, norm }: Kept) -> Result<()> {
        let record = self.record(path.clone());
        record.draw = Some(ArrayLeaves::new(&format!("{path}{DRAW}"), &draw.into())?);
        record.norm = Some(ArrayLeaves::new(&format!("{path}{NORM}"), &norm.into())?);
        Ok(())
    }

    /// A random key of its own for each call: one half of the present one, whose other half is kept. The first is made of a seed.
    pub(crate) fn next_key(&mut self, seed: u64) -> Result<Array> {
        let present = match &self.key {
            Some(held) => held.value()?.dense()?,
            None => random::key(seed)?,
        };
        let (stored, next) = random::split(&present, 2)?;
        self.key = Some(ArrayLeaves::new(KEY, &stored.into())?);
        Ok(next)
    }

    fn record(&mut self, path: Rc<str>) -> &mut Record {
        self.parameters.entry(path).or_default()
    }
}

impl<O: Optimizer> Moments<O> {
    /// The path of a parameter and the name of a moment, of the key that mlx-rs gives it.
    ///
    /// A path has dots as well, and may end as a name does: the kind of the optimizer says what the key is.
    pub(crate) fn split(key: &str) -> (&str, &str) {
        let one = O::State::unflatten([(KEY, Array::from_f32(0.0))]);
        let is_one = one.is_ok_and(|mut state| state.flatten().is_ok_and(|listed| listed.len() == 1));
        if is_one { (key, "") } else { key.rsplit_once('.').unwrap_or((key, "")) }
    }
}

impl<O> Clone for Moments<O> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), parameters: self.parameters.clone(), optimizer: PhantomData }
    }
}

impl<O> Default for Moments<O> {
    fn default() -> Self {
        Self { key: None, parameters: BTreeMap::new(), optimizer: PhantomData }
    }
}

impl<O> OptimizerState for Moments<O> {
    type UnflattenError = UnflattenError;

    fn state_projection(&mut self) -> Result<StateProjection<'_>, StateProjectionError> {
        let mut projection = StateProjection::new();
        for leaf in self.leaves_mut() {
            projection.required(leaf.path.clone(), &mut leaf.array)?;
        }
        Ok(projection)
    }

    /// Arrays alone do not say what they are the parts of.
    fn unflatten<I: IntoIterator<Item = (K, Array)>, K: Ord + AsRef<str> + Into<Rc<str>>>(
        input: I,
    ) -> Result<Self, UnflattenError> {
        if input.into_iter().next().is_some() { Err(UnflattenError::InvalidKey) } else { Ok(Self::default()) }
    }

    /// The arrays of moments that there are: no others, and each of its own shape and dtype.
    fn load_safetensors(&mut self, path: impl AsRef<Path>) -> Result<(), IoError> {
        let mut loaded = Array::load_safetensors(path)?;
        let mut new = self.clone();
        for leaf in new.leaves_mut() {
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

impl<O: Optimizer> SavedMoments for Moments<O> {
    fn values(&self) -> Result<Parameters> {
        self.arrays().map(|moment| Ok((moment.path.clone(), moment.value()?))).collect()
    }

    fn of_values(values: &Parameters) -> Result<Option<Self>> {
        let mut moments = Self::default();
        for (key, value) in values {
            let leaves = ArrayLeaves::new(key, value)?;
            if key == KEY {
                moments.key = Some(leaves);
            } else if let Some(path) = key.strip_suffix(DRAW) {
                moments.record(path.into()).draw = Some(leaves);
            } else if let Some(path) = key.strip_suffix(NORM) {
                moments.record(path.into()).norm = Some(leaves);
            } else {
                let (path, name) = Self::split(key);
                moments.record(path.into()).moments.insert(name.to_owned(), leaves);
            }
        }
        Ok(Some(moments))
    }
}
