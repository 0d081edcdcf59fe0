//! Reads and writes the adapters that mlx-lm trains.
//!
//! A folder has `adapters.safetensors`, with `lora_a: [in, r]`, `lora_b: [r, out]` and, in `DoRA`, `m: [out]` for each module,
//! and `adapter_config.json`, which has one rank and one scale for all of them (`mlx_lm/tuner/lora.py`, `dora.py` and
//! `load_adapters` in `utils.py`). An embedding has its factors the other way round.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use mlx_rs::Array;
use tacit_core::{Aval, Error, Result, Value};
use tacit_files::{Steady, make_folder};
use tacit_nn::Parameters;

use crate::adapter::{CONFIG, Change, base, is_embedding, replaced, shortest};
use crate::hugging_face::cannot_hold;
use crate::json::Json;
use crate::remaining::Remaining;
use crate::set::Set;
use crate::{Metadata, Tensors, Writing};

const TENSORS: &str = "adapters.safetensors";
const LORA: &str = "lora_parameters";

/// The files of an adapter in its folder, as mlx-lm names them: the tensors, and the configuration.
#[must_use]
pub fn files(folder: &Path) -> [PathBuf; 2] {
    [TENSORS, CONFIG].map(|name| folder.join(name))
}

/// Reads a folder: the parameters of `model`, those that the adapter changes as [`Lora`](tacit_arrays::Lora) or
/// [`Dora`](tacit_arrays::Dora) over what they were.
///
/// The base of each is the value that `model` has for it, quantized or not. Of a model that was trained as a whole the
/// values are those of the file. Dropout, which only training has, is left out.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("tacit-mlx-adapter-{}", std::process::id()));
/// use mlx_rs::ops;
/// use tacit_arrays::{Lora, Nf4Array};
/// use tacit_io::json::Json;
/// use tacit_io::mlx_adapter;
/// use tacit_nn::Parameters;
///
/// let base = Nf4Array::quantize(&ops::ones::<f32>(&[8, 64])?, 64)?;
/// let model = Parameters::from([("model.layers.0.proj.weight".to_owned(), base.clone().into())]);
/// let lora = Lora::new(base, ops::ones::<f32>(&[2, 64])?, ops::ones::<f32>(&[8, 2])?, 16.0)?;
/// let tuned = Parameters::from([("model.layers.0.proj.weight".to_owned(), lora.into())]);
///
/// mlx_adapter::write(&folder, &tuned, &Json::Object(Vec::new()))?;
/// assert!(mlx_adapter::files(&folder).iter().all(|file| file.is_file()));
/// let read = mlx_adapter::read(&folder, &model)?;
/// assert_eq!(read["model.layers.0.proj.weight"].to_string(), "Lora(f32[8,64])");
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The tensors cannot be opened (see [`Tensors::open`]), the configuration cannot be read or has no scale, a part of an
/// adapter is not there, of other shapes or of no module that `model` has.
pub fn read(folder: impl AsRef<Path>, model: &Parameters) -> Result<Parameters> {
    let folder = folder.as_ref();
    let _steady = Steady::at(folder);
    let file = folder.join(CONFIG);
    let config = Json::open(&file)?;
    let tensors = Tensors::open(folder.join(TENSORS))?;
    if tensors.names().next().is_none() {
        return Err(tensors.wrong(None, "it has no adapter at all", "fetch the folder again"));
    }
    let mut parameters = model.clone();
    let kind = config.get("fine_tune_type").unwrap_or(&Json::Null);
    let dora = match kind {
        Json::Null => false,
        Json::Text(kind) if kind == "lora" => false,
        Json::Text(kind) if kind == "dora" => true,
        Json::Text(kind) if kind == "full" => {
            for name in tensors.names() {
                replaced(&mut parameters, &tensors, name, name)?;
            }
            return Ok(parameters);
        }
        kind => return Err(wrong(&file, "fine_tune_type", format!("{kind} is neither lora, dora nor full"))),
    };
    let (rank, scale) = rank_and_scale(&config).map_err(|(key, reason)| wrong(&file, &key, reason))?;
    let mut remaining = Remaining::new(&tensors);
    complete(&file, &config, model, &tensors)?;
    for module in remaining.stems(".lora_a") {
        let key = format!("{module}.lora_a");
        let what = format!("the adapter of {module}");
        let (name, base) = base(model, &tensors, &key, module)?;
        let a = remaining.take(&key, &what)?;
        let b = remaining.take(&format!("{module}.lora_b"), &what)?;
        let magnitude = if dora { Some(remaining.take(&format!("{module}.m"), &what)?) } else { None };
        let aval = base.aval()?;
        let Some((transposed, r)) = orientation(module, &aval.shape, &a, &b) else {
            let reason = format!("it is {}, and lora_b is {}, over {aval}", Aval::from(&a), Aval::from(&b));
            return Err(tensors.wrong(Some(&key), reason, "an adapter has [in, r] and [r, out] over [out, in]"));
        };
        if rank.is_some_and(|rank| rank != r) {
            return Err(wrong(&file, "lora_parameters.rank", format!("it is not the {r} that {key} has")));
        }
        let (a, b) = if transposed { (b, a) } else { (a.t(), b.t()) };
        let change = Change { a, b, scale, magnitude };
        parameters.insert(name, change.over(base).map_err(remaining.at(&key))?);
    }
    remaining.none_left("it does not belong to an adapter of mlx-lm's")?;
    Ok(parameters)
}

