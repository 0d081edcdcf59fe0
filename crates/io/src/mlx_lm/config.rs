//! The configuration of a model of mlx-lm: what of it is quantized, and how.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mlx_rs::Dtype;
use tacit_core::{Error, Result};
use tacit_nn::{Parameters, Pattern, Rules};

use super::mode::Mode;
use crate::json::Json;
use crate::torch_dtype::dtype_of_torch;

/// A model's `config.json`, which mlx-lm reads beside the tensors.
///
/// Written again it is the same text, unless the parameters that it is written with have other formats than it says.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    file: PathBuf,
    json: Json,
}

/// What a configuration says of formats.
#[derive(Debug, Default)]
pub(super) struct Formats {
    /// The format of what has no entry of its own.
    pub(super) default: Option<Mode>,
    /// Formats by the path of a module; none where it is not quantized.
    pub(super) entries: BTreeMap<String, Option<Mode>>,
}

impl ConfigFile {
    /// Reads the `config.json` of a folder.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or it is no JSON object.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self> {
        let file = folder.as_ref().join("config.json");
        let json = Json::open(&file)?;
        Ok(Self { file, json })
    }

    /// A configuration that is not in a file yet.
    #[must_use]
    pub fn new(json: Json) -> Self {
        Self { file: PathBuf::from("config.json"), json }
    }

    /// All that it says.
    #[must_use]
    pub fn json(&self) -> &Json {
        &self.json
    }

    /// The formats as rules, to quantize another model in the same way: each entry for its own path, and the default for
    /// every other `weight` that is a [matrix](Rules::is_matrix).
    ///
    /// # Errors
    ///
    /// It has a format that MLX has not.
    pub fn rules(&self) -> Result<Rules> {
        let Formats { default, entries } = self.formats()?;
        let mut rules = Rules::new();
        for (module, mode) in entries {
            let pattern = Pattern::exact(format!("{module}.weight"));
            rules = match mode {
                Some(mode) => rules.quantize(pattern, mode.format())?,
                None => rules.skip(pattern)?,
            };
        }
        match default {
            Some(mode) => rules.quantize("*.weight", mode.format()),
            None => Ok(rules),
        }
    }

    /// The path of the object that says what is quantized, if there is one.
    fn section(&self) -> Result<Option<Vec<&'static str>>> {
        let places = [vec![QUANTIZATION], vec![TEXT, QUANTIZATION], vec![CONFIG], vec![TEXT, CONFIG]];
        for place in places {
            let Some(section) = self.at(&place).filter(|section| **section != Json::Null) else { continue };
            if let Some(method) = section.get("quant_method").filter(|method| !is_mode(method)) {
                let reason = format!("it is quantized by {method}, which is no mode of MLX's");
                return Err(self.wrong(&place.join("."), reason, "read it by the reader of that format"));
            }
            return Ok(Some(place));
        }
        Ok(None)
    }

    fn at(&self, place: &[&str]) -> Option<&Json> {
        place.iter().try_fold(&self.json, |json, key| json.get(key))
    }

    pub(super) fn formats(&self) -> Result<Formats> {
        let Some(place) = self.section()? else { return Ok(Formats::default()) };
        let section = self.at(&place).unwrap_or(&Json::Null);
        let wrong = |key: &str, reason: String| {
            let key: Vec<&str> = place.iter().copied().chain([key]).filter(|part| !part.is_empty()).collect();
            self.wrong(&key.join("."), reason, "MLX has affine, mxfp4, mxfp8 and nvfp4: convert the model again")
        };
        if !matches!(section, Json::Object(_)) {
            return Err(wrong("", format!("it is {section}, and should be an object")));
        }
        let method = section.get("quant_method").map(|method| [("mode".to_owned(), method.clone())].to_vec());
        let default = Mode::of_json(&method.map_or_else(|| section.clone(), Json::Object));
        let default = Some(default.map_err(|reason| wrong("", reason))?);
        let mut entries = BTreeMap::new();
        for (module, entry) in section.entries() {
            let mode = match entry {
                Json::Bool(false) => None,
                Json::Bool(true) => default,
                Json::Object(_) => Some(Mode::of_json(entry).map_err(|reason| wrong(module, reason))?),
                // An option of the whole, such as `group_size`.
                _ => continue,
            };
            entries.insert(module.clone(), mode);
        }
        Ok(Formats { default, entries })
    }

    /// The dtype of the floats that were quantized, where the codes do not tell.
    pub(super) fn dtype(&self) -> Dtype {
        let keys = [vec!["torch_dtype"], vec!["dtype"], vec![TEXT, "torch_dtype"], vec![TEXT, "dtype"]];
        let named = |key: &Vec<&str>| dtype_of_torch(self.at(key)?.text()?);
        keys.iter().find_map(named).filter(Dtype::is_float).unwrap_or(Dtype::Bfloat16)
    }

    /// The configuration for these parameters: as it is, if it says their formats. What it says of another library's format
    /// is left out, which is not theirs any more.
    pub(crate) fn describing(&self, parameters: &Parameters) -> Result<Self> {
        let mut this = self.clone();
        for place in [&[][..], &[TEXT]] {
            let method =
                this.at(place).and_then(|json| json.get(CONFIG)).and_then(|section| section.get("quant_method"));
            if method.is_some_and(|method| !is_mode(method)) {
                this.change(place, |json| drop(json.remove(CONFIG)));
            }
        }
        this.described(parameters)
    }

    fn described(&self, parameters: &Parameters) -> Result<Self> {
        let quantized: BTreeMap<&str, Mode> = parameters
            .iter()
            .filter_map(|(name, value)| Some((name.strip_suffix(".weight")?, Mode::from_value(value)?)))
            .collect();
        let (place, formats) = (self.section()?, self.formats()?);
        let holds = |module: &str, entry: Option<Mode>| quantized.get(module).copied() == entry;
        let said = |module: &str| formats.entries.get(module).copied().unwrap_or(formats.default);
        let mut this = self.clone();
        if quantized.is_empty() {
            if let Some(place) = place {
                this.change(&place[..place.len() - 1], |json| {
                    for key in [QUANTIZATION, CONFIG] {
                        json.remove(key);
                    }
                });
            }
            return Ok(this);
        }
        if quantized.iter().all(|(module, mode)| said(module) == Some(*mode))
            && formats.entries.iter().all(|(module, entry)| holds(module, *entry))
        {
            return Ok(this);
        }
        let default = formats.default.unwrap_or_else(|| most(quantized.values().copied()));
        let mut section = place.as_ref().and_then(|place| self.at(place)).cloned().unwrap_or_else(|| default.json());
        // mlx-lm takes a method for a mode in `quantization_config` alone, and asks `quantization` for a group size and bits.
        if section.remove("quant_method").is_some() {
            for (key, value) in default.json().entries() {
                section.set(key, value.clone());
            }
        }
        for (module, entry) in &formats.entries {
            if !holds(module, *entry) {
                section.remove(module);
            }
        }
        for (module, mode) in quantized {
            if mode != default && section.get(module).is_none() {
                section.set(module, mode.json());
            }
        }
        let place = place.unwrap_or_else(|| vec![QUANTIZATION]);
        this.change(&place[..place.len() - 1], |json| {
            for key in [QUANTIZATION, CONFIG] {
                json.set(key, section.clone());
            }
        });
        Ok(this)
    }

    /// Changes the object at a place, and sorts the whole as mlx-lm does when it writes.
    fn change(&mut self, place: &[&str], f: impl FnOnce(&mut Json)) {
        let mut json = &mut self.json;
        for key in place {
            json = json.entry(key);
        }
        f(json);
        self.json.sort();
    }

    /// The text that mlx-lm writes.
    pub(super) fn text(&self) -> String {
        self.json.indented(4)
    }

    pub(crate) fn wrong(&self, key: &str, reason: impl Into<String>, help: &str) -> Error {
        Error::checkpoint(&self.file, Some(key), reason, help)
    }
}

const QUANTIZATION: &str = "quantization";
const CONFIG: &str = "quantization_config";
const TEXT: &str = "text_config";

/// Whether mlx-lm reads a method of another library as a mode of MLX's.
fn is_mode(method: &Json) -> bool {
    matches!(method.text(), Some("mxfp4" | "mxfp8"))
}

/// The most common of some modes; of several the first.
fn most(modes: impl Iterator<Item = Mode>) -> Mode {
    let mut counts: Vec<(Mode, usize)> = Vec::new();
    for mode in modes {
        match counts.iter_mut().find(|(known, _)| *known == mode) {
            Some((_, count)) => *count += 1,
            None => counts.push((mode, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.first().map_or(Mode::Mxfp4, |(mode, _)| *mode)
}
