//! Low-rank adapters on the parameters of a model.

use mlx_rs::module::ModuleParameters;
use mlx_rs::{Array, ops, random};
use tacit_arrays::format::AnyFormat;
use tacit_arrays::{Adapter, AsStored, Distributed, Dora, Lora, Packed, QaLora};
use tacit_core::{Error, Result, Value};

use crate::filter::BASE;
use crate::parameters::listed;
use crate::within::{has_chosen, with_others};
use crate::{Model, Parameters, Pattern};

/// How a parameter is adapted.
///
/// ```
/// use tacit_nn::{LoraConfig, Method};
///
/// let config = LoraConfig { rank: 8, method: Method::Dora, ..LoraConfig::default() };
/// assert_eq!((config.alpha, config.dropout), (32.0, 0.0));
/// ```
#[derive(Clone, Debug)]
pub struct LoraConfig {
    /// The rank of the change.
    pub rank: usize,
    /// The change is multiplied by `alpha / rank`.
    pub alpha: f32,
    /// The probability with which an input feature is dropped, where [`Model::drop_features`] says so.
    pub dropout: f32,
    /// What is trained.
    pub method: Method,
    /// The format that the weight is trained in, and is merged into without loss: see [`AsStored`].
    pub stored: Option<AnyFormat>,
    /// The seed of the first factor, which also depends on the path.
    pub seed: u64,
}

impl Default for LoraConfig {
    /// Rank 16, `alpha` 32, without dropout.
    fn default() -> Self {
        Self { rank: 16, alpha: 32.0, dropout: 0.0, method: Method::Lora, stored: None, seed: 0 }
    }
}

impl LoraConfig {
    /// The same, trained as this format will store it.
    #[must_use]
    pub fn as_stored(self, format: impl Into<AnyFormat>) -> Self {
        Self { stored: Some(format.into()), ..self }
    }
}

/// What an adapter trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// A sum with the product of two thin factors: [`Lora`].
    #[default]
    Lora,
    /// The same, with the magnitude of each row: [`Dora`].
    Dora,
    /// Biases of the groups of a packed base: [`QaLora`].
    QaLora,
}

impl<M: ModuleParameters> Model<M> {
    /// Adds a low-rank adapter to the matrices that a pattern names; only the adapter is trained.
    ///
    /// The factors are `f32`, and initialized as in PEFT: `a` uniform within `1 / sqrt(in)`, `b` zero, so that the model
    /// computes what it did. What has not two axes or is not float stays as it is; it is an error where the pattern is its path.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{module::Module, nn, ops};
    /// use tacit_arrays::format::Nf4;
    /// use tacit_nn::{LoraConfig, Model, ParameterFilter};
    ///
    /// let mut model = Model::new(nn::Linear::new(64, 64)?)?
    ///     .quantize("weight", Nf4 { block: 64, double: true })?
    ///     .lora("*", LoraConfig { rank: 4, alpha: 8.0, ..LoraConfig::default() })?;
    /// let x = ops::ones::<f32>(&[2, 64])?;
    /// let (_, gradients) = model.value_and_grad(ParameterFilter::Lora, x, |m, x| m.forward(&x)?.square()?.mean(None))?;
    /// assert_eq!(gradients["weight.a"].shape(), [4, 64]);
    /// assert_eq!(gradients.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The pattern names no matrix, or one that is adapted already or does not fit the method. The model is dropped then.
    #[expect(clippy::needless_pass_by_value, reason = "it is written in the call")]
    pub fn lora(mut self, pattern: impl TryInto<Pattern, Error: Into<Error>>, config: LoraConfig) -> Result<Self> {
        let pattern = pattern.try_into().map_err(Into::into)?;
        let mut adapters = Parameters::new();
        for (path, value) in self.values()? {
            let aval = value.aval()?;
            if !pattern.names(&self.paths(&path), &aval) {
                continue;
            }
            let adaptable = aval.dtype.is_float() && aval.shape.len() == 2;
            if !adaptable && !pattern.is_exact() {
                continue;
            }
            let adapted = adapted(&path, value, &config).map_err(|error| error.of_parameter(&path))?;
            adapters.insert(path, adapted);
        }
        if adapters.is_empty() {
            return Err(Error::invalid(format!("{pattern} names no matrix of the model"), listed(self.avals().keys())));
        }
        self.assign(adapters, crate::Missing::Keep)?;
        Ok(self)
    }

    /// Sets the random key, `u32[2]`, by which adapters with dropout drop input features; without a key, and in evaluation
    /// mode (`training_mode(false)`), nothing is dropped.
    ///
    /// A training step draws a key of its own, such as by `mlx_rs::random::split`. The keys are leaves of the model, so that
    /// under `compile` another one takes no retrace. They are of a step, and files do not have them. An adapter may be within
    /// another array, such as a stack of experts.
    ///
    /// # Errors
    ///
    /// It is no key, or an adapter with dropout was split over ranks with its base: each would drop features of its own part.
    pub fn drop_features(&mut self, key: Option<&Array>) -> Result<()> {
        let parameters = self.mapped_parameters(|path, value| {
            dropping(path, &value, key, Around::default()).map_err(|error| error.of_parameter(path))
        })?;
        // The adapters are the same, and so is what the report says of them.
        self.put_all(parameters)
    }

