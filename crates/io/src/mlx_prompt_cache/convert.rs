//! From the caches of mlx-lm to those of a model here, and back.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops};
use tacit_arrays::format::{Affine, AnyFormat};
use tacit_core::{Error, Policy, Result, Value, implicit};
use tacit_nn::{ArraysCache, Cache as Layer, KvCache, Tokens, Window};

use super::{Cache, Held, PromptCache};
use crate::Metadata;

impl PromptCache {
    /// The caches of a model's layers, which go on where the prompt ended.
    ///
    /// Codes stay as they are: a `QuantizedKVCache` becomes a cache of its format.
    ///
    /// # Errors
    ///
    /// A cache without buffers says nothing of its shape, and that of a batch in a ring not in which order its tokens are.
    pub fn caches(&self) -> Result<Vec<Layer>> {
        self.layers.iter().map(Cache::cache).collect()
    }

    /// The prompt cache of a model's layers, as mlx-lm has it.
    ///
    /// Keys and values that are both `affine` of the same bits and groups stay as they are, in a cache without a window; any
    /// others must be dense, as [`KvCache::dense`] makes them.
    ///
    /// # Errors
    ///
    /// mlx-lm has no such cache: keys or values are in another format, or a batch is padded elsewhere than on the left, or in a
    /// window.
    pub fn of_caches(caches: &[Layer], metadata: Metadata) -> Result<Self> {
        Ok(Self { layers: caches.iter().map(Cache::of).collect::<Result<_>>()?, metadata })
    }
}

impl Cache {
    fn cache(&self) -> Result<Layer> {
        let kv = |tokens: &Tokens, window| KvCache::of_tokens(tokens, window).map(Layer::from);
        match self {
            Self::Kv { held, offset } => {
                kv(&tokens(held.as_ref(), &[(0, *offset)], *offset, None)?, Window::Everything)
            }
            Self::Quantized { held, offset, group_size, bits } => {
                let format = Affine { bits: bits.unsigned_abs(), group: group_size.unsigned_abs() as usize };
                kv(&tokens(held.as_ref(), &[(0, *offset)], *offset, Some(format.into()))?, Window::Everything)
            }
            &Self::Rotating { ref held, offset, keep, max_size, index } => {
                let slots = held.as_ref().map_or(Ok(0), |held| held.keys.aval().map(|aval| aval.shape[2]))?;
                // The ring begins behind the slot that was written last.
                let order = if index == slots || index >= offset {
                    vec![(0, index)]
                } else {
                    vec![(0, keep), (index, slots), (keep, index)]
                };
                let window = Window::Sliding { size: max_size - keep, sinks: keep };
                kv(&tokens(held.as_ref(), &order, offset, None)?, window)
            }
            &Self::Chunked { ref held, offset, chunk_size, start } => {
                let window = Window::Chunked { size: chunk_size };
                kv(&tokens(held.as_ref(), &[(0, offset - start)], offset, None)?, window)
            }
            Self::Batch { held, offset, left_padding, index } => {
                let (padding, offset) = (left_padding.as_slice::<i32>(), offset.as_slice::<i32>());
                let expected: Vec<i32> = padding.iter().map(|padding| index - padding).collect();
                if offset != expected {
                    return Err(Error::invalid(
                        format!("a batch of {index} slots, padded by {padding:?}, is said to have {offset:?} tokens"),
                        "finish its prompt by `finalize` before it is saved",
                    ));
                }
                let tokens = tokens(held.as_ref(), &[(0, *index)], *index, None)?;
                kv(&Tokens { left_padding: padding.to_vec(), ..tokens }, Window::Everything)
            }
            Self::Arrays { slots, left_padding, lengths } => {
                let mut cache = ArraysCache::new(slots.len());
                for (slot, array) in slots.iter().enumerate() {
                    array.iter().try_for_each(|array| cache.set(slot, array.clone()))?;
                }
                if let Some(padding) = left_padding {
                    cache.set_left_padding(padding.as_slice());
                }
                if let Some(lengths) = lengths {
                    cache.set_lengths(lengths.as_slice());
                }
                Ok(cache.into())
            }
            Self::List(caches) => Ok(Layer::List(caches.iter().map(Self::cache).collect::<Result<_>>()?)),
            Self::BatchRotating { .. } => Err(Error::invalid(
                "a batch in a ring does not become a cache",
                "save the cache of each sequence, as `extract` gives it",
            )),
        }
    }

