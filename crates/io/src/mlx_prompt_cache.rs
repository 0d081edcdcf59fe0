//! Reads and writes the prompt caches of mlx-lm: what a model has computed of a prompt, layer by layer.
//!
//! A file is safetensors whose tensors are named by their places in the layers' states, `layer.part[.part]`, and whose metadata
//! name the layers' classes (`save_prompt_cache` in `mlx_lm/models/cache.py`). There are two layouts: until mlx-lm 0.31 numbers
//! are text among the metadata, and buffers are cut where the tokens end; from 0.32 on numbers are tensors, which the metadata
//! list, and buffers are whole. Both are read, and the newer one is written.

mod classes;
mod convert;
mod layouts;
mod state;

use std::path::Path;

use mlx_rs::Array;
use tacit_core::{Result, Value};

use crate::{Metadata, Tensors, write as write_tensors};

/// What a prompt-cache file holds.
#[derive(Clone, Debug, Default)]
pub struct PromptCache {
    /// The cache of each layer.
    pub layers: Vec<StoredCache>,
    /// What its writer said beside, such as the model's name.
    pub metadata: Metadata,
}

/// Keys and values in the buffers that hold them, each `[batch, heads, capacity, width]`.
#[derive(Clone, Debug)]
pub struct StoredBuffers {
    /// The keys.
    pub keys: Value,
    /// The values, whose width may be another.
    pub values: Value,
}

/// The cache of one layer, by its class in mlx-lm.
///
/// The buffers are `None` where nothing was written.
#[derive(Clone, Debug)]
pub enum StoredCache {
    /// `KVCache`, and `ConcatenateKVCache`: all tokens, in their order.
    Kv {
        /// The buffers, whose first `offset` slots are tokens.
        held: Option<StoredBuffers>,
        /// The tokens so far.
        offset: i32,
    },
    /// `QuantizedKVCache`: all tokens, in their order, as [`AffineArray`](tacit_arrays::AffineArray).
    Quantized {
        /// The buffers, whose first `offset` slots are tokens.
        held: Option<StoredBuffers>,
        /// The tokens so far.
        offset: i32,
        /// Elements that share a scale.
        group_size: i32,
        /// Bits of an element.
        bits: i32,
    },
    /// `RotatingKVCache`: the first tokens, and the last ones in a ring.
    Rotating {
        /// The first `keep` slots, and the ring behind them, of which the last slots may be empty.
        held: Option<StoredBuffers>,
        /// The tokens so far, in the buffers or not.
        offset: i32,
        /// The first tokens that stay.
        keep: i32,
        /// The slots that the buffers grow to.
        max_size: i32,
        /// The slot behind the one that was written last.
        index: i32,
    },
    /// `ChunkedKVCache`: the tokens of the last chunk, in their order.
    Chunked {
        /// The buffers, whose first `offset - start` slots are tokens.
        held: Option<StoredBuffers>,
        /// The tokens so far.
        offset: i32,
        /// The tokens of a chunk.
        chunk_size: i32,
        /// The position of the first token that is there.
        start: i32,
    },
    /// `ArraysCache`, and `MambaCache`: state of another kind.
    Arrays {
        /// The arrays, where they are there.
        slots: Vec<Option<Array>>,
        /// The padding before each sequence, `i32[batch]`.
        left_padding: Option<Array>,
        /// The tokens of each sequence, `i32[batch]`.
        lengths: Option<Array>,
    },
    /// `CacheList`: several caches of one layer.
    List(Vec<Self>),
    /// `BatchKVCache`: sequences that are padded on the left, and end in the same slot.
    Batch {
        /// The buffers, whose first `index` slots are padding and tokens.
        held: Option<StoredBuffers>,
        /// The tokens of each sequence so far, `i32[batch]`: negative while there is only padding.
        offset: Array,
        /// The padding before each sequence, `i32[batch]`.
        left_padding: Array,
        /// The slots that are written.
        index: i32,
    },
    /// `BatchRotatingKVCache`: the last tokens of such sequences, in a ring.
    BatchRotating {
        /// The ring, of which the last slots may be empty.
        held: Option<StoredBuffers>,
        /// The tokens of each sequence so far, `i32[batch]`.
        offset: Array,
        /// The padding before each sequence that is still in the ring, `i32[batch]`.
        left_padding: Array,
        /// The slots of the ring.
        max_size: i32,
        /// The slots that were written so far, in the buffers or not.
        total: i32,
        /// The slot behind the one that was written last.
        index: i32,
        /// Whether the ring has gone round, so that its first slot is not its oldest.
        rotated: bool,
    },
}

/// Reads a file of either layout.
///
/// ```
/// use mlx_rs::ops;
/// use tacit_io::mlx_prompt_cache::{self, StoredCache, StoredBuffers, PromptCache};
///
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-prompt-{}.safetensors", std::process::id()));
/// let keys = ops::ones::<f32>(&[1, 2, 8, 4])?;
/// let held = StoredBuffers { keys: keys.clone().into(), values: keys.into() };
/// let cache = PromptCache { layers: vec![StoredCache::Kv { held: Some(held), offset: 5 }], ..PromptCache::default() };
/// mlx_prompt_cache::write(&path, &cache)?;
///
/// let read = mlx_prompt_cache::read(&path)?;
/// assert!(matches!(&read.layers[..], [StoredCache::Kv { offset: 5, held: Some(_) }]));
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The file cannot be opened (see [`Tensors::open`]), a class is not known, a part of its state is not there, has no place, or
/// does not fit the others.
pub fn read(path: impl AsRef<Path>) -> Result<PromptCache> {
    let tensors = Tensors::open(path)?;
    let (layers, metadata) = layouts::read(&tensors)?;
    let layers = layers.into_iter().enumerate().map(|(layer, (class, state))| {
        StoredCache::of_state(&class, state).map_err(|fault| fault.below(&layer.to_string()).error(&tensors))
    });
    Ok(PromptCache { layers: layers.collect::<Result<_>>()?, metadata })
}

/// Writes a file that mlx-lm reads from version 0.32 on.
///
/// A file of that layout that was [`read`] is written with the same tensors and the same metadata.
///
/// # Errors
///
/// Keys or values are implicit, and not affine as `QuantizedKVCache` has them: give dense ones; or the file cannot be written.
pub fn write(path: impl AsRef<Path>, cache: &PromptCache) -> Result<()> {
    let layers = cache.layers.iter().map(|layer| Ok((layer.class(), layer.state()?)));
    let (tensors, metadata) = layouts::written(layers.collect::<Result<_>>()?, &cache.metadata);
    write_tensors(path, tensors, &metadata)
}
