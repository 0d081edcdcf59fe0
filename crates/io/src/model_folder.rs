//! Folders of models: tensors, and what a library needs beside them to run the model.

use std::fs;
use std::path::Path;

use tacit_core::{Error, Result};
use tacit_files::{current, folder_of, make_folder};
use tacit_nn::Parameters;

use crate::checkpoint::metadata;
use crate::gguf::Gguf;
use crate::json::Json;
use crate::set::Set;
use crate::structure::take_apart;
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
/// ModelFolder::of(file)?.write("gemma-3-270m", &parameters, Library::MlxLm)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ModelFolder {
    config: Option<Json>,
    beside: Vec<(&'static str, Vec<u8>)>,
}

const CONFIG: &str = "config.json";
const TENSORS: &str = "model.safetensors";
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
    pub fn of(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let folder = if path.is_dir() { path } else { folder_of(path) };
        let Some(file) = Gguf::find(path)? else {
            let mut beside = copied(folder, &[GENERATION])?;
            beside.extend(copied(folder, &TOKENIZER)?);
            return Ok(Self { config: Json::open_if_there(folder.join(CONFIG))?, beside });
        };
        let file = Gguf::open(file)?;
        let mut beside = if file.has_tokenizer() {
            let made = [file.tokenizer()?, file.tokenizer_config()?];
            TOKENIZER.into_iter().zip(made).map(|(name, json)| (name, json.indented(2).into_bytes())).collect()
        } else {
            copied(folder, &TOKENIZER)?
        };
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
        Ok(Self { config: Some(config), beside })
    }

    /// The names of the files that [`write`](Self::write) writes.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [TENSORS, CONFIG].into_iter().chain(self.beside.iter().map(|(name, _)| *name))
    }

    /// Writes a folder of a library: `model.safetensors`, or more files and an index, `config.json`, and what stands beside them.
    ///
    /// All of them appear at once, and nothing else of the folder changes, which is made if it is not there. The configuration is
    /// the model's own, with what it has to say of the formats of these parameters.
    ///
    /// # Errors
    ///
    /// There is no configuration and the library needs one, a value is none that the library has (see [`Library::holdable`]), or
    /// a file cannot be written.
    pub fn write(&self, folder: impl AsRef<Path>, parameters: &Parameters, library: Library) -> Result<()> {
        let folder = folder.as_ref();
        let path = folder.join(TENSORS);
        let config = || mlx_lm::Config::new(self.config.clone().unwrap_or_else(|| Json::Object(Vec::new())));
        let mut beside = self.beside.clone();
        match library {
            Library::MlxLm => mlx_lm::write_beside(folder, parameters, &config(), beside),
            Library::Tacit => {
                beside.extend(self.config.iter().map(|json| (CONFIG, json.indented(2).into_bytes())));
                let (structure, tensors) = take_apart(parameters, None)?;
                let _new = make_folder(folder)?;
                let tensors = tensors.into_iter().collect();
                Set { path: &path, beside }.write(tensors, &metadata(&structure), Writing::default())
            }
            Library::HuggingFace => {
                if self.config.is_none() {
                    let help = "name a GGUF file, or the folder of a model with its config.json";
                    return Err(Error::checkpoint(&path, None, "nothing says what model these tensors are of", help));
                }
                let config = config().describing(parameters)?;
                beside.push((CONFIG, config.json().indented(2).into_bytes()));
                let tensors = hugging_face::tensors(&path, parameters)?;
                let _new = make_folder(folder)?;
                hugging_face::write_set(Set { path: &path, beside }, tensors)
            }
        }
    }
}

/// The files of these names that a folder has.
fn copied(folder: &Path, names: &[&'static str]) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let mut files = Vec::new();
    for &name in names {
        let file = current(&folder.join(name))?;
        if file.is_file() {
            files.push((name, fs::read(&file).map_err(Error::file("read", &file))?));
        }
    }
    Ok(files)
}

impl Library {
    /// The parameters as the library has them: experts apart or as one, and dense what it has no format for. `file` is what errors
    /// name.
    ///
    /// What is made dense has the values that it stands for, and the [policy](tacit_core::Policy) is asked for it. For mlx-lm K-quants
    /// of 4 and 5 bits keep their codes, as affine arrays.
    ///
    /// # Errors
    ///
    /// As for [`layout::as_mlx_lm`], [`layout::as_hugging_face`] and [`dense`].
    pub fn holdable(self, file: impl AsRef<Path>, parameters: Parameters) -> Result<Parameters> {
        match self {
            Self::Tacit => Ok(parameters),
            Self::HuggingFace => layout::as_hugging_face(dense(&parameters)?),
            Self::MlxLm => {
                let (mut held, mut others) = (Parameters::new(), Parameters::new());
                for (path, value) in layout::as_mlx_lm(file.as_ref(), parameters)? {
                    let value = mlx_lm::affine_of_k_quant(&value).unwrap_or(Ok(value))?;
                    let is_held = !value.is_implicit() || mlx_lm::holds(&path, &value);
                    if is_held { &mut held } else { &mut others }.insert(path, value);
                }
                held.append(&mut dense(&others)?);
                Ok(held)
            }
        }
    }
}