/// Writes the adapters among the parameters as a folder that mlx-lm reads.
///
/// Other parameters are the model's own, and are left out; where `config` says that the model was trained as a whole, all
/// parameters are written, and must be dense.
///
/// `config` is what the configuration is to say beside, such as what [`Json::open`] read of an `adapter_config.json`. Tensors
/// that were [`read`] are written as the same bytes, and so is a configuration that fits them. Where `config` does not name an
/// adapter, its `keys` and `num_layers` become those of all.
///
/// # Errors
///
/// No parameter is an adapter, one is not over the `weight` of a module, they have several ranks, scales or kinds, or a file
/// cannot be written.
pub fn write(folder: impl AsRef<Path>, parameters: &Parameters, config: &Json) -> Result<()> {
    let folder = folder.as_ref();
    let path = folder.join(TENSORS);
    let mut tensors = Vec::new();
    let mut config = config.clone();
    if config.get("fine_tune_type").and_then(Json::text) == Some("full") {
        for (name, value) in parameters {
            let help = "write adapters as `lora` or `dora`, and a quantized model by `mlx_lm::write`";
            let array =
                value.as_dense().ok_or_else(|| cannot_hold(&path, name, value, "a model trained as a whole", help))?;
            tensors.push((name.clone(), array.clone()));
        }
    } else {
        let mut modules = Vec::new();
        let mut of_all: Option<(String, i32, f32, bool)> = None;
        for (name, value) in parameters {
            let Some((module, change)) = Change::from_parameter(&path, name, value, "an adapter of mlx-lm")? else {
                continue;
            };
            let Change { a, b, scale, magnitude } = change;
            let (rank, dora) = (a.dim(0), magnitude.is_some());
            match &of_all {
                Some((first, ..)) if of_all != Some((first.clone(), rank, scale, dora)) => {
                    let reason = format!("its rank, scale or kind is not that of {first}");
                    let help =
                        "mlx-lm has one for all modules: write the others by themselves, or all by `peft::write`";
                    return Err(Error::checkpoint(&path, Some(name), reason, help));
                }
                _ => of_all = Some((name.clone(), rank, scale, dora)),
            }
            let (a, b) = if is_embedding(module) { (b, a) } else { (a.t(), b.t()) };
            tensors.push((format!("{module}.lora_a"), a));
            tensors.push((format!("{module}.lora_b"), b));
            tensors.extend(magnitude.map(|m| (format!("{module}.m"), m)));
            modules.push(module);
        }
        let Some((_, rank, scale, dora)) = of_all else {
            let help = "give the model's parameters with a Lora or a Dora in the place of those that are adapted";
            return Err(Error::checkpoint(&path, None, "no parameter is an adapter", help));
        };
        describe(&mut config, parameters, &modules, rank, scale, dora);
    }
    let _new = make_folder(folder)?;
    let beside = vec![(CONFIG, config.indented(4).into_bytes())];
    Set { path: &path, beside, stale: Vec::new() }.write(tensors, &Metadata::new(), Writing::default())
}

