//! Caches of a prompt in the files of mlx-lm.

use std::fs;
use std::path::Path;

use tacit_core::{Error, Policy, Result, printable};
use tacit_io::mlx_prompt_cache::{self, PromptCache};
use tacit_io::{FileState, Metadata, mlx_adapter, peft, sources};
use tacit_nn::{Cache, KvCache};

use super::source::states;
use super::template::Conversation;
use crate::overwriting::check_makes;

/// The key in the metadata of a file for the conversation that it holds.
const CONVERSATION: &str = "tacit.chat";

/// The key for the model, as in mlx-lm's files: its path, or the name that it was fetched by.
const MODEL: &str = "model";

/// The key for the path of the adapter, which is empty without one; mlx-lm's files lack it.
const ADAPTER: &str = "tacit.adapter";

/// The key for what the files of both are recognized by.
const FILES: &str = "tacit.files";

/// The key for what mlx-lm's tokenizer was made with, without which mlx-lm reads no file.
const TOKENIZER: &str = "tokenizer_config";

/// What a file holds.
#[derive(Default)]
pub(crate) struct Stored {
    pub(crate) caches: Vec<Cache>,
    /// What the caches are of, if it says that.
    pub(crate) conversation: Option<Conversation>,
    /// What it says beside, which is written back.
    pub(crate) metadata: Metadata,
}

impl Stored {
    /// What a file holds, where there is one, in place of the empty `caches` of the model at a path with an adapter.
    pub(crate) fn open(file: &Path, caches: Vec<Cache>, model: &Path, adapter: Option<&Path>) -> Result<Self> {
        // It is written when the answer is made: that it cannot be is said before.
        check_makes(file)?;
        // PEFT's or mlx-lm's, whose configurations have one name.
        let of_adapter = adapter.into_iter().flat_map(|folder| {
            let ([of_peft, config], [of_mlx, _]) = (peft::files(folder), mlx_adapter::files(folder));
            [config, of_peft, of_mlx]
        });
        let of_adapter = of_adapter.filter(|file| file.is_file());
        let files = states(&sources(model)?.into_iter().chain(of_adapter).collect::<Vec<_>>())?;
        // The file holds paths as text, and so they are compared as text.
        let whole = |path: &Path| {
            let whole = fs::canonicalize(path).map_err(Error::file("read", path))?;
            Ok::<_, Error>(whole.to_string_lossy().into_owned())
        };
        let (model, adapter) = (whole(model)?, adapter.map(whole).transpose()?.unwrap_or_default());
        if !file.exists() {
            let entries = [(MODEL, model), (ADAPTER, adapter), (FILES, files), (TOKENIZER, "{}".to_owned())];
            let metadata = entries.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
            return Ok(Self { caches, conversation: None, metadata });
        }
        let wrong = |reason: String| {
            Error::checkpoint(file, None, reason, "give a file that was written with this model, or another name")
        };
        let read = mlx_prompt_cache::read(file)?;
        // A name says nothing of a path.
        if let Some(other) = read.metadata.get(MODEL).filter(|other| Path::new(other).is_absolute())
            && Path::new(other) != Path::new(&model)
        {
            return Err(wrong(format!("it is of the model {}", printable::name(other))));
        }
        if let Some(other) = read.metadata.get(ADAPTER).filter(|other| **other != adapter) {
            let other = if other.is_empty() { "no adapter".to_owned() } else { printable::name(other).into_owned() };
            return Err(wrong(format!("it is of the model with {other}")));
        }
        if read.metadata.get(FILES).is_some_and(|others| *others != files) {
            return Err(wrong(
                "the files of the model or of the adapter are others than it was written with".to_owned(),
            ));
        }
        let conversation = read.metadata.get(CONVERSATION).map(|text| serde_json::from_str(text)).transpose();
        let conversation =
            conversation.map_err(|error| wrong(format!("its entry {CONVERSATION} is no conversation: {error}")))?;
        let stored = read.caches()?;
        if stored.len() != caches.len() {
            return Err(wrong(format!("it holds {} layers, and the model has {}", stored.len(), caches.len())));
        }
        // The heads and their width; how many tokens there is room for is of no account.
        let heads = |cache: &KvCache| -> Result<_> {
            let shape = cache.keys().aval()?.shape;
            Ok(([shape[0], shape[1], shape[3]], cache.window()))
        };
        let fitting = stored.into_iter().zip(&caches).enumerate().map(|(layer, (stored, cache))| {
            let (fits, needed) = match (&stored, cache) {
                (Cache::Kv(stored), Cache::Kv(own)) => (heads(stored)? == heads(own)?, describe(own)),
                (_, Cache::Kv(own)) => (false, describe(own)),
                // A step says which shapes they should have.
                (Cache::Arrays(stored), Cache::Arrays(own)) => (stored.slots() == own.slots(), "a state".to_owned()),
                _ => (false, "a state".to_owned()),
            };
            if fits { Ok(stored) } else { Err(wrong(format!("layer {layer} is no cache of {needed}"))) }
        });
        Ok(Self { caches: fitting.collect::<Result<_>>()?, conversation, metadata: read.metadata })
    }
}

fn describe(cache: &KvCache) -> String {
    format!("{} in {:?}", cache.keys(), cache.window())
}

/// By what a file is known again, if it is one.
pub(crate) fn state(file: Option<&Path>) -> Result<Option<FileState>> {
    file.filter(|file| file.is_file()).map(FileState::at).transpose()
}

/// Checks that a file is as it was read or written last.
pub(crate) fn check(file: &Path, last: Option<&FileState>) -> Result<()> {
    if state(Some(file))?.as_ref() == last {
        return Ok(());
    }
    let reason = "another program has written it since it was read, and it stays as that left it";
    Err(Error::checkpoint(file, None, reason, "give each conversation a file of its own"))
}

/// Writes what the caches hold, and what is said of them: codes as they are where mlx-lm has such ones, and else floats.
pub(crate) fn write(
    file: &Path,
    caches: &[Cache],
    mut metadata: Metadata,
    conversation: Option<&Conversation>,
) -> Result<()> {
    metadata.remove(CONVERSATION);
    if let Some(conversation) = conversation {
        let text = serde_json::to_string(conversation).map_err(|error| Error::file("write", file)(error.into()))?;
        metadata.insert(CONVERSATION.to_owned(), text);
    }
    let prompt = PromptCache::of_caches(caches, metadata.clone()).or_else(|_| {
        let _allow = Policy::Allow.scope();
        let dense = caches.iter().cloned().map(|cache| cache.stored(None, None)).collect::<Result<Vec<_>>>()?;
        PromptCache::of_caches(&dense, metadata)
    })?;
    mlx_prompt_cache::write(file, &prompt)
}
