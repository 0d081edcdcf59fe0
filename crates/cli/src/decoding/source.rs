//! Where a model has its tokenizer and templates: in its GGUF file, or in files of its folder.

use std::fs;
use std::path::{Path, PathBuf};

use tacit_core::{Error, Result};
use tacit_files::{current, current_if_there};
use tacit_io::json::Json;
use tacit_io::{FileState, Gguf};
use tokenizers::Tokenizer;

/// The tokenizer of a model, and what is written beside it.
#[derive(Debug)]
pub(crate) enum Source {
    /// A file with a tokenizer in its metadata.
    File(Box<Gguf>),
    Folder(PathBuf),
}

const TOKENIZER: &str = "tokenizer.json";

/// The files of a folder that say what tokens a text has.
const OF_TEXT: [&str; 3] = [TOKENIZER, "tokenizer_config.json", "chat_template.jinja"];

/// The files beside a model by which it reads texts; none where they cannot be found, which whoever reads them says.
pub(crate) fn files_of_text(source: &Result<Source>) -> Vec<PathBuf> {
    source.as_ref().ok().and_then(|source| source.files().ok()).unwrap_or_default()
}

/// What files are recognized by: their names, sizes and times of their last change.
pub(crate) fn states(files: &[PathBuf]) -> Result<String> {
    let one = |file: &PathBuf| {
        let FileState { path, bytes, changed } = FileState::at(file)?;
        Ok(format!("{} of {bytes} bytes at {changed}", path.display()))
    };
    Ok(files.iter().map(one).collect::<Result<Vec<_>>>()?.join(", "))
}

impl Source {
    /// The source of a model at a path, which may be a file in its folder.
    pub(crate) fn find(model: &Path) -> Result<Self> {
        // The folder around what is not there is that of another model.
        fs::metadata(current(model)?).map_err(Error::file("open", model))?;
        if let Some(file) = Gguf::find(model)? {
            let file = Gguf::open(file)?;
            if file.has_tokenizer() {
                return Ok(Self::File(Box::new(file)));
            }
        }
        let folder = if model.is_dir() { model } else { model.parent().unwrap_or(Path::new("")) };
        Ok(Self::Folder(folder.to_owned()))
    }

    /// Whether there is a tokenizer.
    pub(crate) fn has_tokenizer(&self) -> Result<bool> {
        Ok(matches!(self, Self::File(_)) || self.beside(TOKENIZER)?.is_some())
    }

    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        let path = match self {
            Self::File(file) => file.path().to_owned(),
            Self::Folder(folder) => folder.join(TOKENIZER),
        };
        let wrong = |reason: String, help: &str| Error::checkpoint(&path, None, reason, help);
        let unread = |error: tokenizers::Error| wrong(error.to_string(), "fetch the tokenizer of this model again");
        let tokenizer = match self {
            Self::File(file) => {
                // Of a large vocabulary each of the two takes as much memory as some models.
                let line = file.tokenizer()?.line();
                Tokenizer::from_bytes(line)
            }
            Self::Folder(_) => {
                let help = "copy it from the folder of the model that the tensors were made of, or fetch it";
                let at = self.beside(TOKENIZER)?.ok_or_else(|| wrong("there is no such file".to_owned(), help))?;
                Tokenizer::from_file(at)
            }
        };
        let mut tokenizer = tokenizer.map_err(unread)?;
        // A prompt is neither cut nor filled up, whatever the file was used for.
        tokenizer.with_padding(None).with_truncation(None).map_err(unread)?;
        Ok(tokenizer)
    }

    /// What `tokenizer_config.json` says, if there is one, and the file that says it.
    pub(crate) fn config(&self) -> Result<(PathBuf, Json)> {
        match self {
            Self::File(file) => Ok((file.path().to_owned(), file.tokenizer_config()?)),
            Self::Folder(folder) => {
                let path = folder.join("tokenizer_config.json");
                let json = Json::open_if_there(&path)?.unwrap_or(Json::Null);
                Ok((path, json))
            }
        }
    }

    /// The files of the folder that say what tokens a text has.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>> {
        OF_TEXT.iter().filter_map(|name| self.beside(name).transpose()).collect()
    }

    /// Where a file of the folder is, if it is there.
    pub(crate) fn beside(&self, name: &str) -> Result<Option<PathBuf>> {
        let Self::Folder(folder) = self else { return Ok(None) };
        Ok(current_if_there(&folder.join(name))?.filter(|file| file.is_file()))
    }
}

/// A token that a `tokenizer_config.json` names, such as `eos_token`: a text, or an object that has one.
pub(crate) fn token_of<'j>(config: &'j Json, key: &str) -> Option<&'j str> {
    let token = config.get(key)?;
    token.text().or_else(|| token.get("content")?.text())
}

#[cfg(test)]
mod tests {
    use tacit_files::Commit;
    use tacit_files::faults::{Fault, inject};

    use super::*;

    /// A save that has begun to give its files their names is made, whatever the old ones are.
    #[test]
    fn a_killed_save_leaves_its_own_tokenizer_and_no_template_of_another() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let at = |name: &str| folder.path().join(name);
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/decoder/golden/tokenizers/qwen2.gguf");
        let tokenizer = Gguf::open(golden).expect("opens").tokenizer().expect("is there").line();
        let save = || -> Result<()> {
            let mut commit = Commit::begin(folder.path())?;
            commit.place_content(TOKENIZER, tokenizer.as_bytes())?;
            commit.remove("chat_template.jinja");
            commit.finish()
        };
        let stopped = (0..64).find(|&step| {
            for name in [TOKENIZER, "chat_template.jinja"] {
                fs::write(at(name), "of another model").expect("writes");
            }
            inject(step, Fault::Stops, save).0.expect_err("is stopped");
            at(".tacit-save.json").is_file()
        });
        assert!(stopped.is_some());
        assert_eq!(fs::read(at(TOKENIZER)).expect("is there"), b"of another model");
        let source = Source::find(folder.path()).expect("is there");
        assert!(
            source.has_tokenizer().expect("looks") && source.tokenizer().expect("is read").get_vocab_size(true) > 0
        );
        assert_eq!(source.beside("chat_template.jinja").expect("looks"), None);
    }
}