fn wrong(file: &Path, key: &str, reason: impl Into<String>) -> Error {
    Error::checkpoint(file, Some(key), reason, "fetch the folder again, or set it as the adapter was trained")
}

fn rank_and_scale(config: &Json) -> Result<(Option<i32>, f32), (String, String)> {
    let parameters = config.get(LORA).unwrap_or(&Json::Null);
    let wrong = |key: &str, reason: String| (format!("{LORA}.{key}"), reason);
    let scale = parameters.get("scale").ok_or_else(|| {
        let also =
            if parameters.get("alpha").is_some() { "; there is an alpha, which mlx-lm does not have" } else { "" };
        wrong("scale", format!("it is not there{also}"))
    })?;
    let number = scale.number().ok_or_else(|| wrong("scale", format!("it is {scale}")))?;
    let rank = parameters.get("rank").map(|rank| rank.integer().ok_or_else(|| wrong("rank", format!("it is {rank}"))));
    Ok((rank.transpose()?, number as f32))
}

/// Whether the factors are those of an embedding, and their rank; none if they are not those of this shape.
fn orientation(module: &str, shape: &[i32], a: &Array, b: &Array) -> Option<(bool, i32)> {
    let (&[out, inputs], &[a_from, rank], &[b_rank, b_to]) = (shape, a.shape(), b.shape()) else { return None };
    if rank != b_rank {
        return None;
    }
    let plain = (a_from, b_to) == (inputs, out);
    let transposed = (a_from, b_to) == (out, inputs);
    (plain || transposed).then_some((transposed && (!plain || is_embedding(module)), rank))
}

/// Lets the configuration say what the adapters are.
fn describe(config: &mut Json, parameters: &Parameters, modules: &[&str], rank: i32, scale: f32, dora: bool) {
    let said = rank_and_scale(config).ok();
    let fits = said.is_some_and(|(known, own_scale)| {
        known.is_none_or(|known| known == rank) && Change::stored(own_scale, rank).to_bits() == scale.to_bits()
    });
    let kind = if dora { "dora" } else { "lora" };
    let same_kind = config.get("fine_tune_type").map_or(!dora, |kind_there| kind_there.text() == Some(kind));
    let all_named = names(config, parameters, modules);
    if fits && same_kind && all_named && config.get("num_layers").is_some() {
        return;
    }
    let number = |path: &str| layer(path).map(|(number, _)| number);
    let first = modules.iter().copied().filter_map(number).min();
    let end = parameters.keys().filter_map(|name| number(name)).max();
    // The last so many: those from the first that is adapted.
    let layers = first.zip(end).map_or(0, |(first, end)| end + 1 - first);
    let said = config.get("num_layers").filter(|_| all_named).map(|said| said.integer().unwrap_or(0));
    let last = said.unwrap_or(layers);
    let keys = modules.iter().map(|module| layer(module).map_or(*module, |(_, rest)| rest)).collect();
    let chosen = Chosen { keys, last };
    // A key names one module where it is the whole path. Of adapters alone nobody knows whether theirs are the last layers.
    let is_model = parameters.len() > modules.len();
    let is_exact =
        is_model && chosen.modules(parameters, modules).map(|(module, _)| module).eq(modules.iter().copied());
    let keys = if is_exact { chosen.keys } else { modules.iter().copied().collect() };
    config.set("fine_tune_type", Json::Text(kind.to_owned()));
    if said.is_none() {
        config.set("num_layers", Json::Integer(last));
    }
    let section = config.entry(LORA);
    section.set("rank", Json::Integer(rank.into()));
    section.set("scale", Json::Float(shortest(scale)));
    if section.get("dropout").is_none() {
        section.set("dropout", Json::Float(0.0));
    }
    if !all_named || section.get("keys").is_none() {
        section.set("keys", Json::List(keys.into_iter().map(|key| Json::Text(key.to_owned())).collect()));
    }
    config.sort();
}

