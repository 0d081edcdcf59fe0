//! Reads and writes the adapters that the library PEFT trains: `LoRA`, its rank-stabilized variant, and `DoRA`.
//!
//! A folder has `adapter_model.safetensors`, with `lora_A.weight: [r, in]`, `lora_B.weight: [out, r]` and, in `DoRA`,
//! `lora_magnitude_vector: [out]` for each module behind `base_model.model.`, and `adapter_config.json`, with ranks and
//! alphas. An embedding has `lora_embedding_A: [r, rows]` and `lora_embedding_B: [columns, r]`
//! (`peft/tuners/lora/layer.py` and `peft/utils/save_and_load.py`). A magnitude for each column, as `DoRA` has it of a weight
//! `[in, out]` or an embedding (`peft/tuners/lora/dora.py`), is refused; and so is what changes the base (`init_lora_weights` of
//! `PiSSA`, `OLoRA`, `CorDA` and `LoftQ`, `kasa_config`, `layer_replication`) or when the adapter is on (`alora_invocation_tokens`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use mlx_rs::Array;
use tacit_core::{Aval, Error, Result};
use tacit_files::{Steady, make_folder};
use tacit_nn::Parameters;

use crate::adapter::{CONFIG, Change, base, is_embedding, replaced, shortest};
use crate::hugging_face::write_set;
use crate::json::Json;
use crate::layout::HEAD;
use crate::remaining::Remaining;
use crate::set::Set;
use crate::{Distance, Tensors};

const TENSORS: &str = "adapter_model.safetensors";
/// What stands before the path of a module.
const PREFIX: &str = "base_model.model.";
/// What stands between the path of an adapted module and what is its own.
const BASE: &str = ".base_layer.";
/// The module of [`HEAD`].
const HEAD_MODULE: &str = "lm_head";

/// The files of an adapter in its folder, as PEFT names them: the tensors, and the configuration.
#[must_use]
pub fn files(folder: &Path) -> [PathBuf; 2] {
    [TENSORS, CONFIG].map(|name| folder.join(name))
}

