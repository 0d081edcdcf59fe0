//! Keys and values of one layer.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::AnyFormat;
use tacit_core::extra_ops::dynamic_slice_update;
use tacit_core::{Error, Result, Tree, Value};

use super::Window;
use super::padding::Padding;
use super::slots::Slots;
use super::store::{BLOCK, Store, four};
use super::written::Written;

/// The keys and values of one attention layer, in buffers that a step writes into.
///
/// Inside a step all is plain mlx-rs, whatever the tokens are stored in. Outside, [`reserve`](Self::reserve) makes room first:
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, Dtype, fast, ops};
/// use tacit_arrays::format::Affine;
/// use tacit_core::{Error, implicit_with_state};
/// use tacit_nn::KvCache;
///
/// let mut cache = KvCache::new([1, 2, 64], Dtype::Float32)?
///     .quantized(Affine { bits: 8, group: 64 }, Affine { bits: 4, group: 64 })?;
/// let (q, k) = (ops::ones::<f32>(&[1, 4, 3, 64])?, ops::ones::<f32>(&[1, 2, 3, 64])?);
/// cache.reserve(3)?;
/// let y = implicit_with_state(&mut cache, (&q, &k), |cache, (q, k)| {
///     let mask = cache.mask(3)?;
///     let (keys, values) = cache.update(&k, &k)?;
///     Ok::<_, Error>(fast::scaled_dot_product_attention(&q, &keys, &values, 0.125, Some((&mask).into()), None)?)
/// })?;
/// assert_eq!((y.to_string(), cache.len()), ("f32[1,4,3,64]".to_owned(), 3));
/// assert_eq!(cache.keys().to_string(), "Affine(f32[1,2,256,64])");
/// # Ok(())
/// # }
/// ```
///
/// It is a state of [`compile_with_state`](tacit_core::compile_with_state), of
/// [`implicit_with_state`](tacit_core::implicit_with_state()) and of [`Model::run_with`](crate::Model::run_with). Where the next
/// token goes is an array, so that no step is traced anew but where the buffers have grown. An update writes into the buffers
/// where they lie, unless something else holds them: a [clone](Clone) shares them until one of both is written.
///
/// A step that writes more than there is room for is an error, of the step where it is traced and of the call where it is
/// compiled, before anything is overwritten.
///
/// The tokens of a state are counted in each call. A replay does not count those of a cache that is an argument: a compiled function that
/// returns it is an error, and one that leaves it in its state is traced in each call.
#[derive(Tree, Debug)]
pub struct KvCache {
    /// Before the buffers, so that a step that writes too much replaces nothing.
    pub(super) written: Written,
    pub(super) keys: Store,
    pub(super) values: Store,
    /// The tokens of each sequence, padding included: `i32[1]`. All that says where tokens are follows from it, so that a step
    /// leaves nothing behind that no other step asks for.
    pub(super) next: Array,
    /// The position of the next token: `i32[batch]`.
    pub(super) offset: Array,
    pub(super) padding: Vec<Padding>,
    #[tree(static)]
    pub(super) window: Window,
    /// The most slots.
    #[tree(static)]
    pub(super) limit: Option<i32>,
}

impl Clone for KvCache {
    fn clone(&self) -> Self {
        Self {
            written: self.written.copied(),
            keys: self.keys.clone(),
            values: self.values.clone(),
            next: self.next.clone(),
            offset: self.offset.clone(),
            padding: self.padding.clone(),
            window: self.window,
            limit: self.limit,
        }
    }
}

impl KvCache {
    /// An empty cache of floats, `[batch, heads, _, width]`.
    ///
    /// # Errors
    ///
    /// The dtype is not `f32`, `f16` or `bf16`, or MLX refuses the shape.
    pub fn new([batch, heads, width]: [i32; 3], dtype: Dtype) -> Result<Self> {
        Ok(Self {
            keys: Store::new([batch, heads, width], dtype)?,
            values: Store::new([batch, heads, width], dtype)?,
            next: Array::from_slice(&[0i32], &[1]),
            offset: ops::zeros::<i32>(&[batch])?,
            padding: Vec::new(),
            written: Written::new(Window::Everything),
            window: Window::Everything,
            limit: None,
        })
    }

