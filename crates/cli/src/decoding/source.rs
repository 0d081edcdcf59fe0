//! Where a model keeps what it knows of text: in its GGUF file, or in files of its folder.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tacit_core::{Error, Result};
use tacit_files::current;
use tacit_io::Gguf;
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
        let (path, text) = match self {
            Self::File(file) => (file.path().to_owned(), file.tokenizer_config()?.line().into_bytes()),
            Self::Folder(folder) => {
                let path = folder.join("tokenizer_config.json");
                if !path.is_file() {
                    return Ok((path, Json::Null));
                }
                let text = fs::read(&path).map_err(Error::file("read", &path))?;
                (path, text)
            }
        };
        let json = serde_json::from_slice(&text).map_err(|error| {
            Error::checkpoint(&path, None, error.to_string(), "fetch the tokenizer of this model again")
        })?;
        Ok((path, json))
    }

    /// A file of the folder, if it is there.
    pub(crate) fn beside(&self, name: &str) -> Option<PathBuf> {
        let Self::Folder(folder) = self else { return None };
        Some(folder.join(name)).filter(|file| file.is_file())
    }
}