/// Reads a folder: the parameters of `model`, those that the adapter changes as [`Lora`](tacit_arrays::Lora) or
/// [`Dora`](tacit_arrays::Dora) over what they were.
///
/// The base of each is the value that `model` has for it, quantized or not. Modules that were trained as a whole have the
/// values of the file, and so have biases and embeddings that PEFT saved beside their adapters. Dropout, which only training
/// has, is left out. Where the model has no `lm_head.weight` and the configuration says `ensure_weight_tying`, what the file has of
/// the head is that of the embedding, which stands for both; another adapter of the head is one of no module.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("tacit-peft-{}", std::process::id()));
/// use mlx_rs::ops;
/// use tacit_arrays::{Lora, Nf4Array};
/// use tacit_io::{json::Json, peft};
/// use tacit_nn::Parameters;
///
/// let base = Nf4Array::quantize(&ops::ones::<f32>(&[8, 64])?, 64)?;
/// let model = Parameters::from([("model.layers.0.proj.weight".to_owned(), base.clone().into())]);
/// let lora = Lora::new(base, ops::ones::<f32>(&[2, 64])?, ops::ones::<f32>(&[8, 2])?, 16.0)?;
/// let tuned = Parameters::from([("model.layers.0.proj.weight".to_owned(), lora.into())]);
///
/// peft::write(&folder, &tuned, &Json::Object(Vec::new()))?;
/// assert!(peft::files(&folder).iter().all(|file| file.is_file()));
/// assert_eq!(peft::read(&folder, &model)?["model.layers.0.proj.weight"].to_string(), "Lora(f32[8,64])");
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The tensors cannot be opened (see [`Tensors::open`]), the configuration cannot be read or asks for what Tacit has not, a
/// part of an adapter is not there, of other shapes or of no module that `model` has, or is there by two names.
pub fn read(folder: impl AsRef<Path>, model: &Parameters) -> Result<Parameters> {
    let folder = folder.as_ref();
    let _steady = Steady::at(folder);
    let settings = Settings { file: folder.join(CONFIG), config: Json::open(folder.join(CONFIG))? };
    settings.check()?;
    let tensors = Tensors::open(folder.join(TENSORS))?;
    refuse_twice(&tensors)?;
    let mut remaining = Remaining::new(&tensors);
    if settings.ties_head(model) && is_tied(&tensors)? {
        remaining.without(|key| key.strip_prefix(PREFIX).unwrap_or(key).split('.').next() == Some(HEAD_MODULE));
    }
    let model = &with_kept(model, &mut remaining)?;
    let mut parameters = model.clone();
    let mut adapted = BTreeSet::new();
    for (a_end, b_end, transposed) in
        [(".lora_A.weight", ".lora_B.weight", false), (".lora_embedding_A", ".lora_embedding_B", true)]
    {
        for stem in remaining.stems(a_end) {
            let key = format!("{stem}{a_end}");
            let module = stem.strip_prefix(PREFIX).unwrap_or(stem);
            let what = format!("the adapter of {module}");
            let (name, base) = base(model, &tensors, &key, module)?;
            if !adapted.insert(name.clone()) {
                let reason = format!("it is the adapter of an embedding, and {module} has that of a matrix as well");
                return Err(tensors.wrong(Some(&key), reason, "fetch the folder again"));
            }
            let a = remaining.take(&key, &what)?;
            let b = remaining.take(&format!("{stem}{b_end}"), &what)?;
            let magnitude = magnitude(&mut remaining, stem, &what, settings.flag("use_dora"))?;
            let transposed = transposed || settings.flag("fan_in_fan_out");
            if magnitude.is_some() && transposed {
                let reason = format!("{module} has its weight as [in, out], and a magnitude for each of its columns");
                return Err(settings.wrong("use_dora", reason));
            }
            let (rank, scale) = settings.of(module)?;
            if a.ndim() != 2 || b.ndim() != 2 || a.dim(0) != rank {
                let reason = format!("it is {}, where the configuration has a rank of {rank}", Aval::from(&a));
                return Err(tensors.wrong(Some(&key), reason, "fetch the folder again"));
            }
            // A module with its weight as [in, out] has the change transposed, as an embedding has.
            let (a, b) = if transposed { (b.t(), a.t()) } else { (a, b) };
            let change = Change { a, b, scale, magnitude };
            parameters.insert(name, change.over(base).map_err(remaining.at(&key))?);
        }
    }
    settings.complete(&tensors, model, &adapted)?;
    for key in remaining.stems("") {
        if key.contains(".lora_") {
            return Err(tensors.wrong(Some(key), "it belongs to no adapter in the file", "fetch the folder again"));
        }
        let name = key.strip_prefix(PREFIX).unwrap_or(key).replace(".modules_to_save.", ".");
        replaced(&mut parameters, &tensors, key, &name)?;
    }
    Ok(parameters)
}

