//! Caches of a prompt in the files of mlx-lm.

use std::path::Path;

use mlx_rs::ops::indexing::TryIndexOp;
use tacit::io::mlx_prompt_cache::{self, Cache, Held, PromptCache};
use tacit::nn::{KvCache, Window};
use tacit::prelude::*;
use tacit::{Error, Result};

/// The caches with what a file holds, where there is one: its keys and values are stored as those of the caches are.
pub(crate) fn opened(mut caches: Vec<KvCache>, file: Option<&Path>) -> Result<Vec<KvCache>> {
    let Some(file) = file.filter(|file| file.exists()) else { return Ok(caches) };
    let PromptCache { layers, .. } = mlx_prompt_cache::read(file)?;
    let wrong = |key: Option<&str>, reason: String| {
        Err(Error::checkpoint(file, key, reason, "give a file that was written with this model, or another name"))
    };
    if layers.len() != caches.len() {
        return wrong(None, format!("it holds {} layers, and the model has {}", layers.len(), caches.len()));
    }
    for (number, (cache, layer)) in caches.iter_mut().zip(layers).enumerate() {
        let key = number.to_string();
        let (held, tokens) = match layer {
            Cache::Kv { held, offset } | Cache::Quantized { held, offset, .. } => (held, offset),
            _ => return wrong(Some(&key), "the layer has no cache of all tokens".to_owned()),
        };
        let Some(Held { keys, values }) = held else { continue };
        let _allow = Policy::Allow.scope();
        let part = |value: Value| -> Result<_> { Ok(value.dense()?.try_index((.., .., ..tokens, ..))?) };
        cache.reserve(tokens)?;
        cache.update(&part(keys)?, &part(values)?)?;
    }
    Ok(caches)
}

/// Writes what the caches hold, as floats.
pub(crate) fn write(file: &Path, caches: &[KvCache]) -> Result<()> {
    let _allow = Policy::Allow.scope();
    let layers = caches.iter().map(|cache| {
        if cache.window() != Window::Everything {
            return Err(Error::invalid(
                "a cache that keeps a window is not written to a file",
                "leave `--prompt-cache` out for this model",
            ));
        }
        let tokens = cache.len();
        let part = |value: &Value| -> Result<Value> { Ok(value.dense()?.try_index((.., .., ..tokens, ..))?.into()) };
        let held =
            if tokens == 0 { None } else { Some(Held { keys: part(cache.keys())?, values: part(cache.values())? }) };
        Ok(Cache::Kv { held, offset: tokens })
    });
    let layers = layers.collect::<Result<_>>()?;
    mlx_prompt_cache::write(file, &PromptCache { layers, ..PromptCache::default() })
}
