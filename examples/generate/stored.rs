//! Caches of a prompt in the files of mlx-lm.

use std::path::Path;

use tacit::io::Metadata;
use tacit::io::mlx_prompt_cache::{self, PromptCache};
use tacit::model::{Cache, KvCache};
use tacit::prelude::*;
use tacit::{Error, Result};

use crate::chat::Conversation;

/// Under which the metadata of a file have the conversation that it holds.
const CONVERSATION: &str = "tacit.chat";

/// What a file holds, where there is one, in place of the empty `caches`, and the conversation that they are of, if it says one.
pub(crate) fn opened(caches: Vec<KvCache>, file: Option<&Path>) -> Result<(Vec<KvCache>, Option<Conversation>)> {
    let Some(file) = file.filter(|file| file.exists()) else { return Ok((caches, None)) };
    let wrong = |reason: String| {
        Error::checkpoint(file, None, reason, "give a file that was written with this model, or another name")
    };
    let read = mlx_prompt_cache::read(file)?;
    let conversation = read.metadata.get(CONVERSATION).map(|text| serde_json::from_str(text)).transpose();
    let conversation = conversation.map_err(|error| wrong(format!("its conversation is none: {error}")))?;
    let held = read.caches()?;
    if held.len() != caches.len() {
        return Err(wrong(format!("it holds {} layers, and the model has {}", held.len(), caches.len())));
    }
    // The heads and their width; how many tokens there is room for is of no account.
    let heads = |cache: &KvCache| -> Result<_> {
        let shape = cache.keys().aval()?.shape;
        Ok(([shape[0], shape[1], shape[3]], cache.window()))
    };
    let each = held.into_iter().zip(&caches).enumerate().map(|(layer, (held, cache))| match held {
        Cache::Kv(held) if heads(&held)? == heads(cache)? => Ok(held),
        _ => Err(wrong(format!("layer {layer} is no cache of {} in {:?}", cache.keys(), cache.window()))),
    });
    Ok((each.collect::<Result<_>>()?, conversation))
}

/// Writes what the caches hold, and the conversation that they are of: codes as they are where mlx-lm has such ones, and else
/// floats.
pub(crate) fn write(file: &Path, caches: &[KvCache], conversation: Option<&Conversation>) -> Result<()> {
    let text = conversation.map(serde_json::to_string).transpose();
    let text = text.map_err(|error| Error::file("write", file)(error.into()))?;
    let metadata: Metadata = text.map(|text| (CONVERSATION.to_owned(), text)).into_iter().collect();
    let of = |caches: Vec<KvCache>| {
        let layers: Vec<Cache> = caches.into_iter().map(Cache::Kv).collect();
        PromptCache::of_caches(&layers, metadata.clone())
    };
    let prompt = of(caches.to_vec()).or_else(|_| {
        let _allow = Policy::Allow.scope();
        of(caches.iter().cloned().map(KvCache::dense).collect::<Result<_>>()?)
    })?;
    mlx_prompt_cache::write(file, &prompt)
}
