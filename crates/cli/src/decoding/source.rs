//! Where a model keeps what it knows of text: in its GGUF file, or in files of its folder.

use std::fs;
use std::path::{Path, PathBuf};

use tacit_core::{Error, Result};
use tacit_files::current;
use tacit_io::Gguf;
use tacit_io::json::Json;
use tokenizers::Tokenizer;

/// The tokenizer of a model, and what is written beside it.
#[derive(Debug)]
pub(crate) enum Source {
    /// A file with a tokenizer in its metadata.
    File(Box<Gguf>),
    Folder(PathBuf),
}

impl Source {
    /// That of a model at a path, which may be a file in its folder.
    pub(crate) fn of(model: &Path) -> Result<Self> {
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

    fn tokenizer_file(&self) -> PathBuf {
        match self {
            Self::File(file) => file.path().to_owned(),
            Self::Folder(folder) => folder.join("tokenizer.json"),
        }
    }

    /// Whether there is a tokenizer.
    pub(crate) fn has_tokenizer(&self) -> bool {
        self.tokenizer_file().is_file()
    }

    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        let path = self.tokenizer_file();
        let unread =
            |error| Error::checkpoint(&path, None, format!("{error}"), "fetch the tokenizer of this model again");
        let tokenizer = match self {
            Self::File(file) => {
                // Of a large vocabulary each of the two takes as much memory as some models.
                let line = file.tokenizer()?.line();
                Tokenizer::from_bytes(line)
            }
            Self::Folder(_) => Tokenizer::from_file(&path),
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

    /// A file of the folder, if it is there.
    pub(crate) fn beside(&self, name: &str) -> Option<PathBuf> {
        let Self::Folder(folder) = self else { return None };
        Some(folder.join(name)).filter(|file| file.is_file())
    }
}

/// A token that a `tokenizer_config.json` names, such as `eos_token`: a text, or an object that has one.
pub(crate) fn token_of<'j>(config: &'j Json, key: &str) -> Option<&'j str> {
    let token = config.get(key)?;
    token.text().or_else(|| token.get("content")?.text())
}