/// Whether mlx-lm makes an adapter of each of these modules. Without keys it does of all in the layers.
fn names(config: &Json, parameters: &Parameters, modules: &[&str]) -> bool {
    let keys = match config.get(LORA).and_then(|lora| lora.get("keys")) {
        Some(Json::List(keys)) => keys.iter().filter_map(Json::text).collect(),
        _ => modules.iter().copied().filter_map(layer).map(|(_, rest)| rest).collect(),
    };
    let last = config.get("num_layers").and_then(Json::integer).unwrap_or(0);
    let chosen = Chosen { keys, last };
    let named: BTreeSet<&str> = chosen.modules(parameters, modules).map(|(module, _)| module).collect();
    modules.iter().all(|module| named.contains(module))
}

/// Which modules a configuration names: `keys` of the last layers, in each stack of layers of which one is adapted, and of the
/// whole model.
struct Chosen<'c> {
    keys: BTreeSet<&'c str>,
    /// How many layers; all of them where it is no positive number.
    last: i128,
}

impl Chosen<'_> {
    /// The modules of a model that may have an adapter, of which some modules have one.
    fn modules<'m>(&self, model: &'m Parameters, adapted: &[&str]) -> impl Iterator<Item = (&'m str, &'m Value)> {
        let stack = |path: &str| path.split_once("layers.").map(|(stack, _)| stack.to_owned());
        let modules = || model.iter().filter_map(|(name, value)| Some((name.strip_suffix(".weight")?, value)));
        let count = |stack_path: &str| {
            let layers = modules().filter(|(module, _)| stack(module).as_deref() == Some(stack_path));
            layers.filter_map(|(module, _)| layer(module)).map(|(number, _)| number + 1).max().unwrap_or(0)
        };
        let stacks: BTreeSet<String> = adapted.iter().copied().filter_map(stack).collect();
        let first_of = |stack_path: &String| if self.last > 0 { count(stack_path) - self.last } else { 0 };
        let first: BTreeMap<String, i128> =
            stacks.into_iter().map(|stack_path| (stack_path.clone(), first_of(&stack_path))).collect();
        modules().filter(move |(module, value)| {
            let within = stack(module).and_then(|stack_path| Some((*first.get(stack_path.as_str())?, layer(module)?)));
            let named = within.is_some_and(|(first, (number, rest))| number >= first && self.keys.contains(rest));
            (named || self.keys.contains(module)) && value.aval().is_ok_and(|aval| aval.shape.len() == 2)
        })
    }
}

/// Checks that every module that the configuration names has its adapter.
fn complete(file: &Path, config: &Json, model: &Parameters, tensors: &Tensors) -> Result<()> {
    let Some(Json::List(keys)) = config.get(LORA).and_then(|lora| lora.get("keys")) else { return Ok(()) };
    let Some(last) = config.get("num_layers").and_then(Json::integer::<i128>) else { return Ok(()) };
    let chosen = Chosen { keys: keys.iter().filter_map(Json::text).collect(), last };
    let adapted: Vec<&str> = tensors.names().filter_map(|name| name.strip_suffix(".lora_a")).collect();
    let lacking = chosen.modules(model, &adapted).find(|(module, _)| !tensors.contains(&format!("{module}.lora_a")));
    match lacking {
        None => Ok(()),
        Some((module, _)) => {
            let reason = format!("it has no adapter of {module}, which {} names", file.display());
            Err(tensors.wrong(None, reason, "fetch the folder again, or set `keys` and `num_layers` as it was trained"))
        }
    }
}

/// The number of the layer that a path is in, and what is left of the path in it.
fn layer(path: &str) -> Option<(i128, &str)> {
    let rest = path.split_once("layers.")?.1;
    let (number, rest) = rest.split_once('.')?;
    Some((number.parse().ok()?, rest))
}
