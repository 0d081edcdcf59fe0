//! A model as one file: parameters by Hugging Face's names become llama.cpp's tensors, changed as it changes them.

use std::borrow::Borrow;
use std::path::Path;
use std::rc::Rc;

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::Adapter;
use tacit_core::{Error, Result, Value};
use tacit_nn::Parameters;

use super::architecture::Head;
use super::container::{Described, Entries, write};
use super::cursor::Cursor;
use super::description::{ANOTHER, Description};
use super::encoded::Encoded;
use super::header::MOST_DIMENSIONS;
use super::kind::GgufType;
use super::names::{LAYERS, ROPE, in_layer};
use super::rounded::{ROUNDED, names};
use super::tensor::Change;
use super::vocabulary::Tokenizer;
use super::{Gguf, heads, metadata};
use crate::json::Json;
use crate::layout::{EMBEDDING, HEAD};
use crate::unconfigured::unconfigured;
use crate::{layout, positions_once};

/// What stands beside the tensors of a model.
pub(crate) struct Beside<'b> {
    /// The folder, for messages.
    pub(crate) folder: &'b Path,
    /// The file that the model was read from, whose metadata are the new one's as they are.
    pub(crate) source: Option<&'b Gguf>,
    pub(crate) config: Option<&'b Json>,
    pub(crate) tokenizer: Option<Tokenizer>,
}

/// What is known of a tensor before it is written.
struct Tensor {
    described: Described,
    /// The parameter, and of its rows those that are the tensor's.
    encoded: Rc<Encoded>,
    rows: Option<Vec<u32>>,
}

const SMALL: [&str; 4] = ["ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_conv1d", "ssm_a"];

/// A file as it will be, as far as that is known before the numbers of its tensors are.
pub(crate) struct Planned {
    entries: Entries,
    tensors: Vec<Tensor>,
    quantized: usize,
}

/// A file of parameters. What no type of GGUF has, and floats, become `others`, where one is given.
pub(crate) fn planned(
    path: &Path,
    parameters: impl Borrow<Parameters>,
    beside: &Beside<'_>,
    others: Option<GgufType>,
) -> Result<Planned> {
    if let Some(kind) = others.filter(|kind| !ROUNDED.contains(&&*kind.name().to_ascii_lowercase())) {
        return Err(Error::invalid(format!("there is no quantizing to {kind}"), format!("take one of {}", names())));
    }
    // Those that are given away go as they are written.
    let values = parameters.borrow().clone();
    drop(parameters);
    // By the names of its file.
    let unnamed = beside.source.filter(|source| source.names().any(|name| name != ROPE && values.contains_key(name)));
    let config = beside.config.map(positions_once);
    let description = match (unnamed, config.as_deref()) {
        (Some(_), _) => None,
        (None, Some(config)) => Some(Description::new(beside.folder, config)?),
        (None, None) => return Err(unconfigured(path, beside.folder)),
    };
    let mut plan = Plan { path, others, widens: description.is_some(), quantized: 0, tensors: Vec::new() };
    match &description {
        Some(description) => {
            let mut parameters = layout::as_mlx_lm(path, values)?;
            if description.is_tied() {
                layout::drop_tied_head(path, &mut parameters)?;
            }
            if description.architecture.head == Head::Always
                && !parameters.contains_key(HEAD)
                && let Some(embedding) = parameters.get(EMBEDDING).cloned()
            {
                parameters.insert(HEAD.to_owned(), embedding);
            }
            for (name, value) in parameters {
                plan.parameter(description, &name, value).map_err(|error| named(path, &name, error))?;
            }
        }
        None => values.into_iter().try_for_each(|(name, value)| {
            plan.tensor(&name, &value, None).map_err(|error| named(path, &name, error))
        })?,
    }
    let is_named = |tensor: &Tensor, name: &str| tensor.described.name == name;
    let words = plan.tensors.iter().find(|tensor| is_named(tensor, "token_embd.weight"));
    let words = words.and_then(|tensor| tensor.described.shape.first().copied()).unwrap_or_default();
    let (entries, factors) = match (beside.source, &description) {
        (Some(source), _) => {
            let factors = if unnamed.is_none() && source.header.tensors.contains_key(ROPE) {
                Some(source.get(ROPE)?)
            } else {
                None
            };
            let same = plan.tensors.iter().all(|Tensor { described, .. }| {
                source.header.tensors.get(&described.name).is_none_or(|stored| stored.kind == described.kind)
            });
            (copied(source, same)?, factors)
        }
        (None, Some(description)) => {
            let (mut entries, factors) = description.entries(words)?;
            match &beside.tokenizer {
                Some(tokenizer) => {
                    let ends = description.tokens("eos_token_id")?;
                    tokenizer.describe(beside.folder, words as usize, ends, &mut entries)?;
                }
                None => entries.text("tokenizer.ggml.model", "none"),
            }
            if plan.tensors.iter().any(|tensor| tensor.described.kind.dtype.is_none()) {
                entries.count("general.quantization_version", 2);
            }
            (entries, factors.map(|factors| Array::from_slice(&factors, &[factors.len() as i32]).into()))
        }
        (None, None) => (Entries::default(), None),
    };
    if let Some(factors) = factors {
        plan.exact(ROPE.to_owned(), &factors, None)?;
    }
    let Plan { tensors, quantized, .. } = plan;
    Ok(Planned { entries, tensors, quantized })
}

