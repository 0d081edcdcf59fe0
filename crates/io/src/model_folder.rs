//! Folders of models: tensors, and what a library needs beside them to run the model.

use std::borrow::{Borrow, Cow};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tacit_core::{Error, Result};
use tacit_files::{current, current_if_there, folder_of, make_folder};
use tacit_nn::Parameters;

use crate::adapter;
use crate::checkpoint::metadata;
use crate::gguf::{self, Gguf, GgufType};
use crate::json::Json;
use crate::layout::{EMBEDDING, HEAD};
use crate::set::Set;
use crate::structure::take_apart;
use crate::unconfigured::unconfigured;
use crate::{Writing, dense, hugging_face, layout, mlx_lm};

/// Whose folder of a model is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// Tacit's: any values.
    Tacit,
    /// mlx-lm's: dense arrays, and `weight`s of modules in MLX's modes.
    MlxLm,
    /// Hugging Face's: dense arrays.
    HuggingFace,
}

/// What stands beside the tensors of a model: its configuration, its tokenizer with the template of chats, and how its texts end.
///
/// Of a GGUF file these are made of the metadata, and of a folder they are copied.
///
/// ```no_run
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_io::{Library, ModelFolder, read};
///
/// let file = "gemma-3-270m-q4_k_m.gguf";
/// let parameters = Library::MlxLm.holdable("gemma-3-270m", read(file)?)?;
/// ModelFolder::open(file)?.write("gemma-3-270m", &parameters, Library::MlxLm)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ModelFolder {
    folder: PathBuf,
    /// The GGUF file that it is read from.
    source: Option<Rc<Gguf>>,
    config: Option<Json>,
    beside: Vec<(&'static str, Vec<u8>)>,
}

const CONFIG: &str = "config.json";
const TENSORS: &str = "model.safetensors";
const TIED: &str = "tie_word_embeddings";
const GENERATION: &str = "generation_config.json";
/// What a tokenizer is read from, by one library or another.
const TOKENIZER: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
];