/// Writes the adapters among the parameters as a folder that PEFT reads.
///
/// Other parameters are the model's own, and are left out.
///
/// `config` is what the configuration is to say beside, such as what [`Json::open`] read of an `adapter_config.json`. A folder of
/// nothing but adapters that was [`read`] is written as the same bytes. Where `config` does not name an adapter, its
/// `target_modules` become those of all. Where it says `ensure_weight_tying`, and there is no `lm_head.weight`, the adapter of
/// `embed_tokens` is written for the head as well: PEFT has none of a head that is the embedding otherwise.
///
/// # Errors
///
/// No parameter is an adapter, one is not over the `weight` of a module, some are `DoRA` and others are not, one is `DoRA` over
/// an embedding or a weight `[in, out]`, or a file cannot be written.
pub fn write(folder: impl AsRef<Path>, parameters: &Parameters, config: &Json) -> Result<()> {
    let folder = folder.as_ref();
    let path = folder.join(TENSORS);
    let mut settings = Settings { file: folder.join(CONFIG), config: config.clone() };
    settings.check()?;
    let (mut tensors, mut modules) = (Vec::new(), BTreeMap::new());
    let mut of_all: Option<(&str, bool)> = None;
    for (name, value) in parameters {
        let Some((module, change)) = Change::from_parameter(&path, name, value, "an adapter of PEFT's")? else {
            continue;
        };
        let embedding = is_embedding(module);
        // A module with its weight as [in, out] has the change transposed, and a rank of its own.
        let transposed = embedding || settings.flag("fan_in_fan_out");
        let numbers = (change.rank(), change.scale);
        modules.insert(module, numbers);
        let Change { a, b, magnitude, .. } = change;
        let dora = magnitude.is_some();
        if dora && transposed {
            let reason = "PEFT has a magnitude for each of its columns, and a Dora has one for each row";
            return Err(Error::checkpoint(&path, Some(name), reason, "merge it, or write it by `mlx_adapter::write`"));
        }
        if let Some((first, _)) = of_all.filter(|(_, of_all)| *of_all != dora) {
            let reason = format!("its kind is not that of {first}");
            let help = "PEFT has LoRA or DoRA for all modules: write the others by themselves";
            return Err(Error::checkpoint(&path, Some(name), reason, help));
        }
        of_all = Some((name, dora));
        if ends_with(module, "embed_tokens") && settings.ties_head(parameters) {
            modules.insert(HEAD_MODULE, numbers);
            for (end, array) in [("lora_A", &a), ("lora_B", &b)] {
                tensors.push((format!("{PREFIX}{HEAD_MODULE}.{end}.weight"), array.clone()));
            }
        }
        let (a, b) = if transposed { (b.t(), a.t()) } else { (a, b) };
        let ends =
            if embedding { ["lora_embedding_A", "lora_embedding_B"] } else { ["lora_A.weight", "lora_B.weight"] };
        for (end, array) in ends.into_iter().zip([a, b]) {
            tensors.push((format!("{PREFIX}{module}.{end}"), array));
        }
        tensors.extend(magnitude.map(|m| (format!("{PREFIX}{module}.{MAGNITUDE}"), m)));
    }
    let Some((_, dora)) = of_all else {
        let help = "give the model's parameters with a Lora or a Dora in the place of those that are adapted";
        return Err(Error::checkpoint(&path, None, "no parameter is an adapter", help));
    };
    settings.describe(&modules, dora, settings.ties_head(parameters));
    let _new = make_folder(folder)?;
    let beside = vec![(CONFIG, settings.config.indented(2).into_bytes())];
    write_set(Set { path: &path, beside, stale: Vec::new() }, tensors)
}

/// Refuses a module that is there by both of its names: one would replace the other.
fn refuse_twice(tensors: &Tensors) -> Result<()> {
    let is_twice = |key: &&str| key.strip_prefix(PREFIX).is_some_and(|own| tensors.contains(own));
    tensors.names().find(is_twice).map_or(Ok(()), |key| {
        let help = "leave one of the two out of the file, or fetch the folder again";
        Err(tensors.wrong(Some(key), format!("it is there without {PREFIX} as well"), help))
    })
}

/// Whether what the file has of the head is what it has of its embedding: there may be another one, which is not to be lost.
fn is_tied(tensors: &Tensors) -> Result<bool> {
    let get = |end: &str| tensors.names().find(|name| ends_with(name, end)).map(|name| tensors.get(name)).transpose();
    let same = |of_head: &str, of_embedding: &str| -> Result<bool> {
        let Some(head) = get(&format!("{HEAD_MODULE}.{of_head}"))? else { return Ok(true) };
        let Some(embedding) = get(&format!("embed_tokens.{of_embedding}"))? else { return Ok(false) };
        let embedding = if of_head == of_embedding { embedding } else { embedding.t() };
        Ok(head.shape() == embedding.shape() && Distance::between(&embedding, &head)?.error <= 0.0)
    };
    let factors = same("lora_A.weight", "lora_embedding_B")? && same("lora_B.weight", "lora_embedding_A")?;
    Ok(factors && same("weight", "weight")?)
}

