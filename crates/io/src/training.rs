//! What a training run needs to go on where it was.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use mlx_rs::optimizers::Optimizer;
use mlx_rs::random::RandomState;
use serde::{Deserialize, Serialize};
use tacit_core::store::Arrays;
use tacit_core::{Error, Result, Value};
use tacit_nn::{LeafKinds, Missing, Model, ParameterFilter, Parameters, SavedMoments};

use crate::checkpoint::{metadata, values};
use crate::structure::{DAMAGED, Structure, put_together, take_apart};
use crate::tensors::Tensors;
use crate::write::write_with;
use crate::writer::Writing;

/// All of a training run that goes into one file: the step, the model or what is trained of it, the state of the optimizer,
/// the random state, and notes such as the text of rules.
///
/// The file is written as [`save`](crate::save()) writes one, so that a run that is killed at any moment finds the whole
/// state of a step. Of a whole model, [`load`](crate::load()) reads the values alone from it.
///
/// ```
/// use mlx_rs::nn;
/// use mlx_rs::optimizers::AdamW;
/// use mlx_rs::random::RandomState;
/// use tacit_io::Training;
/// use tacit_nn::{Model, ParameterFilter};
///
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-training-{}.safetensors", std::process::id()));
/// let mut model = Model::new(nn::Linear::new(64, 64)?)?;
/// let (mut adamw, mut random) = (AdamW::new(1e-3), RandomState::with_seed(1)?);
/// // .. after step 10 ..
/// Training::new(10)
///     .with_model(&model, &ParameterFilter::All)?
///     .with_optimizer(&adamw)?
///     .with_random(&random)
///     .with_note("rules", "*.weight = nf4:64")
///     .save(&path)?;
///
/// // .. in another process ..
/// let run = Training::load(&path)?;
/// run.restore_model(&mut model)?;
/// run.restore_optimizer(&mut adamw)?;
/// random = run.random()?;
/// assert_eq!(run.step, 10);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Training {
    /// The number of steps that were made.
    pub step: u64,
    /// The values of the model, where it is saved as a whole.
    pub parameters: Parameters,
    /// Other states: their arrays by the name of the state and by key.
    pub states: BTreeMap<String, Arrays>,
    /// Texts by name, such as rules or the place in the data.
    pub notes: BTreeMap<String, String>,
    /// What the leaves of the model mean, where some of them were saved.
    pub kinds: Option<LeafKinds>,
    /// The kind of the optimizer whose state there is, by the name of its type.
    pub optimizer: Option<String>,
    /// The moments of the optimizer that are implicit arrays, by key.
    pub moments: Parameters,
}

const OPTIMIZER: &str = "optimizer";
const RANDOM: &str = "random";
const LEAVES: &str = "leaves";
const KEY: &str = "key";

/// Where the values of the model are in the file.
const MODEL: &str = "model";

/// Where the arrays of implicit moments are in the file.
const MOMENTS: &str = "moments";

pub(crate) const TRAINING_KEY: &str = "tacit.training";

/// What the metadata say of a run.
#[derive(Serialize, Deserialize)]
struct Run {
    step: u64,
    /// The keys of each state's arrays.
    states: BTreeMap<String, Vec<String>>,
    notes: BTreeMap<String, String>,
    optimizer: Option<String>,
    /// Nothing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kinds: Option<LeafKinds>,
    /// What each implicit moment is made of; nothing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Structure::is_empty")]
    moments: Structure,
}

impl Training {
    /// A run that has made so many steps.
    #[must_use]
    pub fn new(step: u64) -> Self {
        Self { step, ..Self::default() }
    }

    /// Adds a whole model, or some of its leaves, such as those that are trained.
    ///
    /// What is added later counts: a whole model takes the place of all that was added of one, and leaves are beside those that
    /// were. So a run may be used again for a later step; of a model that was changed in between take a new one, or all of it.
    ///
    /// # Errors
    ///
    /// The model has no leaf of this part; or leaves that were added before could not be restored into it, since it has lost them or
    /// they are of another kind now.
    pub fn with_model<M: ModuleParameters>(mut self, model: &Model<M>, only: &ParameterFilter) -> Result<Self> {
        if matches!(only, ParameterFilter::All) {
            self.parameters = model.values()?;
            // They would be put over the values when these are restored.
            self.states.remove(LEAVES);
            self.kinds = None;
            return Ok(self);
        }
        let (added, kinds) = (leaves(model, only)?, model.leaf_kinds(only)?);
        let mut leaves = self.states.remove(LEAVES).unwrap_or_default();
        self.kinds = Some(if let Some(known) = self.kinds.take() {
            let kinds = known.with(kinds);
            model.check_leaves(&kinds)?;
            kinds
        } else {
            // Of leaves of earlier versions nobody knows what they mean.
            leaves.clear();
            kinds
        });
        leaves.extend(added);
        self.states.insert(LEAVES.to_owned(), leaves);
        Ok(self)
    }