impl ModelFolder {
    /// What stands beside the tensors at a path: a GGUF file, a file of tensors in a folder, or a folder with either.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the configuration is no JSON object; or of a GGUF file as for [`Gguf::configuration`],
    /// [`Gguf::tokenizer`] and [`Gguf::tokenizer_config`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let folder = if path.is_dir() { path } else { folder_of(path) };
        let Some(file) = Gguf::find(path)? else {
            let mut beside = copied(folder, &[GENERATION])?;
            beside.extend(copied(folder, &TOKENIZER)?);
            let config = Json::open_if_there(folder.join(CONFIG))?;
            return Ok(Self { folder: folder.to_owned(), source: None, config, beside });
        };
        let file = Gguf::open(file)?;
        // As much of a model that we do not run as its file says in known words.
        let is_known = file.is_known();
        let tokenizer = match (file.has_tokenizer(), is_known) {
            (true, true) => Some([file.tokenizer()?, file.tokenizer_config()?]),
            (true, false) => file.tokenizer().and_then(|tokenizer| Ok([tokenizer, file.tokenizer_config()?])).ok(),
            (false, _) => None,
        };
        let mut beside = if let Some(tokenizer) = tokenizer {
            TOKENIZER.into_iter().zip(tokenizer).map(|(name, json)| (name, json.indented(2).into_bytes())).collect()
        } else {
            copied(folder, &TOKENIZER)?
        };
        if !is_known {
            return Ok(Self { folder: folder.to_owned(), source: Some(Rc::new(file)), config: None, beside });
        }
        let config = file.configuration()?;
        let mut generation = Json::Object(Vec::new());
        for key in ["bos_token_id", "eos_token_id"] {
            if let Some(token) = config.get(key) {
                generation.set(key, token.clone());
            }
        }
        if !generation.entries().is_empty() {
            beside.push((GENERATION, generation.indented(2).into_bytes()));
        }
        Ok(Self { folder: folder.to_owned(), source: Some(Rc::new(file)), config: Some(config), beside })
    }

    /// The names of the files that [`write`](Self::write) writes where the tensors fit into one.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [TENSORS, CONFIG].into_iter().chain(self.beside.iter().map(|(name, _)| *name))
    }

    /// The names of the tokenizer files, and of `generation_config.json`, that are in a folder and that this model does not have:
    /// [`write`](Self::write) removes them.
    #[must_use]
    pub fn stale(&self, folder: &Path) -> Vec<&'static str> {
        let names = TOKENIZER.into_iter().chain([GENERATION]);
        let stale = names.filter(|name| self.beside.iter().all(|(known, _)| known != name));
        stale.filter(|name| current(&folder.join(name)).is_ok_and(|file| file.is_file())).collect()
    }

    /// Writes one file that llama.cpp reads, with the configuration and the tokenizer as metadata, and returns how many parameters
    /// were converted to `others`.
    ///
    /// Codes stay where a type of GGUF has the same numbers: those that were read from a GGUF file, MXFP4, `symmetric` ones of 4, 5 and
    /// 8 bits, and `affine` ones of 4 and 5 bits, if half floats hold their scales and biases. Without `others` floats stay too, and
    /// other codes are an error. With it both become `others`, which is one of F32, F16, BF16, Q4\_0, Q4\_1, Q5\_0, Q5\_1 and Q8\_0, as
    /// far as their rows are whole blocks of it. Vectors and filters of a model with Hugging Face's names become F32, as llama.cpp wants
    /// them. The metadata of a GGUF file are copied.
    ///
    /// ```no_run
    /// # fn main() -> tacit_core::Result<()> {
    /// use tacit_io::{GgufType, ModelFolder, read};
    ///
    /// let folder = "qwen3-0.6b";
    /// ModelFolder::open(folder)?.write_gguf("qwen3-0.6b-q8_0.gguf", &read(folder)?, GgufType::named("q8_0"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// There is no configuration; it, the tokenizer or a parameter is none that llama.cpp has; or the file cannot be written.
    pub fn write_gguf(
        &self,
        file: impl AsRef<Path>,
        parameters: impl Borrow<Parameters>,
        others: Option<GgufType>,
    ) -> Result<usize> {
        let file = file.as_ref();
        self.planned(file, parameters, others)?.write(file)
    }

    /// Checks that [`write_gguf`](Self::write_gguf) has a type for each of these parameters and a key for all of the configuration.
    ///
    /// Nothing is written, so that a training run that ends in such a file can check it before its first step.
    ///
    /// # Errors
    ///
    /// As for [`write_gguf`](Self::write_gguf), but for numbers that `others` does not hold, and what the system refuses.
    pub fn check_gguf(&self, file: impl AsRef<Path>, parameters: &Parameters, others: Option<GgufType>) -> Result<()> {
        self.planned(file.as_ref(), parameters, others).map(drop)
    }

    fn planned(
        &self,
        file: &Path,
        parameters: impl Borrow<Parameters>,
        others: Option<GgufType>,
    ) -> Result<gguf::Planned> {
        let tokenizer = if self.source.is_some() { None } else { self.tokenizer()? };
        let beside = gguf::Beside {
            folder: &self.folder,
            source: self.source.as_deref(),
            config: self.config.as_ref(),
            tokenizer,
        };
        gguf::planned(file, parameters, &beside, others)
    }

    /// Checks that transformers rotates heads as the model does: it passes over the key that says otherwise.
    fn check_positions(&self) -> Result<()> {
        const KEY: &str = "rope_traditional";
        if self.config.as_ref().and_then(|config| config.get(KEY)?.flag()) != Some(true) {
            return Ok(());
        }
        let reason = "it is true, and transformers rotates the halves of heads whatever it says";
        let help = "write the model with `--as mlx-lm` or `--as tacit`";
        Err(Error::checkpoint(&self.folder.join(CONFIG), Some(KEY), reason, help))
    }

    /// The tokenizer of the files beside the tensors.
    fn tokenizer(&self) -> Result<Option<gguf::Tokenizer>> {
        let text = |name: &str| {
            let (_, content) = self.beside.iter().find(|(known, _)| *known == name)?;
            Some(String::from_utf8_lossy(content))
        };
        let json = |name: &str| {
            let wrong = |reason| Error::checkpoint(&self.folder.join(name), None, reason, "fetch it again");
            text(name).map(|text| Json::parse(&text).map_err(wrong)).transpose()
        };
        let config = json("tokenizer_config.json")?.unwrap_or(Json::Object(Vec::new()));
        let Some(tokenizer) = json("tokenizer.json")? else {
            let other = ["tokenizer.model", "vocab.json"].into_iter().find(|name| text(name).is_some());
            return other.map_or(Ok(None), |name| {
                let help = "make it with `save_pretrained` of the tokenizer in transformers";
                let reason = "there is no tokenizer.json beside it, which alone is read";
                Err(Error::checkpoint(&self.folder.join(name), None, reason, help))
            });
        };
        let template_of = |json: &Json| chat_template(json).map(str::to_owned);
        let template = text("chat_template.jinja").map(Cow::into_owned);
        let template =
            template.or(json("chat_template.json")?.as_ref().and_then(template_of)).or_else(|| template_of(&config));
        Ok(Some(gguf::Tokenizer { json: tokenizer, config, template }))
    }

    /// Writes a folder of a library: `model.safetensors`, or more files and an index, `config.json`, and what stands beside them.
    ///
    /// All of them appear at once. The tokenizer files of a model that was there before are removed ([`stale`](Self::stale)), and
    /// nothing else in the folder changes. The folder is made if it is not there. The configuration is the model's own, changed to say
    /// the formats of these parameters where the library has a key for them, and that the head is the embedding where a decoder has
    /// no other head, as one that was [tied](tacit_nn::Model::tie) so.
    ///
    /// # Errors
    ///
    /// There is no configuration and the library needs one, a value is none that the library has (see [`Library::holdable`]), or
    /// a file cannot be written.
    pub fn write(&self, folder: impl AsRef<Path>, parameters: impl Borrow<Parameters>, library: Library) -> Result<()> {
        let folder = folder.as_ref();
        let path = folder.join(TENSORS);
        let tied = self.config.as_ref().map(|config| tied_as(config, parameters.borrow()));
        let config = || mlx_lm::ConfigFile::new(tied.clone().unwrap_or_else(|| Json::Object(Vec::new())));
        let (mut beside, stale) = (self.beside.clone(), self.stale(folder));
        if let Some(source) = self.source.as_ref().filter(|source| library != Library::Tacit && !source.is_known()) {
            // It says which are.
            source.configuration()?;
        }
        match library {
            // Its tensors are no parameters, and of what is written nobody could tell its scale.
            Library::MlxLm if tied.is_none() && current_if_there(&self.folder.join(adapter::CONFIG))?.is_some() => {
                Err(unconfigured(&path, &self.folder))
            }
            Library::MlxLm => mlx_lm::write_beside(folder, parameters, &config(), beside, stale),
            Library::Tacit => {
                beside.extend(tied.iter().map(|json| (CONFIG, json.indented(2).into_bytes())));
                let (structure, tensors) = take_apart(parameters.borrow(), None)?;
                drop(parameters);
                let _new = make_folder(folder)?;
                let tensors = tensors.into_iter().collect();
                Set { path: &path, beside, stale }.write(tensors, &metadata(&structure), Writing::default())
            }
            Library::HuggingFace => {
                if self.config.is_none() {
                    return Err(unconfigured(&path, &self.folder));
                }
                self.check_positions()?;
                let config = config().describing(parameters.borrow())?;
                beside.push((CONFIG, config.json().indented(2).into_bytes()));
                let tensors = hugging_face::tensors(&path, parameters.borrow())?;
                drop(parameters);
                let _new = make_folder(folder)?;
                hugging_face::write_set(Set { path: &path, beside, stale }, tensors)
            }
        }
    }
}

