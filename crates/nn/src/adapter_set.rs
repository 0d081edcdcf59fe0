//! Several adapters on one model; an array selects the one in use.

use mlx_rs::Array;
use mlx_rs::module::ModuleParameters;
use tacit_arrays::{Adapter, Lora, LoraSet};
use tacit_core::{Error, Result, Value};

use crate::merge::without_adapter;
use crate::within::mapped;
use crate::{Missing, Model, Parameters};

impl<M: ModuleParameters> Model<M> {
    /// Puts several sets of low-rank adapters on the model's own weights, each as [`without_adapters`](Self::without_adapters)
    /// gives it, with none of them in use.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{Array, module::Module, nn, ops};
    /// use tacit_arrays::format::Nf4;
    /// use tacit_nn::{LoraConfig, Model, Parameters};
    ///
    /// let mut model = Model::new(nn::Linear::new(64, 64)?)?.quantize("weight", Nf4 { block: 64, double: true })?;
    /// let trained = |seed| -> tacit_core::Result<Parameters> {
    ///     let config = LoraConfig { seed, ..LoraConfig::default() };
    ///     model.clone().lora("weight", config)?.without_adapters()
    /// };
    /// let sets = [trained(1)?, trained(2)?];
    /// model.adapter_sets(&sets)?;
    /// // The first row of a batch by the second set, the other one by the first.
    /// model.choose_adapters(&Array::from_slice(&[1u32, 0], &[2]))?;
    /// assert_eq!(model.forward(&ops::ones::<f32>(&[2, 64])?)?.shape(), [2, 64]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// There is no set; the sets do not name the same weights, or not all those of sets that are there already, which would be
    /// chosen with them; or an adapter is not a [`Lora`], has another adapter as its base, or does not fit its weight. The model is
    /// then what it was.
    pub fn adapter_sets(&mut self, sets: &[Parameters]) -> Result<()> {
        let Some(first) = sets.first() else {
            return Err(Error::invalid("there is no set of adapters", "give at least one"));
        };
        let mut stacked = Parameters::new();
        for path in first.keys() {
            let value = self.get(path)?;
            let base = without_adapter(&value)?.unwrap_or(value);
            let loras = sets.iter().map(|set| on_base(set.get(path), &base)).collect::<Result<Vec<Lora>>>();
            let none = Array::from_slice(&[sets.len() as u32], &[]);
            let set = loras.and_then(|loras| LoraSet::new(&loras, none)).map_err(|error| error.of_parameter(path))?;
            stacked.insert(path.clone(), set.into());
        }
        if let Some(other) = sets.iter().flat_map(Parameters::keys).find(|path| !stacked.contains_key(*path)) {
            return Err(Error::invalid(
                format!("the first set of adapters has none for {other}, and another one has"),
                "give sets of the same weights",
            ));
        }
        let is_given = |own: &str| self.paths(own).iter().any(|path| stacked.contains_key(*path));
        if let Some((path, _)) = self.values()?.into_iter().find(|(path, value)| has_set(value) && !is_given(path)) {
            return Err(Error::invalid(
                format!("the model has sets of adapters for {path}, and these have none"),
                "take out those that are there by `Model::without_adapters`",
            ));
        }
        self.assign(stacked, Missing::Keep)
    }

    /// Chooses the set of adapters: `u32[]` for all rows, or `u32[n]` for each of `n` equal parts of the rows of a batch.
    ///
    /// Sets are counted from 0; a number that no set has chooses none. The index is a leaf of the model, so that under `compile`
    /// another one takes no retrace. A set may be within another array, such as a weight that is split over ranks: each rank then
    /// chooses.
    ///
    /// # Errors
    ///
    /// The model has no sets of adapters, or the index is neither `u32[]` nor `u32[n]`.
    pub fn choose_adapters(&mut self, index: &Array) -> Result<()> {
        let parameters = self.mapped_parameters(|path, value| {
            // Others are not opened: what is split over ranks would be gathered for it.
            if !has_set(&value) {
                return Ok(None);
            }
            let chosen = mapped(&value, &mut |value| {
                let Some(set) = value.downcast::<LoraSet>() else { return Ok(None) };
                Ok(Some(set.with_index(index.clone())?.into()))
            });
            chosen.map_err(|error| error.of_parameter(path))
        })?;
        if parameters.is_empty() {
            return Err(Error::invalid(
                "the model has no sets of adapters to choose from",
                "put some on it by `Model::adapter_sets`",
            ));
        }
        self.put_all(parameters)
    }
}

/// Whether a value is a set of adapters, or has one within.
fn has_set(value: &Value) -> bool {
    let Value::Implicit(array) = value else { return false };
    value.downcast::<LoraSet>().is_some() || array.children().iter().any(|(_, child)| has_set(child))
}

/// The low-rank sum of a set, on the model's own base.
fn on_base(value: Option<&Value>, base: &Value) -> Result<Lora> {
    let lora = as_lora(value)?;
    let inner = lora.base();
    if without_adapter(inner)?.is_some() {
        return Err(Error::invalid(
            format!("a set of adapters has a `Lora` over {inner}, whose own adapters would be lost"),
            "merge the inner adapters into their bases before the outer one is trained",
        ));
    }
    let moved = Value::from(lora.with_base(base.clone())?);
    as_lora(Some(&moved)).cloned()
}

/// What a set has for a weight, which is to be a `Lora`.
fn as_lora(value: Option<&Value>) -> Result<&Lora> {
    value.and_then(Value::downcast::<Lora>).ok_or_else(|| {
        let found = value.map_or("nothing".to_owned(), Value::to_string);
        Error::invalid(
            format!("a set of adapters has {found} for it"),
            "give a `Lora` for the same weights in each set",
        )
    })
}
