//! Hugging Face's names for llama.cpp's tensors, and llama.cpp's changes of tensors undone.

use mlx_rs::{Array, ops};
use tacit_core::{Error, Result, Value};
use tacit_nn::Parameters;

use super::architecture::Architecture;
use super::tensor::{Change, Tensor};
use super::{Gguf, GgufValue, heads};

/// What rotary frequencies are divided by: it is a part of the configuration and not a parameter.
pub(super) const ROPE: &str = "rope_freqs.weight";
/// What they are divided by in long texts, and in short ones.
pub(super) const ROPE_OF_LENGTHS: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];

const ARCHITECTURE: &str = "general.architecture";

/// The beginning of the names in a layer, in the file and in Hugging Face's models.
pub(super) const LAYERS: [&str; 2] = ["blk.", "model.layers."];

pub(super) fn in_layer<'n>(name: &'n str, layers: &str) -> Option<(&'n str, &'n str)> {
    name.strip_prefix(layers)?.split_once('.').filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A tensor of an architecture, and Hugging Face's name for it.
fn known(architecture: &Architecture, name: &str) -> Option<(&'static Tensor, String)> {
    let layer = in_layer(name, LAYERS[0]);
    let (tensor, rest) = architecture.tensor(layer.is_some(), layer.map_or(name, |(_, name)| name))?;
    let renamed = match layer {
        Some((number, _)) => format!("{}{number}.{}{rest}", LAYERS[1], tensor.1),
        None => format!("{}{rest}", tensor.1),
    };
    Some((tensor, renamed))
}

impl Gguf {
    /// All tensors by the names that Hugging Face's models have for them, of the architectures `llama`, `qwen2`, `qwen3`,
    /// `qwen3moe`, `qwen3next`, `gemma`, `gemma2`, `gemma3`, `phi3`, `olmo2`, `granite` and `smollm3`.
    ///
    /// What llama.cpp changes is undone: rows of queries and keys are put in their old order, and 1 is taken from the gains of
    /// a Gemma. The experts of a layer are one array, and a `qwen3next` is as mlx-lm has it: see
    /// [`layout`](crate::layout). `rope_freqs.weight`, which is no parameter, is left
    /// out: [`configuration`](Self::configuration) has it.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get); the architecture is another one, or a tensor has no name there.
    pub fn hugging_face(&self) -> Result<Parameters> {
        let architecture = self.architecture()?;
        let mut parameters = Parameters::new();
        for name in self.names().filter(|&name| name != ROPE) {
            if let Some((renamed, value)) = self.parameter(architecture, name)? {
                parameters.insert(renamed, value);
            }
        }
        Ok(parameters)
    }

    /// All tensors by the names of [`hugging_face`](Self::hugging_face) if the model is known and each has one there, and else by
    /// their own, as those of an adapter.
    pub(crate) fn read(&self) -> Result<Parameters> {
        let is_named =
            |architecture: &Architecture| self.names().all(|name| name == ROPE || known(architecture, name).is_some());
        let has_heads = self.architecture_key("attention.head_count").is_ok_and(|key| self.has(&key));
        let is_read = has_heads && self.is_known() && self.architecture().is_ok_and(is_named);
        if is_read { self.hugging_face() } else { self.parameters() }
    }

    /// Whether the file's model is one that [`hugging_face`](Self::hugging_face) and [`configuration`](Self::configuration) know:
    /// models that are not read have the name of its architecture as well.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.check_model().is_ok()
    }

    pub(super) fn architecture(&self) -> Result<&'static Architecture> {
        let said = self.metadata(ARCHITECTURE)?;
        let known = if let GgufValue::Text(name) = &said {
            let experts = self.value(&format!("{name}.expert_count"))?;
            Architecture::named(name, experts.and_then(|count| count.number()).is_some_and(|count| count > 0.0))
        } else {
            None
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let shown = self.shown(ARCHITECTURE)?;
        let reason = format!("it is {shown}, and the names of {} are known", Architecture::names());
        Err(self.wrong(ARCHITECTURE, reason, "take `parameters`, whose names are those of the file"))
    }

    /// The parameter that a tensor is, with its name; nothing for a tensor that is a part of another one's.
    fn parameter(&self, architecture: &Architecture, name: &str) -> Result<Option<(String, Value)>> {
        let Some((tensor, renamed)) = known(architecture, name) else {
            let help = "take `parameters`, with the names of the file";
            return Err(self.wrong(name, "it is no tensor of this architecture", help));
        };
        let mut value = match tensor.2 {
            Change::NetGate => return Ok(None),
            Change::Queries | Change::Keys => self.gathered(&[name], Some(&self.order(name, tensor.2)?))?,
            Change::Net => {
                let gate = name.replacen("attn_qkv", "attn_gate", 1);
                let rows = self.rows(name)? + self.rows(&gate)?;
                let [heads, key] = [self.count("ssm.group_count")?, self.count("ssm.state_size")?];
                let order = heads::net_order(rows, heads, key).ok_or_else(|| self.not_of_heads(name, rows, heads))?;
                self.gathered(&[name, &gate], Some(&order))?
            }
            Change::Same | Change::Row | Change::Filter | Change::NegativeLogarithm => self.get(name)?,
        };
        if let Some(array) = self.changed(architecture, name, tensor.2, &value)? {
            value = array.into();
        }
        Ok(Some((renamed, value)))
    }

    /// What is computed of a dense tensor.
    fn changed(&self, of: &Architecture, name: &str, change: Change, value: &Value) -> Result<Option<Array>> {
        let dense = || {
            let help = "convert the model again: llama.cpp leaves such tensors as floats";
            value.as_dense().ok_or_else(|| self.wrong(name, format!("it is {value}, and not dense"), help))
        };
        Ok(match change {
            Change::Row => Some(dense()?.reshape(&[1, -1])?),
            Change::Filter => Some(dense()?.expand_dims(-1)?),
            Change::NegativeLogarithm => Some(ops::log(dense()?.negative()?)?),
            _ if of.gains_plus_one && name.ends_with("norm.weight") => {
                let gain = dense()?;
                Some(gain.subtract(Array::from_f32(1.0).as_dtype(gain.dtype())?)?)
            }
            _ => None,
        })
    }

    /// The row of the file that each row of queries or keys is.
    fn order(&self, name: &str, change: Change) -> Result<Vec<u32>> {
        let (queries, keys) = ("attention.head_count", "attention.head_count_kv");
        let key = if change == Change::Keys && self.has(&self.architecture_key(keys)?) { keys } else { queries };
        let (rows, heads) = (self.rows(name)?, self.count(key)?);
        heads::order(rows, heads).ok_or_else(|| self.not_of_heads(name, rows, heads))
    }

    fn not_of_heads(&self, name: &str, rows: usize, heads: usize) -> Error {
        let reason = format!("its {rows} rows are not those of {heads} heads");
        self.wrong(name, reason, "the metadata are those of another model: convert it again")
    }

    fn rows(&self, name: &str) -> Result<usize> {
        match &self.stored(name)?.shape[..] {
            // Rows of nothing take no bytes, however many there are said to be.
            shape @ [rows, ..] if !shape.contains(&0) => Ok(*rows as usize),
            _ => {
                Err(self.wrong(name, "it has no elements", "the metadata are those of another model: convert it again"))
            }
        }
    }

    /// A number of the architecture, as the configuration has it: a list of one number again and again is that number.
    fn count(&self, key: &str) -> Result<usize> {
        let key = self.architecture_key(key)?;
        if let Some(count) = self.value(&key)?.and_then(|value| value.integer()) {
            return Ok(count);
        }
        let shown = self.shown(&key)?;
        Err(self.wrong(&key, format!("it is {shown}, and must be one number"), "convert the model again"))
    }

    /// An error about a key of the [`configuration`](Self::configuration) or a parameter of
    /// [`hugging_face`](Self::hugging_face), with the file's own name for it.
    #[must_use]
    pub fn in_own_names(&self, error: Error) -> Error {
        let Error::Checkpoint { file, key: Some(key), reason, help } = error else { return error };
        let named = (file == self.path()).then(|| self.own_name(&key)).flatten();
        // A configuration of its own the file has not.
        let fetch =
            |help: String| if help.starts_with("fetch") { "fetch or convert the model again".to_owned() } else { help };
        let help = if named.is_some() { help.map(fetch) } else { help };
        Error::Checkpoint { file, key: named.or(Some(key)), reason, help }
    }

    /// The file's own name for a parameter of [`hugging_face`](Self::hugging_face), or for a key of the
    /// [`configuration`](Self::configuration).
    #[must_use]
    pub fn own_name(&self, key: &str) -> Option<String> {
        let architecture = self.architecture().ok()?;
        if let Some(own) = architecture.key(key) {
            return self.architecture_key(own).ok();
        }
        let layer = in_layer(key, LAYERS[1]);
        let (tensor, rest) = architecture.parameter(layer.is_some(), layer.map_or(key, |(_, name)| name))?;
        Some(match layer {
            Some((number, _)) => format!("{}{number}.{}{rest}", LAYERS[0], tensor.0),
            None => format!("{}{rest}", tensor.0),
        })
    }
}
