//! The tokens of a cache in their order, as files keep them.

use mlx_rs::Array;
use tacit_core::{Error, Result, Value};

use super::KvCache;
use super::padding::Padding;
use super::slots::{Run, Slots};
use super::store::{Store, four};
use super::written::LONGEST;

impl KvCache {
    /// The keys and the values that the cache still holds, in the order of their tokens: `[batch, heads, n, width]`, in the
    /// formats of the cache.
    ///
    /// They are those of all tokens, or of a window: the sinks, and the last that were not overwritten.
    ///
    /// # Errors
    ///
    /// The cache is empty.
    pub fn tokens(&self) -> Result<(Value, Value)> {
        let runs = self.written.in_order();
        Ok((self.keys.arranged(&runs)?, self.values.arranged(&runs)?))
    }

    /// Fills an empty cache with the keys and values of a sequence of `len` tokens, `[batch, heads, n, width]`: of all
    /// tokens, or of the sinks and the last ones.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::{Dtype, ops};
    /// use tacit_nn::{KvCache, Window};
    ///
    /// let tokens = ops::ones::<f32>(&[1, 2, 5, 64])?;
    /// let cache = KvCache::new([1, 2, 64], Dtype::Float32)?.with_window(Window::Sliding { size: 4, sinks: 1 })?;
    /// let cache = cache.filled(tokens.clone(), tokens, 9)?;
    /// assert_eq!((cache.len(), cache.capacity()), (9, 5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The cache holds tokens; those given are not of its shape and dtype, or are fewer than its window sees; codes are in another
    /// format than the cache's.
    pub fn filled(mut self, keys: impl Into<Value>, values: impl Into<Value>, len: i32) -> Result<Self> {
        self.empty()?;
        let (keys, values) = (self.keys.fit(keys.into())?, self.values.fit(values.into())?);
        let count = keys.aval()?.shape[2];
        let (size, sinks) = self.window.bounds().unwrap_or((i32::MAX, 0));
        let needed = len.min(size.saturating_add(sinks));
        if values.aval()?.shape[2] != count || count > len || count < needed || len > LONGEST {
            return Err(Error::invalid(
                format!("{keys} and {values} are not the tokens after {len} that {:?} sees", self.window),
                "give all tokens, or the sinks and at least as many of the last as the window has",
            ));
        }
        if count == 0 {
            return Ok(self);
        }
        let slots = Slots { capacity: count, window: self.window };
        // In their order, the last of `len`.
        let index_of = |token: i32| if token < sinks { token } else { token - (len - count) };
        let run = |token: i32| Run::Kept(index_of(token), index_of(token) + 1);
        let runs = (0..count).filter_map(|slot| slots.token(slot, len)).map(run).fold(Vec::new(), Run::pushed);
        let placed = |store: &Store, tokens: Value| Ok::<_, Error>(store.with(store.with(tokens).arranged(&runs)?));
        (self.keys, self.values) = (placed(&self.keys, keys)?, placed(&self.values, values)?);
        // It ends where the prompt was said to end.
        let padded = self.written.padded;
        self.written =
            self.written.with_capacity(count).later(len).with_oldest(if count < len { len - count + sinks } else { 0 });
        self.written.padded = padded;
        self.next = Array::from_slice(&[len], &[1]);
        self.offset = Padding::offset(&self.padding, &self.next, self.batch())?;
        Ok(self)
    }

    /// The same cache with so many tokens of padding at the beginning of each sequence.
    ///
    /// # Errors
    ///
    /// There is not one number for each sequence, one is greater than the number of tokens, or the window has sinks.
    pub fn with_left_padding(mut self, padding: &[i32]) -> Result<Self> {
        let sinks = self.window.bounds().is_some_and(|(_, sinks)| sinks > 0);
        if padding.len() != self.batch() as usize
            || padding.iter().any(|count| !(0..=self.len()).contains(count))
            || sinks
        {
            return Err(Error::invalid(
                format!("padding {padding:?} before {} tokens in a batch of {}", self.len(), self.batch()),
                "give one number for each sequence of a cache without sinks, no more than it has tokens",
            ));
        }
        if padding.iter().any(|&count| count > 0) {
            self.padding.push(Padding::new(&padding.iter().map(|&count| (0, count)).collect::<Vec<_>>()));
            self.offset = Padding::offset(&self.padding, &self.next, self.batch())?;
            self.written.padded = padding.iter().copied().fold(self.written.padded, i32::max);
        }
        Ok(self)
    }
}

impl Store {
    /// Tokens as the buffer holds them.
    fn fit(&self, tokens: Value) -> Result<Value> {
        let (own, given) = (self.aval()?, tokens.aval()?);
        let ([batch, heads, _, width], [.., count, _]) = (four(&own)?, four(&given)?);
        if given.shape != [batch, heads, count, width] || given.dtype != own.dtype {
            return Err(Error::invalid(
                format!("{tokens} fills a cache of {own}"),
                "give tokens of the shape and dtype that the cache was made for",
            ));
        }
        match (self.format(), tokens) {
            (Some(format), Value::Dense(dense)) if count > 0 => format.quantize(&dense),
            (None, Value::Dense(dense)) => Ok(dense.into()),
            (Some(format), tokens) if format.stores(&tokens) || count == 0 => Ok(tokens),
            (_, tokens) => Err(Error::invalid(
                format!("{tokens} fills a cache of another format"),
                "say by `KvCache::stored` what the cache holds",
            )),
        }
    }
}