/// The model with what the file has of adapted modules themselves: biases that were trained, and embeddings.
fn with_kept(model: &Parameters, remaining: &mut Remaining<'_>) -> Result<Parameters> {
    let (tensors, mut parameters) = (remaining.tensors, model.clone());
    for key in remaining.stems("").into_iter().filter(|key| key.contains(BASE)) {
        let name = key.strip_prefix(PREFIX).unwrap_or(key).replacen(BASE, ".", 1);
        replaced(&mut parameters, tensors, key, &name)?;
    }
    remaining.without(|key| key.contains(BASE));
    Ok(parameters)
}

const MAGNITUDE: &str = "lora_magnitude_vector";

/// The magnitudes of a module: earlier versions have `weight` behind the name.
fn magnitude(remaining: &mut Remaining<'_>, stem: &str, what: &str, dora: bool) -> Result<Option<Array>> {
    if !dora {
        return Ok(None);
    }
    let key = format!("{stem}.{MAGNITUDE}");
    match remaining.take_if(&format!("{key}.weight"))? {
        Some(m) => Ok(Some(m)),
        None => remaining.take(&key, what).map(Some),
    }
}

struct Settings {
    file: PathBuf,
    config: Json,
}

impl Settings {
    fn flag(&self, key: &str) -> bool {
        self.config.get(key).and_then(Json::flag).unwrap_or(false)
    }

    /// Whether PEFT gives the head of a decoder the adapter of its embedding. A head that is the embedding is no parameter.
    fn ties_head(&self, parameters: &Parameters) -> bool {
        self.flag("ensure_weight_tying") && !parameters.contains_key(HEAD)
    }

    fn wrong(&self, key: &str, reason: impl Into<String>) -> Error {
        Error::checkpoint(&self.file, Some(key), reason, "merge the adapter into the model by PEFT, and read the model")
    }

    /// Refuses what has another meaning than `LoRA` and `DoRA`.
    fn check(&self) -> Result<()> {
        if let Some(kind) = self.config.get("peft_type").filter(|kind| kind.text() != Some("LORA")) {
            return Err(self.wrong("peft_type", format!("it is {kind}, and only \"LORA\" is read")));
        }
        for key in ["lora_bias", "use_qalora"] {
            if self.flag(key) {
                return Err(self.wrong(key, "it is not read"));
            }
        }
        let set = |key: &str| !matches!(self.config.get(key), None | Some(Json::Null | Json::Bool(false)));
        let changes = ["alora_invocation_tokens", "layer_replication", "arrow_config", "use_bdlora", "kasa_config"];
        if let Some(key) = changes.into_iter().find(|key| set(key)) {
            return Err(self.wrong(key, "it changes what the adapter does, and is not read"));
        }
        // Others begin with a base of their own, which is not that of the model: PiSSA, OLoRA, CorDA, LoftQ.
        let plain = ["gaussian", "eva", "orthogonal"];
        match self.config.get("init_lora_weights") {
            None | Some(Json::Null | Json::Bool(_)) => Ok(()),
            Some(Json::Text(text)) if plain.contains(&text.as_str()) => Ok(()),
            Some(other) => {
                Err(self
                    .wrong("init_lora_weights", format!("it is {other}, which changes the weights under the adapter")))
            }
        }
    }

