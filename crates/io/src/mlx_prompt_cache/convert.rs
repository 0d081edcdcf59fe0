//! From the caches of mlx-lm to those of a model here, and back.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops};
use tacit_arrays::AffineArray;
use tacit_arrays::format::{Affine, AnyFormat};
use tacit_core::{Error, Policy, Result, Value, implicit};
use tacit_nn::{ArraysCache, Cache as Layer, KvCache, Window};

use super::{PromptCache, StoredBuffers, StoredCache};
use crate::Metadata;

impl PromptCache {
    /// The caches of a model's layers, which go on where the prompt ended.
    ///
    /// Codes stay as they are: a `QuantizedKVCache` becomes a cache of its format.
    ///
    /// # Errors
    ///
    /// A cache has no buffers, which alone say its shape; or it is a batch in a ring, which does not say the order of its tokens; or
    /// its numbers contradict each other.
    pub fn caches(&self) -> Result<Vec<Layer>> {
        self.layers.iter().map(StoredCache::cache).collect()
    }

    /// The prompt cache of a model's layers, as mlx-lm has it.
    ///
    /// Keys and values that are both `affine` of the same bits and groups stay as they are, in a cache without a window; any
    /// others must be dense, as [`KvCache::dense`] makes them.
    ///
    /// # Errors
    ///
    /// mlx-lm has no such cache: keys or values are in another format, or a batch is padded elsewhere than on the left, or in a
    /// window; or a window lacks a token, which was overwritten by tokens that were trimmed.
    pub fn of_caches(caches: &[Layer], metadata: Metadata) -> Result<Self> {
        Ok(Self { layers: caches.iter().map(StoredCache::from_layer).collect::<Result<_>>()?, metadata })
    }
}