    /// Adds the state of an optimizer: its moments, without its settings such as the learning rate.
    ///
    /// # Errors
    ///
    /// mlx-rs cannot list the state.
    pub fn with_optimizer<O: Optimizer<State: SavedMoments>>(mut self, optimizer: &O) -> Result<Self> {
        let values = optimizer.state().values()?;
        let dense = values.iter().filter_map(|(key, value)| Some((key.clone(), value.as_dense()?.clone())));
        self.states.insert(OPTIMIZER.to_owned(), dense.collect());
        self.moments = values.into_iter().filter(|(_, value)| value.is_implicit()).collect();
        self.optimizer = Some(short_name::<O>());
        Ok(self)
    }

    /// Adds a random state.
    #[must_use]
    pub fn with_random(mut self, random: &RandomState) -> Self {
        let key = Arrays::from([(KEY.to_owned(), random.as_array().clone())]);
        self.states.insert(RANDOM.to_owned(), key);
        self
    }

    /// Adds a note.
    #[must_use]
    pub fn with_note(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.notes.insert(name.into(), text.into());
        self
    }

    /// Saves the run in one file; the old file stays until the new one is complete and on the disk.
    ///
    /// # Errors
    ///
    /// As for [`save`](crate::save()); the old file is then untouched.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.save_with(path, Writing::default())
    }

    /// Saves as [`save`](Self::save) does, with options: several files, progress.
    ///
    /// # Errors
    ///
    /// As for [`save`](Self::save).
    pub fn save_with(&self, path: impl AsRef<Path>, writing: Writing<'_>) -> Result<()> {
        let path = path.as_ref();
        if let Some((name, of)) =
            [(MODEL, "values"), (MOMENTS, "moments")].iter().find(|(name, _)| self.states.contains_key(*name))
        {
            return Err(Error::invalid(format!("a state is named {name}, as the {of} are"), "give it another name"));
        }
        let (structure, arrays) = take_apart(&self.parameters, Some(MODEL))?;
        let (moments, arrays_of_moments) = take_apart(&self.moments, Some(MOMENTS))?;
        let mut tensors: Vec<(String, Array)> = arrays.into_iter().chain(arrays_of_moments).collect();
        let mut states = BTreeMap::new();
        for (name, arrays) in &self.states {
            tensors.extend(arrays.iter().map(|(key, array)| (tensor(name, key), array.clone())));
            states.insert(name.clone(), arrays.keys().cloned().collect());
        }
        let (notes, optimizer, kinds) = (self.notes.clone(), self.optimizer.clone(), self.kinds.clone());
        let run = Run { step: self.step, states, notes, optimizer, kinds, moments };
        let run = serde_json::to_string(&run).map_err(|error| Error::file("write", path)(error.into()))?;
        let mut metadata = metadata(&structure);
        metadata.insert(TRAINING_KEY.to_owned(), run);
        write_with(path, tensors, &metadata, writing)
    }

    /// Loads a run.
    ///
    /// # Errors
    ///
    /// As for [`load`](crate::load()), or the file has only the values of a model.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_tensors(&Tensors::open(path)?)
    }

    /// The run of a file.
    pub(crate) fn from_tensors(tensors: &Tensors) -> Result<Self> {
        let parameters = values(tensors)?;
        let help = "read the values alone with `load`";
        let run = tensors.metadata().get(TRAINING_KEY);
        let run = run.ok_or_else(|| tensors.wrong(None, "it has no state of a training run", help))?;
        let Run { step, states, notes, optimizer, kinds, moments } = serde_json::from_str(run).map_err(|error| {
            tensors.wrong(None, format!("its state of a training run cannot be read: {error}"), DAMAGED)
        })?;
        let arrays = |(name, keys): (String, Vec<String>)| {
            let array = |key: String| Ok((key.clone(), tensors.get(&tensor(&name, &key))?));
            Ok((name.clone(), keys.into_iter().map(array).collect::<Result<Arrays>>()?))
        };
        let states = states.into_iter().map(arrays).collect::<Result<_>>()?;
        let moments = put_together(tensors, moments)?;
        Ok(Self { step, parameters, states, notes, kinds, optimizer, moments })
    }

    /// Loads the saved values or leaves into a model.
    ///
    /// # Errors
    ///
    /// No model was saved; or it has not the same parameters or leaves, or they have other shapes, or are of adapters of
    /// another kind or scale. The model is then what it was.
    pub fn restore_model<M: ModuleParameters>(&self, model: &mut Model<M>) -> Result<()> {
        match self.states.get(LEAVES) {
            None if self.parameters.is_empty() => {
                Err(Error::invalid("no model was saved with the run", "save it with `Training::with_model`"))
            }
            None => model.assign(self.parameters.clone(), Missing::Refuse),
            Some(leaves) if self.parameters.is_empty() => model.load_leaves(leaves.clone(), self.kinds.as_ref()),
            Some(leaves) => {
                // All of the model, and leaves that were saved later.
                model.transaction(|model| {
                    model.assign(self.parameters.clone(), Missing::Refuse)?;
                    model.load_leaves(leaves.clone(), self.kinds.as_ref())
                })
            }
        }
    }

    /// Loads the saved state into an optimizer.
    ///
    /// Moments that were saved in few bits are restored into a [`QuantizedState`](tacit_nn::QuantizedState) as they are, and so are
    /// floats, which its next step quantizes. An optimizer of floats takes what the codes stand for.
    ///
    /// # Errors
    ///
    /// No optimizer was saved, or one of another kind, or the policy forbids to build what codes stand for; the optimizer is then as
    /// it was.
    pub fn restore_optimizer<O: Optimizer<State: SavedMoments>>(&self, optimizer: &mut O) -> Result<()> {
        let saved = self.state(OPTIMIZER)?;
        let of_another_kind = || {
            let (of, own) = (self.optimizer.as_deref().unwrap_or("another kind"), short_name::<O>());
            Error::invalid(format!("the saved state is that of {of}, not of {own}"), "use the kind that was saved")
        };
        if self.optimizer.as_ref().is_some_and(|kind| *kind != short_name::<O>()) {
            return Err(of_another_kind());
        }
        let dense = saved.iter().map(|(key, array)| (key.clone(), Value::from(array)));
        let values = dense.chain(self.moments.clone()).collect();
        let state = SavedMoments::of_values(&values)?.ok_or_else(of_another_kind)?;
        *optimizer.state_mut() = state;
        Ok(())
    }

    /// The random state that was saved.
    ///
    /// # Errors
    ///
    /// None was saved.
    pub fn random(&self) -> Result<RandomState> {
        let key = self.state(RANDOM)?.get(KEY);
        let key =
            key.ok_or_else(|| Error::invalid("the random state has no key", "save it with `Training::with_random`"))?;
        Ok(RandomState::from_key(key.clone()))
    }

    fn state(&self, name: &str) -> Result<&Arrays> {
        self.states.get(name).ok_or_else(|| {
            let saved: Vec<&str> = self.states.keys().map(String::as_str).collect();
            let saved = if saved.is_empty() { "none at all".to_owned() } else { saved.join(", ") };
            let help = format!(
                "add it by `Training::with_{name}` before the run is saved; the states that were saved: {saved}"
            );
            Error::invalid(format!("the run was saved without its {name} state"), help)
        })
    }
}

/// The leaves of a part, of which there must be some.
pub(crate) fn leaves<M: ModuleParameters>(model: &Model<M>, only: &ParameterFilter) -> Result<Vec<(String, Array)>> {
    let leaves: Vec<(String, Array)> =
        model.lasting_leaves(only).into_iter().map(|(path, array)| (path, array.clone())).collect();
    if leaves.is_empty() {
        let message = format!("the model has no leaf to save in {only:?}");
        return Err(Error::invalid(message, "save another part, or `ParameterFilter::All`"));
    }
    Ok(leaves)
}

/// The name of a type without its path.
fn short_name<T>() -> String {
    let name = std::any::type_name::<T>();
    // What a `Stateful` holds is of the kind of what it holds.
    name.rsplit("::").next().unwrap_or(name).trim_end_matches('>').to_owned()
}

/// The tensor of a state's array.
fn tensor(state: &str, key: &str) -> String {
    format!("{state}.{key}")
}