    /// Checks that every module that the configuration names has its adapter, where it names them by lists alone.
    fn complete(&self, tensors: &Tensors, model: &Parameters, adapted: &BTreeSet<String>) -> Result<()> {
        if tensors.names().next().is_none() {
            return Err(tensors.wrong(None, "it has no adapter at all", "fetch the folder again"));
        }
        let null = |key: &str| matches!(self.config.get(key), None | Some(Json::Null));
        let Some(Json::List(targets)) = self.config.get("target_modules") else { return Ok(()) };
        if !["layers_to_transform", "layers_pattern", "exclude_modules"].into_iter().all(null) {
            return Ok(());
        }
        let Some(targets) = targets.iter().map(Json::text).collect::<Option<Vec<&str>>>() else { return Ok(()) };
        let kept = self.texts("modules_to_save");
        let is_one = |module: &str, names: &[&str]| names.iter().any(|name| ends_with(module, name));
        let lacking = model.iter().find(|(name, value)| {
            let module = name.strip_suffix(".weight");
            let named = module.is_some_and(|module| is_one(module, &targets) && !is_one(module, &kept));
            named && !adapted.contains(*name) && value.aval().is_ok_and(|aval| aval.shape.len() == 2)
        });
        match lacking {
            None => Ok(()),
            Some((name, _)) => {
                let reason =
                    format!("it has no adapter of {name}, which target_modules of {} names", self.file.display());
                Err(tensors.wrong(None, reason, "fetch the folder again, or name in target_modules what is adapted"))
            }
        }
    }

    /// The rank and the scale of a module.
    fn of(&self, module: &str) -> Result<(i32, f32)> {
        let wrong = |key: &str, json: &Json| self.wrong(key, format!("it is {json}"));
        let field = |key: &str, pattern: &str| -> Result<Json> {
            let value = self.pattern(pattern, module)?.or(self.config.get(key));
            value.cloned().ok_or_else(|| self.wrong(key, "it is not there"))
        };
        let (rank, alpha) = (field("r", "rank_pattern")?, field("lora_alpha", "alpha_pattern")?);
        let rank: i32 = rank.integer().filter(|&rank| rank > 0).ok_or_else(|| wrong("r", &rank))?;
        let alpha = alpha.number().ok_or_else(|| wrong("lora_alpha", &alpha))?;
        let by = if self.flag("use_rslora") { f64::from(rank).sqrt() } else { f64::from(rank) };
        Ok((rank, (alpha / by) as f32))
    }

