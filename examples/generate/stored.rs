//! Caches of a prompt in the files of mlx-lm.

use std::path::Path;

use tacit::io::mlx_prompt_cache::{self, PromptCache};
use tacit::nn::{Cache, KvCache};
use tacit::prelude::*;
use tacit::{Error, Result};

/// What a file holds, where there is one, in place of the empty `caches`.
pub(crate) fn opened(caches: Vec<KvCache>, file: Option<&Path>) -> Result<Vec<KvCache>> {
    let Some(file) = file.filter(|file| file.exists()) else { return Ok(caches) };
    let wrong = |reason: String| {
        Error::checkpoint(file, None, reason, "give a file that was written with this model, or another name")
    };
    let held = mlx_prompt_cache::read(file)?.caches()?;
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
    each.collect()
}

/// Writes what the caches hold: codes as they are where mlx-lm has such ones, and else floats.
pub(crate) fn write(file: &Path, caches: &[KvCache]) -> Result<()> {
    let of = |caches: Vec<KvCache>| {
        let layers: Vec<Cache> = caches.into_iter().map(Cache::Kv).collect();
        PromptCache::of_caches(&layers, tacit::io::Metadata::new())
    };
    let prompt = of(caches.to_vec()).or_else(|_| {
        let _allow = Policy::Allow.scope();
        of(caches.iter().cloned().map(KvCache::dense).collect::<Result<_>>()?)
    })?;
    mlx_prompt_cache::write(file, &prompt)
}
