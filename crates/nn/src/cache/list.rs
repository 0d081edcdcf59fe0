//! The caches of layers of several kinds.

use tacit_arrays::format::AnyFormat;
use tacit_core::{Result, Tree};

use super::{ArraysCache, KvCache};

/// The cache of one layer: keys and values, arrays of a state, or a list of caches.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Dtype;
/// use tacit_nn::{ArraysCache, Cache, KvCache};
///
/// let attention = KvCache::new([1, 2, 64], Dtype::Float32)?;
/// let mut layers = vec![Cache::from(attention), Cache::List(vec![ArraysCache::new(2).into()])];
/// layers.iter_mut().try_for_each(|layer| layer.reserve(16))?;
/// assert!(layers.iter().all(Cache::is_empty));
/// # Ok(())
/// # }
/// ```
#[derive(Tree, Clone, Debug)]
pub enum Cache {
    /// Keys and values.
    Kv(KvCache),
    /// Arrays of a state.
    Arrays(ArraysCache),
    /// The caches of several parts of the layer.
    List(Vec<Cache>),
}

impl From<KvCache> for Cache {
    fn from(cache: KvCache) -> Self {
        Self::Kv(cache)
    }
}

impl From<ArraysCache> for Cache {
    fn from(cache: ArraysCache) -> Self {
        Self::Arrays(cache)
    }
}

impl Cache {
    /// The keys and values, if it is a cache of these.
    #[must_use]
    pub fn as_kv(&mut self) -> Option<&mut KvCache> {
        if let Self::Kv(cache) = self { Some(cache) } else { None }
    }

    /// The arrays, if it is a cache of arrays.
    #[must_use]
    pub fn as_arrays(&mut self) -> Option<&mut ArraysCache> {
        if let Self::Arrays(cache) = self { Some(cache) } else { None }
    }

    /// Makes room for so many more tokens in caches of keys and values.
    ///
    /// # Errors
    ///
    /// As for [`KvCache::reserve`].
    pub fn reserve(&mut self, tokens: i32) -> Result<()> {
        match self {
            Self::Kv(cache) => cache.reserve(tokens),
            Self::Arrays(_) => Ok(()),
            Self::List(caches) => caches.iter_mut().try_for_each(|cache| cache.reserve(tokens)),
        }
    }

    /// The same with keys and values in these formats, where `None` is dense; arrays of a state stay as they are.
    ///
    /// # Errors
    ///
    /// As for [`KvCache::stored`].
    pub fn stored(self, keys: Option<AnyFormat>, values: Option<AnyFormat>) -> Result<Self> {
        Ok(match self {
            Self::Kv(cache) => Self::Kv(cache.stored(keys, values)?),
            Self::Arrays(cache) => Self::Arrays(cache),
            Self::List(caches) => {
                let stored = |cache: Self| cache.stored(keys.clone(), values.clone());
                Self::List(caches.into_iter().map(stored).collect::<Result<_>>()?)
            }
        })
    }

    /// Whether the cache holds neither a token nor an array.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Kv(cache) => cache.is_empty(),
            Self::Arrays(cache) => cache.is_empty(),
            Self::List(caches) => caches.iter().all(Self::is_empty),
        }
    }

    /// The bytes held.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        match self {
            Self::Kv(cache) => cache.nbytes(),
            Self::Arrays(cache) => cache.nbytes(),
            Self::List(caches) => caches.iter().map(Self::nbytes).sum(),
        }
    }
}