impl StoredCache {
    fn cache(&self) -> Result<Layer> {
        let kv = |held: &Option<StoredBuffers>, ranges: &[(i32, i32)], total, window, format: Option<AnyFormat>| {
            let held = held
                .as_ref()
                .ok_or_else(|| Error::invalid(NOTHING, "make a new one for this layer, by `KvCache::new`"))?;
            filled(cut(held, ranges)?, total, window, format)
        };
        match self {
            &Self::Kv { ref held, offset } => Ok(kv(held, &[(0, offset)], offset, Window::Everything, None)?.into()),
            &Self::Quantized { ref held, offset, group_size, bits } => {
                let format = Affine { bits: bits.unsigned_abs(), group: group_size.unsigned_abs() as usize };
                Ok(kv(held, &[(0, offset)], offset, Window::Everything, Some(format.into()))?.into())
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
                Ok(kv(held, &order, offset, window, None)?.into())
            }
            &Self::Chunked { ref held, offset, chunk_size, start } => {
                let window = Window::Chunked { size: chunk_size };
                Ok(kv(held, &[(0, offset - start)], offset, window, None)?.into())
            }
            &Self::Batch { ref held, ref offset, ref left_padding, index } => {
                let (padding, offset) = (numbers(left_padding)?, numbers(offset)?);
                let is_said =
                    |(padding, offset): (&i32, &i32)| i64::from(index) - i64::from(*padding) == i64::from(*offset);
                if padding.len() != offset.len() || !padding.iter().zip(offset).all(is_said) {
                    return Err(Error::invalid(
                        format!("a batch of {index} slots, padded by {padding:?}, is said to have {offset:?} tokens"),
                        "finish its prompt by `finalize` before it is saved",
                    ));
                }
                let cache = kv(held, &[(0, index)], index, Window::Everything, None)?;
                Ok(cache.with_left_padding(padding)?.into())
            }
            Self::Arrays { slots, left_padding, lengths } => {
                let mut cache = ArraysCache::new(slots.len());
                for (slot, array) in slots.iter().enumerate() {
                    array.iter().try_for_each(|array| cache.set(slot, array.clone()))?;
                }
                if let Some(padding) = left_padding {
                    cache.set_left_padding(numbers(padding)?);
                }
                if let Some(lengths) = lengths {
                    cache.set_lengths(numbers(lengths)?);
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

    fn from_layer(cache: &Layer) -> Result<Self> {
        match cache {
            Layer::Kv(cache) => Self::of_kv(cache),
            Layer::Arrays(cache) => Ok(Self::Arrays {
                slots: (0..cache.slots()).map(|slot| Ok(cache.get(slot)?.cloned())).collect::<Result<_>>()?,
                left_padding: cache.left_padding().cloned(),
                lengths: cache.lengths().cloned(),
            }),
            Layer::List(caches) => Ok(Self::List(caches.iter().map(Self::from_layer).collect::<Result<_>>()?)),
        }
    }

    fn of_kv(cache: &KvCache) -> Result<Self> {
        let (total, window, padding) = (cache.len(), cache.window(), left_padding(cache)?);
        if cache.is_empty() {
            return Ok(match window {
                Window::Everything => Self::Kv { held: None, offset: 0 },
                Window::Sliding { size, sinks } => Self::Rotating {
                    held: None,
                    offset: 0,
                    keep: sinks,
                    max_size: size.saturating_add(sinks),
                    index: 0,
                },
                Window::Chunked { size } => Self::Chunked { held: None, offset: 0, chunk_size: size, start: 0 },
            });
        }
        let (keys, values) = cache.tokens()?;
        let there = keys.aval()?.shape[2];
        let [of_keys, of_values] =
            [&keys, &values].map(|value| value.downcast::<AffineArray>().map(AffineArray::format));
        let format = of_keys.filter(|of_keys| Some(*of_keys) == of_values).copied();
        let padded = padding.iter().any(|&padding| padding > 0);
        let stored = keys.is_implicit() || values.is_implicit();
        if stored && (format.is_none() || window != Window::Everything)
            || padded && (stored || window != Window::Everything)
        {
            let what = format!("{keys} and {values} in {window:?}, padded by {padding:?}");
            return Err(Error::invalid(format!("mlx-lm has no cache of {what}"), HELP));
        }
        if let Some((size, sinks)) = window.bounds()
            && there < total.min(size.saturating_add(sinks))
        {
            return Err(Error::invalid(
                format!(
                    "of {total} tokens the window of {size} lacks one: it was overwritten by those that were taken away"
                ),
                "write the next token before the cache is saved, or keep room by `KvCache::reserve_trim` before the last ones",
            ));
        }
        let held = Some(StoredBuffers { keys, values });
        Ok(match (window, format) {
            (Window::Everything, Some(Affine { bits, group })) => {
                Self::Quantized { held, offset: total, group_size: group as i32, bits: bits as i32 }
            }
            (Window::Everything, None) if padded => Self::Batch {
                held,
                offset: cache.offset().clone(),
                left_padding: Array::from_slice(&padding, &[cache.batch()]),
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

const NOTHING: &str = "a cache without tokens says nothing of its shape";

/// The cache of the tokens in these buffers, the last of so many.
fn filled(held: StoredBuffers, total: i32, window: Window, format: Option<AnyFormat>) -> Result<KvCache> {
    let StoredBuffers { keys, values } = held;
    let (aval, width) = (keys.aval()?, values.aval()?.shape[3]);
    let &[batch, heads, _, key_width] = aval.shape.as_slice() else { return Err(Error::invalid(NOTHING, HELP)) };
    let cache = KvCache::new([batch, heads, key_width], aval.dtype)?.with_value_width(width)?.with_window(window)?;
    cache.stored(format.clone(), format)?.filled(keys, values, total)
}

/// Numbers of sequences, of which there may be none: mlx-rs has no slice of an array without elements.
fn numbers(array: &Array) -> Result<&[i32]> {
    Ok(if array.size() == 0 { &[][..] } else { array.try_as_slice()? })
}

/// The padding before each sequence; an error where there is padding elsewhere.
fn left_padding(cache: &KvCache) -> Result<Vec<i32>> {
    let (total, capacity) = (cache.len(), cache.capacity());
    let padding: Vec<i32> = numbers(cache.offset())?.iter().map(|offset| total - offset).collect();
    if cache.window() != Window::Everything || padding.iter().all(|&padding| padding == 0) {
        return Ok(padding);
    }
    let positions = cache.positions()?;
    let rows = numbers(&positions)?.chunks(capacity.max(1) as usize);
    let is_left = |(row, padding): (&[i32], &i32)| {
        row.iter().zip(0..total).all(|(&position, token)| position == (token - padding).max(-1))
    };
    if !rows.zip(&padding).all(is_left) {
        return Err(Error::invalid("mlx-lm has no cache of sequences that are padded behind their first token", HELP));
    }
    Ok(padding)
}

/// Ranges of slots, one behind the other.
fn cut(held: &StoredBuffers, ranges: &[(i32, i32)]) -> Result<StoredBuffers> {
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
    Ok(StoredBuffers { keys: part(&held.keys)?, values: part(&held.values)? })
}