    /// The same empty cache with values of another width than the keys.
    ///
    /// # Errors
    ///
    /// The cache holds tokens, or MLX refuses the shape.
    pub fn with_value_width(self, width: i32) -> Result<Self> {
        self.empty()?;
        let [batch, heads, ..] = four(&self.keys.aval()?)?;
        let values =
            Store::new([batch, heads, width], self.keys.aval()?.dtype)?.stored(self.values.format().cloned())?;
        Ok(Self { values, ..self })
    }

    /// The same empty cache with a window: it holds only the tokens that the next one sees.
    ///
    /// Slots outside the window are written again, in a ring behind the sinks. A prompt longer than the window goes in by
    /// pieces; while a piece is written there are as many slots more as it is long.
    ///
    /// # Errors
    ///
    /// The cache holds tokens, or the window lets a token not see itself.
    pub fn with_window(self, window: Window) -> Result<Self> {
        self.empty()?;
        window.check()?;
        Ok(Self { window, written: Written::new(window), ..self })
    }

    /// The same cache with a fixed capacity of so many slots, all of which it has from now on.
    ///
    /// # Errors
    ///
    /// The cache has more slots already, or its window needs more.
    pub fn with_capacity(mut self, capacity: i32) -> Result<Self> {
        let least = self.window.bounds().map_or(0, |(size, sinks)| size.saturating_add(sinks)).max(self.capacity());
        if capacity < least {
            return Err(Error::invalid(
                format!("{capacity} slots are fewer than the {least} that the cache needs"),
                "give it at least as many slots as its window has, and as it has already",
            ));
        }
        self.limit = Some(capacity);
        self.grow(capacity)?;
        Ok(self)
    }

    /// The same tokens with keys and values in stored formats, such as `affine:8:64` and `nf4:64`.
    ///
    /// It may be called at any time between two steps. Keys or values that are in another format already are decoded first,
    /// which the policy is asked for.
    ///
    /// # Errors
    ///
    /// Tokens cannot be written in such a format, because its blocks do not divide the width or its scales are relative to others; or
    /// the policy forbids to decode those that are there.
    pub fn quantized<K, V>(self, keys: K, values: V) -> Result<Self>
    where
        K: TryInto<AnyFormat, Error: Into<Error>>,
        V: TryInto<AnyFormat, Error: Into<Error>>,
    {
        let (keys, values) = (keys.try_into().map_err(Into::into)?, values.try_into().map_err(Into::into)?);
        self.stored(Some(keys), Some(values))
    }

    /// The same tokens as floats.
    ///
    /// # Errors
    ///
    /// The policy forbids to decode them.
    pub fn dense(self) -> Result<Self> {
        self.stored(None, None)
    }

    /// The same tokens with keys and values in these formats; `None` is dense.
    ///
    /// # Errors
    ///
    /// As for [`quantized`](Self::quantized) and [`dense`](Self::dense).
    pub fn stored(self, keys: Option<AnyFormat>, values: Option<AnyFormat>) -> Result<Self> {
        Ok(Self { keys: self.keys.stored(keys)?, values: self.values.stored(values)?, ..self })
    }

    /// Makes room for so many more tokens.
    ///
    /// It is called before a step and outside it, and does not wait for the device.
    ///
    /// Buffers grow by an eighth at least, and by whole blocks of 256 slots; each time a compiled step is traced anew. Who knows
    /// how many tokens there will be reserves them at once.
    ///
    /// # Errors
    ///
    /// The cache has a [fixed capacity](Self::with_capacity) that is less; the cache is then as it was.
    pub fn reserve(&mut self, tokens: i32) -> Result<()> {
        self.written = self.written.settled();
        let needed = self.written.needed(tokens.max(0));
        let capacity = self.capacity();
        if needed <= capacity {
            return Ok(());
        }
        if let Some(limit) = self.limit.filter(|&limit| limit < needed) {
            return Err(Error::invalid(
                format!("{tokens} tokens behind {} need {needed} slots of a cache with {limit}", self.len()),
                "give it a larger capacity, trim it, or write a prompt in smaller pieces",
            ));
        }
        let eager = needed.max(capacity.saturating_add(capacity / 8));
        let whole = eager.checked_add(BLOCK - 1).map_or(eager, |eager| eager / BLOCK * BLOCK);
        let most = self.window.bounds().map_or(i32::MAX, |(size, sinks)| needed.max(size.saturating_add(sinks)));
        self.grow(whole.min(most).min(self.limit.unwrap_or(i32::MAX)))
    }