impl Planned {
    /// Writes it, and says how many parameters were quantized.
    pub(crate) fn write(self, path: &Path) -> Result<usize> {
        let tensors = self.tensors.into_iter().map(|tensor| (tensor.described, (tensor.encoded, tensor.rows)));
        write(path, &self.entries, tensors.collect(), |name, (encoded, rows), out| {
            let Some(rows) = rows else { return encoded.write(out).map_err(|error| named(path, name, error)) };
            let mut bytes = Vec::new();
            let written = encoded.write(&mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            });
            written.map_err(|error| named(path, name, error))?;
            let stride = bytes.len() / (encoded.shape[0].max(1) as usize);
            rows.iter().try_for_each(|&row| out(&bytes[row as usize * stride..][..stride]))
        })?;
        Ok(self.quantized)
    }
}

/// An error of an op, or of a type, with the parameter that it is about.
fn named(file: &Path, name: &str, error: Error) -> Error {
    let (reason, help) = match error {
        Error::Invalid { message, help } => (message, help),
        Error::Mlx(_) => {
            let help = "the configuration is that of another model: fetch both again";
            (format!("it cannot be written: {}", error.clause()), Some(help.to_owned()))
        }
        other => return other.of_parameter(name),
    };
    Error::Checkpoint { file: file.to_owned(), key: Some(name.to_owned()), reason, help }
}

/// The metadata of a file, but for what is said of its parts and, where types changed, of these.
fn copied(source: &Gguf, same: bool) -> Result<Entries> {
    let mut entries = Entries::default();
    let is_left_out =
        |key: &str| key.starts_with("split.") || key == "general.alignment" || (!same && key == "general.file_type");
    let mut keys: Vec<_> = source.header.metadata.iter().filter(|(key, _)| !is_left_out(key)).collect();
    keys.sort_by_key(|(_, (_, at))| *at);
    for (key, &(kind, at)) in keys {
        let mut cursor = Cursor::new(source.bytes(), at);
        metadata::skip(&mut cursor, kind).map_err(|reason| source.wrong(key, reason, "fetch the file again"))?;
        entries.copy(key, kind, &source.bytes()[at..cursor.at]);
    }
    Ok(entries)
}

/// What is written, as far as it is known.
struct Plan<'p> {
    path: &'p Path,
    others: Option<GgufType>,
    /// Whether what llama.cpp adds and multiplies becomes F32, as it has to be.
    widens: bool,
    quantized: usize,
    tensors: Vec<Tensor>,
}