    /// The parameters that are adapters, by path. A weight that was split over ranks with its adapter holds one inside, and does
    /// not count.
    ///
    /// # Errors
    ///
    /// An implicit array refuses its own children.
    pub fn adapters(&self) -> Result<Parameters> {
        self.mapped_parameters(|_, value| Ok(value.family::<dyn Adapter>().is_some().then_some(value)))
    }
}

fn adapted(path: &str, base: Value, config: &LoraConfig) -> Result<Value> {
    if base.family::<dyn Adapter>().is_some() {
        return Err(Error::invalid(format!("{base} is adapted already"), "merge the adapter first, or train that one"));
    }
    let aval = base.aval()?;
    let &[outputs, inputs] = aval.shape.as_slice() else {
        return Err(Error::invalid(format!("{base} is no matrix"), "adapt matrices alone"));
    };
    let Some(rank) = i32::try_from(config.rank).ok().filter(|&rank| rank > 0) else {
        let message = format!("the rank of the adapter is {}", config.rank);
        return Err(Error::invalid(message, "give at least 1 and fewer than 2^31; 16 is the usual choice"));
    };
    let columns = match config.method {
        Method::Lora | Method::Dora => inputs,
        // What has no groups is refused by the array.
        Method::QaLora => {
            base.family::<dyn Packed>().map_or(inputs, |packed| inputs / packed.stored().block.max(1) as i32)
        }
    };
    let bound = 1.0 / (inputs.max(1) as f32).sqrt();
    let key = random::key(seed_of(config.seed, path))?;
    let a = random::uniform::<_, f32>(-bound, bound, &[rank, columns], Some(&key))?;
    let b = ops::zeros::<f32>(&[outputs, rank])?;
    let sum: Value = match config.method {
        Method::Lora => Lora::new(base, a, b, config.alpha)?.into(),
        Method::Dora => Dora::new(base, a, b, config.alpha)?.into(),
        Method::QaLora => QaLora::new(base, a, b, config.alpha)?.into(),
    };
    let sum = if config.dropout == 0.0 { sum } else { with_dropout(&sum, config.dropout, &key)? };
    match &config.stored {
        Some(format) => Ok(AsStored::new(sum, format)?.into()),
        None => Ok(sum),
    }
}

/// The adapter with a probability, of which nothing is dropped yet.
fn with_dropout(sum: &Value, p: f32, key: &Array) -> Result<Value> {
    let dropped: Value = if let Some(lora) = sum.downcast::<Lora>() {
        lora.clone().with_dropout(p, key.clone())?.into()
    } else if let Some(dora) = sum.downcast::<Dora>() {
        dora.clone().with_dropout(p, key.clone())?.into()
    } else {
        return Err(Error::invalid("a change of biases has no dropout", "leave it at 0, or use `Method::Lora`"));
    };
    match dropped.family::<dyn Adapter>() {
        Some(adapter) => Ok(adapter.with_key(None)?.into()),
        None => Ok(dropped),
    }
}

#[derive(Clone, Copy, Default)]
struct Around<'a> {
    /// What lies on several ranks.
    split: Option<&'a Value>,
    /// Whether it is an adapter, of which the value is a part and not the base.
    adapter: bool,
}

/// The value in which adapters with dropout have their parts of a key; nothing where it stays as it is.
fn dropping(path: &str, value: &Value, key: Option<&Array>, around: Around<'_>) -> Result<Option<Value>> {
    let adapter = value.family::<dyn Adapter>().filter(|_| !around.adapter);
    let mut rekeyed: Option<Value> = None;
    if let Some(adapter) = adapter.filter(|adapter| adapter.dropout() > 0.0 && (key.is_some() || has_chosen(value))) {
        if let Some(split) = around.split {
            return Err(Error::invalid(
                format!("{split} was split over ranks with an adapter in it that drops features"),
                "split the base first and adapt it then, or adapt without dropout",
            ));
        }
        // Each adapter has its own part of the key, whichever others there are.
        let key = key.map(|key| Ok::<_, Error>(key.add(random::key(seed_of(0, path))?)?)).transpose()?;
        rekeyed = Some(adapter.with_key(key)?.into());
    }
    let Value::Implicit(array) = rekeyed.as_ref().unwrap_or(value) else { return Ok(None) };
    let split = around.split.or_else(|| array.family::<dyn Distributed>().map(|_| value));
    let is_adapter = adapter.is_some() || around.adapter;
    let rebuilt = with_others(&**array, |name, child| {
        let around = Around { split, adapter: is_adapter && name.field != BASE };
        dropping(&format!("{path}.{name}"), child, key, around)
    })?;
    Ok(rebuilt.or(rekeyed))
}

/// A seed for each path: the 64-bit hash of Fowler, Noll and Vo, from the seed on.
pub(crate) fn seed_of(seed: u64, path: &str) -> u64 {
    path.bytes()
        .fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