    /// Whether so many more tokens have room, as they may not have in a cache of [fixed capacity](Self::with_capacity).
    #[must_use]
    pub fn has_room(&self, tokens: i32) -> bool {
        self.limit.is_none_or(|limit| self.written.needed(tokens.max(0)) <= limit)
    }

    /// Makes room in a window so that up to so many tokens can be [trimmed](Self::trim).
    ///
    /// It is called outside a step, before the tokens are written.
    ///
    /// # Errors
    ///
    /// The cache has a [fixed capacity](Self::with_capacity) that is less; the cache is then as it was.
    pub fn reserve_trim(&mut self, tokens: i32) -> Result<()> {
        let Some((size, sinks)) = self.window.bounds() else { return Ok(()) };
        let needed = size.saturating_add(sinks).saturating_add(tokens.max(0));
        if let Some(limit) = self.limit.filter(|&limit| limit < needed) {
            return Err(Error::invalid(
                format!(
                    "to take {tokens} tokens away, a window of {size} needs {needed} slots of a cache with {limit}"
                ),
                "give it a larger capacity, or propose fewer tokens at a time",
            ));
        }
        self.written = self.written.settled();
        self.grow(needed)
    }

    /// The number of slots.
    #[must_use]
    pub fn capacity(&self) -> i32 {
        self.written.slots.capacity
    }

    /// The number of tokens, padding included, without those that were trimmed.
    ///
    /// It is a number of the host: a function that is compiled knows that of its trace.
    #[must_use]
    pub fn len(&self) -> i32 {
        self.written.total()
    }