    fn of(cache: &Layer) -> Result<Self> {
        match cache {
            Layer::Kv(cache) => Self::of_kv(cache),
            Layer::Arrays(cache) => Ok(Self::Arrays {
                slots: (0..cache.slots()).map(|slot| Ok(cache.get(slot)?.cloned())).collect::<Result<_>>()?,
                left_padding: cache.left_padding().cloned(),
                lengths: cache.lengths().cloned(),
            }),
            Layer::List(caches) => Ok(Self::List(caches.iter().map(Self::of).collect::<Result<_>>()?)),
        }
    }

    fn of_kv(cache: &KvCache) -> Result<Self> {
        let Tokens { keys, values, formats, total, left_padding } = cache.tokens()?;
        let there = keys.aval()?.shape[2];
        let format = match &formats {
            [Some(keys), Some(values)] if keys == values => affine(keys),
            _ => None,
        };
        let (window, padded) = (cache.window(), left_padding.iter().any(|&padding| padding > 0));
        let batch = cache.batch();
        let refused = |what: String| Error::invalid(format!("mlx-lm has no cache of {what}"), HELP);
        let stored = keys.is_implicit() || values.is_implicit();
        if stored && (format.is_none() || window != Window::Everything || padded) {
            let [keys, values] =
                formats.map(|format| format.map_or_else(|| "floats".to_owned(), |format| format.to_string()));
            return Err(refused(format!("{keys} keys and {values} values in {window:?}, padded by {left_padding:?}")));
        }
        if padded && window != Window::Everything {
            return Err(refused(format!("{window:?} whose sequences are padded by {left_padding:?}")));
        }
        let held = (total > 0).then_some(Held { keys, values });
        Ok(match (window, format) {
            (Window::Everything, Some(Affine { bits, group })) => {
                Self::Quantized { held, offset: total, group_size: group as i32, bits: bits as i32 }
            }
            (Window::Everything, None) if padded => Self::Batch {
                held,
                offset: cache.offset().clone(),
                left_padding: Array::from_slice(&left_padding, &[batch]),
                index: total,
            },
            (Window::Everything, None) => Self::Kv { held, offset: total },
            (Window::Sliding { size, sinks }, _) => {
                let max_size = size.saturating_add(sinks);
                let (held, index) = match held {
                    // In a ring the first slot that is written again is the one behind those that stay.
                    Some(held) if total > max_size => {
                        (Some(cut(&held, &[(0, sinks), (there - size, there)])?), max_size)
                    }
                    held => (held, total),
                };
                Self::Rotating { held, offset: total, keep: sinks, max_size, index }
            }
            (Window::Chunked { size }, _) => {
                Self::Chunked { held, offset: total, chunk_size: size, start: total - there }
            }
        })
    }
}

const HELP: &str = "make the cache dense by `KvCache::dense`, and split a batch into its sequences";

/// The format, if it is affine.
fn affine(format: &AnyFormat) -> Option<Affine> {
    format.to_string().parse().ok()
}

/// Ranges of slots, one behind the other.
fn cut(held: &Held, ranges: &[(i32, i32)]) -> Result<Held> {
    let part = |value: &Value| -> Result<Value> {
        let capacity = value.aval()?.shape[2];
        if ranges == [(0, capacity)] {
            return Ok(value.clone());
        }
        // Codes are cut, never decoded.
        let _deny = Policy::Deny.scope();
        implicit(value, |value| {
            let ranges = ranges.iter().filter(|(from, to)| from < to);
            let parts = ranges.map(|&(from, to)| value.try_index((.., .., from..to))).collect::<Result<Vec<_>, _>>()?;
            match &parts[..] {
                [] => value.try_index((.., .., ..0)),
                [one] => Ok(one.clone()),
                parts => ops::concatenate(parts, 2),
            }
        })
    };
    Ok(Held { keys: part(&held.keys)?, values: part(&held.values)? })
}

/// The tokens in these ranges of slots.
fn tokens(held: Option<&Held>, ranges: &[(i32, i32)], total: i32, format: Option<AnyFormat>) -> Result<Tokens> {
    let held = held.ok_or_else(|| {
        Error::invalid(
            "a cache without tokens says nothing of its shape",
            "make a new one for this layer, by `KvCache::new`",
        )
    })?;
    let Held { keys, values } = cut(held, ranges)?;
    let batch = keys.aval()?.shape[0];
    Ok(Tokens { keys, values, formats: [format.clone(), format], total, left_padding: vec![0; batch as usize] })
}