    /// What a table has for a module: a key is the end of a path, or all of it behind `^`.
    fn pattern(&self, table: &str, module: &str) -> Result<Option<&Json>> {
        for (key, value) in self.config.get(table).map(Json::entries).unwrap_or_default() {
            let path = key.strip_prefix('^').unwrap_or(key);
            if path.contains(['^', '$', '*', '+', '?', '(', '[', '{', '|', '\\']) {
                return Err(self.wrong(table, format!("{key:?} is a regular expression, and only paths are read")));
            }
            if module == path || (path == key && ends_with(module, path)) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The texts of a list; none of what is no list.
    fn texts(&self, key: &str) -> Vec<&str> {
        match self.config.get(key) {
            Some(Json::List(list)) => list.iter().filter_map(Json::text).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether PEFT makes an adapter of a module, as far as lists say it: a regular expression may name any module.
    fn names(&self, module: &str) -> bool {
        if self.texts("exclude_modules").into_iter().any(|name| ends_with(module, name)) {
            return false;
        }
        match self.config.get("target_modules") {
            Some(Json::List(_)) => {
                let targets = self.texts("target_modules");
                let ends = || targets.iter().any(|name| ends_with(module, name));
                // A whole path is taken in every layer.
                targets.contains(&module) || (ends() && self.is_in_layers(module))
            }
            // The head is no target of it either.
            Some(Json::Text(text)) if text == "all-linear" => {
                !is_embedding(module) && !["lm_head", "embed_out"].iter().any(|head| ends_with(module, head))
            }
            Some(Json::Text(_)) => true,
            _ => false,
        }
    }

    /// Whether `layers_to_transform` has the layer of a module.
    fn is_in_layers(&self, module: &str) -> bool {
        let layers = match self.config.get("layers_to_transform") {
            Some(Json::List(layers)) if !layers.is_empty() => layers.as_slice(),
            Some(layer @ Json::Integer(_)) => std::slice::from_ref(layer),
            _ => return true,
        };
        if !matches!(self.config.get("layers_pattern"), None | Some(Json::Null)) {
            return true;
        }
        // PEFT takes the last number that has two names or more before it, and one behind it.
        let parts: Vec<&str> = module.split('.').collect();
        let inner = parts.get(2..parts.len() - 1).unwrap_or_default();
        let number = inner.iter().rev().find_map(|part| part.parse::<i128>().ok());
        number.is_some_and(|number| layers.iter().any(|layer| layer.integer() == Some(number)))
    }

    /// Lets the configuration say what the adapters are.
    fn describe(&mut self, modules: &BTreeMap<&str, (i32, f32)>, dora: bool, ties: bool) {
        let fits = |(module, &(rank, scale)): (&&str, &(i32, f32))| {
            self.of(module).is_ok_and(|(own, own_scale)| {
                own == rank && Change::stored(own_scale, rank).to_bits() == scale.to_bits()
            })
        };
        let same_kind = self.config.get("peft_type").is_some() && self.flag("use_dora") == dora;
        // PEFT takes a head that it ties out of the list.
        let all_named = modules.keys().all(|&module| self.names(module) || (ties && module == HEAD_MODULE));
        if same_kind && all_named && modules.iter().all(fits) {
            return;
        }
        let (rank, scale) = modules.values().next().copied().unwrap_or((1, 1.0));
        let square = self.flag("use_rslora");
        let alpha = |(rank, scale): (i32, f32)| {
            let by = if square { f64::from(rank).sqrt() } else { f64::from(rank) };
            let alpha = shortest((f64::from(scale) * by) as f32);
            if alpha.fract() == 0.0 { Json::Integer(alpha as i128) } else { Json::Float(alpha) }
        };
        let is_end = |module: &str| modules.keys().any(|other| *other != module && ends_with(other, module));
        let key = |module: &str| if is_end(module) { format!("^{module}") } else { module.to_owned() };
        let others = || modules.iter().map(|(module, &numbers)| (*module, numbers));
        let ranks = others()
            .filter(|(_, numbers)| numbers.0 != rank)
            .map(|(module, numbers)| (key(module), Json::Integer(numbers.0.into())));
        let alphas = others()
            .filter(|(_, numbers)| alpha(*numbers) != alpha((rank, scale)))
            .map(|(module, numbers)| (key(module), alpha(numbers)));
        let (ranks, alphas) = (Json::Object(ranks.collect()), Json::Object(alphas.collect()));
        let names = modules.keys().map(|module| Json::Text((*module).to_owned())).collect();
        let config = &mut self.config;
        if !all_named {
            for key in ["target_modules", "layers_to_transform", "layers_pattern", "exclude_modules"] {
                config.remove(key);
            }
        }
        config.set("r", Json::Integer(rank.into()));
        config.set("lora_alpha", alpha((rank, scale)));
        config.set("rank_pattern", ranks);
        config.set("alpha_pattern", alphas);
        config.set("use_dora", Json::Bool(dora));
        for (key, value) in [
            ("peft_type", Json::Text("LORA".to_owned())),
            ("target_modules", Json::List(names)),
            ("bias", Json::Text("none".to_owned())),
            ("inference_mode", Json::Bool(true)),
            ("lora_dropout", Json::Float(0.0)),
            ("base_model_name_or_path", Json::Null),
            ("task_type", Json::Null),
        ] {
            if config.get(key).is_none() {
                config.set(key, value);
            }
        }
        config.sort();
    }
}

fn ends_with(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