impl Plan<'_> {
    /// Adds the tensors that a parameter of Hugging Face's is.
    fn parameter(&mut self, of: &Description<'_>, path: &str, mut value: Value) -> Result<()> {
        if path.ends_with("rotary_emb.inv_freq") {
            return Ok(());
        }
        let layer = in_layer(path, LAYERS[1]);
        let found = of.architecture.parameter(layer.is_some(), layer.map_or(path, |(_, name)| name));
        let Some((tensor, rest)) = found else {
            let reason = format!("llama.cpp's architecture {} has no such tensor", of.architecture.name);
            return Err(self.wrong(path, reason, "leave the parameter out, if the model does not need it"));
        };
        if rest == ".bias" && !of.architecture.biases.contains(&tensor.0) {
            let reason = format!("llama.cpp adds no such bias in the architecture {}", of.architecture.name);
            return Err(self.wrong(path, reason, ANOTHER));
        }
        let named = |module: &str| match layer {
            Some((number, _)) => format!("{}{number}.{module}{rest}", LAYERS[0]),
            None => format!("{module}{rest}"),
        };
        let name = named(tensor.0);
        if let Some(array) = changed(of, &name, tensor.2, &value)? {
            value = array.into();
        }
        let heads = match tensor.2 {
            Change::Queries => of.count("num_attention_heads")?,
            Change::Keys => of.count("num_key_value_heads")?.or(of.count("num_attention_heads")?),
            Change::Net => of.count("linear_num_key_heads")?,
            _ => return self.tensor(&name, &value, None),
        };
        let aval = value.aval()?;
        let Some(&rows) = aval.shape.first() else {
            let help = "fetch the tensors again: this is no matrix and no bias";
            return Err(self.wrong(path, format!("it is {aval}, which has no rows of heads"), help));
        };
        let (rows, heads) = (rows as usize, heads.unwrap_or_default() as usize);
        let key = of.count("linear_key_head_dim")?.unwrap_or_default() as usize;
        let is_net = tensor.2 == Change::Net;
        let order = if is_net { heads::net_order(rows, heads, key) } else { heads::order(rows, heads) };
        let order = order.ok_or_else(|| {
            let reason = format!("its {rows} rows are not those of {heads} heads");
            self.wrong(path, reason, "the configuration is that of another model: fetch both again")
        })?;
        // The row of the parameter that each row of the file is.
        let mut file = vec![0; rows];
        (0..).zip(&order).for_each(|(index, &row)| file[row as usize] = index);
        if !is_net {
            return self.tensor(&name, &value, Some(file));
        }
        // Gates are as wide as values, and behind everything else.
        let gates = (rows - 2 * key * heads) / 2;
        let behind = file.split_off(rows - gates);
        self.tensor(&name, &value, Some(file))?;
        if let Some(encoded) = self.tensors.last().map(|tensor| Rc::clone(&tensor.encoded)) {
            self.add(named("attn_gate"), encoded, Some(behind));
        }
        Ok(())
    }

    /// Adds a tensor of a value, in a type that has it or that was asked for.
    fn tensor(&mut self, name: &str, value: &Value, rows: Option<Vec<u32>>) -> Result<()> {
        let aval = value.aval()?;
        if aval.shape.len() > MOST_DIMENSIONS as usize {
            let reason = format!("it is {aval}, and a tensor of ggml has at most {MOST_DIMENSIONS} extents");
            return Err(self.wrong(name, reason, "reshape it, or leave it out"));
        }
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        let is_small = aval.shape.len() < 2 || SMALL.iter().any(|small| module.ends_with(small));
        if self.widens && is_small && aval.dtype.is_float() {
            let wide: Value = value.dense()?.as_dtype(Dtype::Float32)?.into();
            return self.exact(name.to_owned(), &wide, rows);
        }
        let exact = Encoded::exact(value)?;
        let others =
            self.others.filter(|_| aval.dtype.is_float() && exact.as_ref().is_none_or(|own| own.kind.dtype.is_some()));
        if let Some(kind) = others
            && let Some(encoded) = Encoded::of_type(value, kind)?
        {
            self.quantized += 1;
            self.add(name.to_owned(), encoded, rows);
            return Ok(());
        }
        let Some(encoded) = exact else {
            let reason = format!("no type of GGUF has the numbers of {value}");
            let help = if value.family::<dyn Adapter>().is_some() {
                "merge the adapter first, with `merge` or `merge_exactly` of the model, or quantize the sum by `--format q8_0`"
                    .to_owned()
            } else if !aval.dtype.is_float() {
                "leave the parameter out, if the model does not need it".to_owned()
            } else {
                format!("quantize it to one anew by `--format q8_0`, or to another of {}", names())
            };
            return Err(self.wrong(name, reason, &help));
        };
        self.add(name.to_owned(), encoded, rows);
        Ok(())
    }

    fn exact(&mut self, name: String, value: &Value, rows: Option<Vec<u32>>) -> Result<()> {
        if let Some(encoded) = Encoded::exact(value)? {
            self.add(name, encoded, rows);
        }
        Ok(())
    }

    fn add(&mut self, name: String, encoded: impl Into<Rc<Encoded>>, rows: Option<Vec<u32>>) {
        let encoded = encoded.into();
        let mut shape = encoded.shape.clone();
        if let (Some(first), Some(rows)) = (shape.first_mut(), &rows) {
            *first = rows.len() as i32;
        }
        let described = Described { name, kind: encoded.kind, shape };
        self.tensors.push(Tensor { described, encoded, rows });
    }

    fn wrong(&self, key: &str, reason: impl Into<String>, help: &str) -> Error {
        Error::checkpoint(self.path, Some(key), reason, help)
    }
}

/// What is computed of a dense parameter: the changes of `names`, done again.
fn changed(of: &Description<'_>, name: &str, change: Change, value: &Value) -> Result<Option<Array>> {
    let plus_one = of.architecture.gains_plus_one && name.ends_with("norm.weight");
    if !plus_one && !matches!(change, Change::Row | Change::Filter | Change::NegativeLogarithm) {
        return Ok(None);
    }
    let array = value.dense()?;
    Ok(Some(match change {
        Change::Row => array.reshape(&[-1])?,
        Change::Filter => array.squeeze_axes(&[-1])?,
        Change::NegativeLogarithm => ops::exp(array.as_dtype(Dtype::Float32)?)?.negative()?,
        // In f32: a half of few bits has no place for the 1.
        _ => array.as_dtype(Dtype::Float32)?.add(Array::from_f32(1.0))?,
    }))
}
