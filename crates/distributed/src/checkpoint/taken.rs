//! Implicit arrays as an index describes them: a structure, and the names of the arrays in it.

use std::collections::BTreeMap;

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tacit_core::store::{self, Arrays};
use tacit_core::{Error, Result, Value};
use tacit_io::{restored, stored};
use tacit_nn::Model;

use crate::layout::StoredSplit;
use crate::placed::check_whole;
use crate::{FullySharded, Sharded};

/// An implicit array without its arrays.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Taken {
    structure: Json,
    /// The names of its arrays.
    pub(super) arrays: Vec<String>,
    /// How it is split where this is one rank's part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) split: Option<StoredSplit>,
}

/// Implicit arrays by their keys.
pub(super) type AllTaken = BTreeMap<String, Taken>;

impl Taken {
    /// The value of this key, and its arrays by name: the key, and that in the value.
    pub(super) fn from_value(key: &str, value: &Value) -> Result<(Self, Arrays)> {
        let (structure, arrays) = store::collect(|| stored(key, value));
        Ok((Self { structure: structure?, arrays: arrays.keys().cloned().collect(), split: None }, arrays))
    }

    /// The value of the arrays that `get` gives by name.
    pub(super) fn value(&self, get: impl Fn(&str) -> Result<Array>) -> Result<Value> {
        let arrays = self.arrays.iter().map(|name| Ok((name.clone(), get(name)?)));
        let arrays = arrays.collect::<Result<Arrays>>()?;
        let value = store::provide(arrays, || restored(&self.structure));
        value.map_err(|(reason, help)| Error::invalid(reason, help))
    }
}

/// The implicit arrays of a model, wherever one may be split: by the paths that they have without a split.
pub(super) fn of_model<M: ModuleParameters>(model: &Model<M>) -> Result<AllTaken> {
    let mut taken = AllTaken::new();
    for (path, value) in model.values()? {
        list(&path, &value, &mut taken)?;
    }
    Ok(taken)
}

fn list(key: &str, value: &Value, all: &mut AllTaken) -> Result<()> {
    let Value::Implicit(array) = value else { return Ok(()) };
    if let Some(split) = value.downcast::<FullySharded>() {
        return list(key, split.local(), all);
    }
    if let Some(split) = value.downcast::<Sharded>() {
        let of = StoredSplit { axis: split.axis(), shape: value.aval()?.shape };
        // What has no stored form is saved leaf by leaf alone, as it is where it is not split.
        if let Ok((taken, _)) = Taken::from_value(key, split.part())
            && split.part().is_implicit()
        {
            all.insert(key.to_owned(), Taken { split: Some(of), ..taken });
        }
        return Ok(());
    }
    if check_whole(value).is_ok()
        && let Ok((taken, _)) = Taken::from_value(key, value)
    {
        all.insert(key.to_owned(), taken);
    }
    array.children().iter().try_for_each(|(name, child)| list(&format!("{key}.{name}"), child, all))
}