/// The template of chats that a `tokenizer_config.json` has: of several with names the one that is called the default.
///
/// ```
/// use tacit_io::{chat_template, json::Json};
///
/// let one = Json::parse(r#"{"chat_template": "{{ messages }}"}"#).unwrap();
/// let named = r#"{"chat_template": [{"name": "tool_use", "template": ""}, {"name": "default", "template": "{{ messages }}"}]}"#;
/// assert_eq!(chat_template(&one), chat_template(&Json::parse(named).unwrap()));
/// assert_eq!(chat_template(&one), Some("{{ messages }}"));
/// ```
#[must_use]
pub fn chat_template(config: &Json) -> Option<&str> {
    let template = config.get("chat_template")?;
    let Json::List(named) = template else { return template.text() };
    let is_default = |one: &&Json| one.get("name").and_then(Json::text) == Some("default");
    named.iter().find(is_default)?.get("template")?.text()
}

/// The configuration, which says that the head is the embedding where these parameters have no head.
///
/// What it does not say is the library's default, which may be a head. A model without any, such as a classifier, keeps its own: its
/// class is not that of a language model.
fn tied_as(config: &Json, parameters: &Parameters) -> Json {
    let class = |class: &Json| class.text().is_some_and(|class| class.ends_with("ForCausalLM"));
    let has_head = match config.get("architectures") {
        Some(Json::List(classes)) => classes.iter().any(class),
        _ => true,
    };
    let mut config = config.clone();
    let missing = parameters.contains_key(EMBEDDING) && !parameters.contains_key(HEAD);
    if has_head && missing && config.get(TIED).and_then(Json::flag) != Some(true) {
        config.set(TIED, Json::Bool(true));
    }
    config
}

/// The files of these names that a folder has.
fn copied(folder: &Path, names: &[&'static str]) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let mut files = Vec::new();
    for &name in names {
        let file = current_if_there(&folder.join(name))?;
        if let Some(file) = file.filter(|file| file.is_file()) {
            files.push((name, fs::read(&file).map_err(Error::file("read", &file))?));
        }
    }
    Ok(files)
}

impl Library {
    /// The parameters as the library has them: experts apart or as one array, and dense where it has no format for them.
    ///
    /// Errors name `file`.
    ///
    /// What is made dense has the values that it stands for, and the [policy](tacit_core::Policy) is asked for it. For mlx-lm K-quants
    /// of 4 and 5 bits and symmetric arrays keep their codes, as affine arrays. For Tacit nothing changes.
    ///
    /// # Errors
    ///
    /// As for [`layout::as_mlx_lm`], [`layout::as_hugging_face`] and [`dense`].
    pub fn holdable(self, file: impl AsRef<Path>, parameters: Parameters) -> Result<Parameters> {
        match self {
            Self::Tacit => Ok(parameters),
            Self::HuggingFace => layout::as_hugging_face(dense(parameters)?),
            Self::MlxLm => {
                let (mut holdable, mut others) = (Parameters::new(), Parameters::new());
                for (path, value) in layout::as_mlx_lm(file.as_ref(), parameters)? {
                    let value = mlx_lm::as_affine(value)?;
                    let is_held = !value.is_implicit() || mlx_lm::holds(&path, &value);
                    if is_held { &mut holdable } else { &mut others }.insert(path, value);
                }
                holdable.append(&mut dense(others)?);
                Ok(holdable)
            }
        }
    }
}
