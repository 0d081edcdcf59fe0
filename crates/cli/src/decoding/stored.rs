//! Caches of a prompt in the files of mlx-lm.

use std::path::Path;

use tacit_core::Policy;
use tacit_core::{Error, Result};
use tacit_files::Place;
use tacit_io::Metadata;
use tacit_io::mlx_prompt_cache::{self, PromptCache};
use tacit_nn::{Cache, KvCache};

use super::template::Conversation;

/// Under which the metadata of a file have the conversation that it holds.
const CONVERSATION: &str = "tacit.chat";

/// What a file holds, where there is one, in place of the empty `caches`, and the conversation that they are of, if it says one.
pub(crate) fn opened(caches: Vec<Cache>, file: Option<&Path>) -> Result<(Vec<Cache>, Option<Conversation>)> {
    let Some(file) = file else { return Ok((caches, None)) };
    // It is written when the answer is made: that it cannot be is said before.
    Place::of(file)?;
    if !file.exists() {
        return Ok((caches, None));
    }
    let wrong = |reason: String| {
        Error::checkpoint(file, None, reason, "give a file that was written with this model, or another name")
    };
    let read = mlx_prompt_cache::read(file)?;
    let conversation = read.metadata.get(CONVERSATION).map(|text| serde_json::from_str(text)).transpose();
    let conversation =
        conversation.map_err(|error| wrong(format!("its entry {CONVERSATION} is no conversation: {error}")))?;
    let held = read.caches()?;
    if held.len() != caches.len() {
        return Err(wrong(format!("it holds {} layers, and the model has {}", held.len(), caches.len())));
    }
    // The heads and their width; how many tokens there is room for is of no account.
    let heads = |cache: &KvCache| -> Result<_> {
        let shape = cache.keys().aval()?.shape;
        Ok(([shape[0], shape[1], shape[3]], cache.window()))
    };
    let each = held.into_iter().zip(&caches).enumerate().map(|(layer, (held, cache))| {
        let (fits, needed) = match (&held, cache) {
            (Cache::Kv(held), Cache::Kv(own)) => (heads(held)? == heads(own)?, describe(own)),
            (_, Cache::Kv(own)) => (false, describe(own)),
            // A step says which shapes they should have.
            (Cache::Arrays(held), Cache::Arrays(own)) => (held.slots() == own.slots(), "a state".to_owned()),
            _ => (false, "a state".to_owned()),
        };
        if fits { Ok(held) } else { Err(wrong(format!("layer {layer} is no cache of {needed}"))) }
    });
    Ok((each.collect::<Result<_>>()?, conversation))
}

fn describe(cache: &KvCache) -> String {
    format!("{} in {:?}", cache.keys(), cache.window())
}

/// Writes what the caches hold, and the conversation that they are of: codes as they are where mlx-lm has such ones, and else
/// floats.
pub(crate) fn write(file: &Path, caches: &[Cache], conversation: Option<&Conversation>) -> Result<()> {
    let text = conversation.map(serde_json::to_string).transpose();
    let text = text.map_err(|error| Error::file("write", file)(error.into()))?;
    let metadata: Metadata = text.map(|text| (CONVERSATION.to_owned(), text)).into_iter().collect();
    let prompt = PromptCache::of_caches(caches, metadata.clone()).or_else(|_| {
        let _allow = Policy::Allow.scope();
        let dense = caches.iter().cloned().map(|cache| cache.stored(None, None)).collect::<Result<Vec<_>>>()?;
        PromptCache::of_caches(&dense, metadata)
    })?;
    mlx_prompt_cache::write(file, &prompt)
}