    /// Whether the cache holds no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the buffers.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.keys.buffer.nbytes() + self.values.buffer.nbytes()
    }

    /// Which earlier tokens a token sees.
    #[must_use]
    pub fn window(&self) -> Window {
        self.window
    }

    /// The keys, `[batch, heads, capacity, width]`.
    #[must_use]
    pub fn keys(&self) -> &Value {
        &self.keys.buffer
    }

    /// The values, `[batch, heads, capacity, width]`.
    #[must_use]
    pub fn values(&self) -> &Value {
        &self.values.buffer
    }

    /// The position of the token in each slot, -1 where a slot is empty or holds padding: `i32[batch, capacity]`.
    ///
    /// # Errors
    ///
    /// MLX refuses the shape.
    pub fn positions(&self) -> Result<Array> {
        let positions = self.slot_positions(&self.next)?;
        Ok(ops::broadcast_to(positions, &[self.batch(), self.capacity()])?)
    }

    /// The number of sequences.
    #[must_use]
    pub fn batch(&self) -> i32 {
        self.offset.dim(0)
    }

    /// The position of the next token of each sequence, `i32[batch]`, as `rope_dynamic` takes it.
    #[must_use]
    pub fn offset(&self) -> &Array {
        &self.offset
    }

    /// The mask of the next `tokens`: `bool[batch, 1, tokens, capacity]`, true where a token sees a slot.
    ///
    /// Layers that have seen the same tokens through the same window share one: see [`masks`](Self::masks).
    ///
    /// # Errors
    ///
    /// There is no room for them, or MLX refuses the shape.
    pub fn mask(&self, tokens: i32) -> Result<Array> {
        { self.written }.add(tokens)?;
        let (asked, positions) = (self.coming(tokens)?, self.slot_positions(&self.next.add(Array::from_int(tokens))?)?);
        let asked = Padding::positions(&self.padding, &asked.reshape(&[1, tokens])?)?.expand_dims_axes(&[1, 3])?;
        let mask = self.window.sees(&asked, &positions.expand_dims_axes(&[1, 2])?)?;
        Ok(ops::broadcast_to(mask, &[self.batch(), 1, tokens, self.capacity()])?)
    }

    /// The masks of several layers that are given the same tokens, one for all that have one window and capacity.
    ///
    /// # Errors
    ///
    /// As for [`mask`](Self::mask).
    pub fn masks<'c>(caches: impl IntoIterator<Item = &'c Self>, tokens: i32) -> Result<Vec<Array>> {
        let mut masks: Vec<(Window, i32, Array)> = Vec::new();
        let mask = |cache: &Self| {
            let known = masks.iter().find(|(window, slots, _)| (*window, *slots) == (cache.window, cache.capacity()));
            if let Some((_, _, mask)) = known {
                return Ok(mask.clone());
            }
            let mask = cache.mask(tokens)?;
            masks.push((cache.window, cache.capacity(), mask.clone()));
            Ok(mask)
        };
        caches.into_iter().map(mask).collect()
    }

    /// Writes the keys and values of the next tokens, `[batch, heads, tokens, width]`, and returns the whole buffers,
    /// `[batch, heads, capacity, width]`; [`mask`](Self::mask) says which slots a token sees.
    ///
    /// Tokens of another float type are cast to that of the cache, and rounded to its format.
    ///
    /// # Errors
    ///
    /// There is no room for the tokens, they have another shape, or the cache holds codes and is not inside a step.
    pub fn update(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let tokens = keys.shape().get(2).copied().unwrap_or_default();
        for (store, new) in [(&self.keys, keys), (&self.values, values)] {
            let [batch, heads, _, width] = four(&store.aval()?)?;
            if new.shape() != [batch, heads, tokens, width] {
                return Err(Error::invalid(
                    format!("{} is written into a cache of {}", tacit_core::Aval::from(new), store.buffer),
                    "give keys and values of the shape [batch, heads, tokens, width] that the cache was made for",
                ));
            }
        }
        if tokens == 0 {
            // There is no slot to begin at.
            return Ok((self.keys.lent()?.clone(), self.values.lent()?.clone()));
        }
        let mut written = self.written;
        written.add(tokens)?;
        let slots = written.slots.of(&self.coming(tokens)?)?;
        let write = |store: &Store, new: &Array| -> Result<Array> {
            let buffer = store.lent()?;
            let new = new.as_dtype(buffer.dtype())?;
            if tokens == 1 || self.window == Window::Everything {
                return dynamic_slice_update(buffer, &new, &slots.try_index(..1)?, &[2]);
            }
            // They may go on at the beginning of a ring.
            let slots = ops::broadcast_to(slots.reshape(&[1, 1, tokens, 1])?, new.shape())?;
            Ok(buffer.put_along_axis(slots, &new, 2)?)
        };
        let (keys, values) = (write(&self.keys, keys)?, write(&self.values, values)?);
        let next = self.next.add(Array::from_int(tokens))?;
        self.offset = Padding::offset(&self.padding, &next, self.batch())?;
        (self.next, self.written) = (next, written);
        self.keys.buffer = keys.clone().into();
        self.values.buffer = values.clone().into();
        Ok((keys, values))
    }

    /// Removes the last tokens, as speculative decoding does with tokens that were not accepted.
    ///
    /// It is called outside a step.
    ///
    /// # Errors
    ///
    /// There are not so many behind the padded prompt, or what the next token would then see was overwritten. The cache is
    /// then as it was.
    pub fn trim(&mut self, tokens: i32) -> Result<()> {
        let mut written = self.written;
        written.trim(tokens)?;
        let next = Array::from_slice(&[written.total()], &[1]);
        self.offset = Padding::offset(&self.padding, &next, self.batch())?;
        (self.next, self.written) = (next, written);
        Ok(())
    }

    pub(super) fn empty(&self) -> Result<()> {
        if self.capacity() > 0 {
            return Err(Error::invalid("the cache has slots already", "say so of a new cache, before its capacity"));
        }
        Ok(())
    }

    /// As many slots, and the tokens in theirs.
    fn grow(&mut self, capacity: i32) -> Result<()> {
        if capacity > self.capacity() {
            let slots = Slots { capacity, window: self.window };
            let runs = self.written.moved(slots, 0);
            let (keys, values) = (self.keys.arranged(&runs)?, self.values.arranged(&runs)?);
            (self.keys.buffer, self.values.buffer) = (keys, values);
            self.written = self.written.with_capacity(capacity);
        }
        Ok(())
    }

    /// The next tokens, counted from the first: `i32[tokens]`.
    fn coming(&self, tokens: i32) -> Result<Array> {
        if tokens == 1 {
            return Ok(self.next.clone());
        }
        Ok(self.next.add(ops::arange::<_, i32>(0, tokens, None)?)?)
    }

    /// The positions in the slots where there are `total` tokens: `i32[batch, capacity]`, or of all sequences at once.
    fn slot_positions(&self, total: &Array) -> Result<Array> {
        Padding::positions(&self.padding, &self.written.slots.tokens(total)?)
    }
}
