//! The states of layers without attention.

use mlx_rs::{Array, ops};
use tacit_core::{Aval, Error, Result, Tree};

/// The state of a layer that keeps some arrays, such as a convolution's last inputs and a state space model's state.
///
/// Each slot is empty until a step puts an array there, whose first axis is the batch. [`mask`](Self::mask) says which of the next
/// tokens are padding; a step calls [`advance`](Self::advance) once it has seen its tokens.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::{Array, ops};
/// use tacit_core::{Error, implicit_with_state};
/// use tacit_nn::ArraysCache;
///
/// let mut cache = ArraysCache::new(1);
/// let x = ops::ones::<f32>(&[1, 4])?;
/// for _ in 0..2 {
///     implicit_with_state(&mut cache, &x, |cache, x| {
///         let sum = cache.get(0)?.map_or_else(|| Ok(x.clone()), |state| state.add(&x))?;
///         cache.set(0, sum)
///     })?;
/// }
/// assert_eq!(cache.get(0)?.map(|state| state.as_slice::<f32>()), Some(&[2.0; 4][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Tree, Clone, Debug)]
pub struct ArraysCache {
    slots: Vec<Option<Array>>,
    /// Tokens before the first of each sequence: `i32[batch]`.
    left_padding: Option<Array>,
    /// Tokens that are left of each sequence: `i32[batch]`.
    lengths: Option<Array>,
}

impl ArraysCache {
    /// A cache of so many empty slots.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { slots: vec![None; slots], left_padding: None, lengths: None }
    }

    /// The array in a slot.
    ///
    /// # Errors
    ///
    /// There is no such slot.
    pub fn get(&self, slot: usize) -> Result<Option<&Array>> {
        self.slots.get(slot).map(Option::as_ref).ok_or_else(|| self.none(slot))
    }

    /// Puts an array into a slot.
    ///
    /// # Errors
    ///
    /// There is no such slot, or the array has no axis that is the batch.
    pub fn set(&mut self, slot: usize, array: Array) -> Result<()> {
        let error = self.none(slot);
        if array.ndim() == 0 {
            return Err(Error::invalid(
                format!("a slot of a cache is given {}, which has no batch", Aval::from(&array)),
                "put an array there whose first axis is the batch",
            ));
        }
        *self.slots.get_mut(slot).ok_or(error)? = Some(array);
        Ok(())
    }

    /// The number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether every slot is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// The bytes of the arrays.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.slots.iter().flatten().map(Array::nbytes).sum()
    }

    /// How many of the next tokens are padding before the first token of each sequence: `i32[batch]`.
    #[must_use]
    pub fn left_padding(&self) -> Option<&Array> {
        self.left_padding.as_ref()
    }

    /// How many of the next tokens belong to each sequence: `i32[batch]`; the tokens after them are padding.
    #[must_use]
    pub fn lengths(&self) -> Option<&Array> {
        self.lengths.as_ref()
    }

    /// Sets how many of the next tokens are padding before the first token of each sequence.
    pub fn set_left_padding(&mut self, padding: &[i32]) {
        self.left_padding = Some(Array::from_slice(padding, &[padding.len() as i32]));
    }

    /// Sets how many of the next tokens belong to each sequence; the tokens after them are padding.
    pub fn set_lengths(&mut self, lengths: &[i32]) {
        self.lengths = Some(Array::from_slice(lengths, &[lengths.len() as i32]));
    }

    /// Which of the next `tokens` are not padding: `bool[batch, tokens]`; `None` if none is padding.
    ///
    /// # Errors
    ///
    /// MLX refuses the shape.
    pub fn mask(&self, tokens: i32) -> Result<Option<Array>> {
        let columns = ops::arange::<_, i32>(0, tokens, None)?;
        let first = self.left_padding.as_ref().map(|padding| columns.ge(padding.expand_dims(1)?)).transpose()?;
        let last = self.lengths.as_ref().map(|lengths| columns.lt(lengths.expand_dims(1)?)).transpose()?;
        Ok(match (first, last) {
            (Some(first), Some(last)) => Some(first.logical_and(last)?),
            (one, other) => one.or(other),
        })
    }

    /// Advances by so many tokens.
    ///
    /// # Errors
    ///
    /// MLX refuses the shape.
    pub fn advance(&mut self, tokens: i32) -> Result<()> {
        let by = Array::from_int(tokens);
        let less = |array: &Option<Array>| array.as_ref().map(|array| array.subtract(&by)).transpose();
        (self.left_padding, self.lengths) = (less(&self.left_padding)?, less(&self.lengths)?);
        Ok(())
    }

    /// Says that no padding follows.
    pub fn finish(&mut self) {
        (self.left_padding, self.lengths) = (None, None);
    }

    /// The number of sequences; `None` while every slot is empty and there is no padding.
    ///
    /// # Errors
    ///
    /// They are of different numbers.
    pub fn batch(&self) -> Result<Option<i32>> {
        let arrays = self.slots.iter().chain([&self.left_padding, &self.lengths]).flatten();
        let mut batches = arrays.map(|array| array.dim(0));
        let Some(first) = batches.next() else { return Ok(None) };
        match batches.find(|&other| other != first) {
            None => Ok(Some(first)),
            Some(other) => Err(Error::invalid(
                format!("a cache holds arrays of {first} sequences and of {other}"),
                "put arrays of one batch into its slots, and say the padding of as many sequences",
            )),
        }
    }

    /// Fails if it is known to be of another number of sequences.
    pub(crate) fn check_batch(&self, sequences: usize) -> Result<()> {
        match self.batch()?.filter(|&batch| batch as usize != sequences) {
            None => Ok(()),
            Some(batch) => Err(Error::invalid(
                format!("a cache of {batch} sequences is given {sequences} prompts"),
                "give one prompt for each sequence",
            )),
        }
    }

    /// The sequences at these places of the batch, in this order.
    ///
    /// # Errors
    ///
    /// `rows` is empty, the batch has no such place, or the arrays are of different batches.
    pub fn filter(&self, rows: &[i32]) -> Result<Self> {
        let batch = self.batch()?;
        // Nothing says yet how many sequences an empty cache is of.
        if rows.is_empty() || rows.iter().any(|row| !(0..batch.unwrap_or(i32::MAX)).contains(row)) {
            let of = batch.map_or("a batch".to_owned(), |batch| format!("a batch of {batch}"));
            return Err(Error::invalid(
                format!("rows {rows:?} of {of} are asked for"),
                "name one sequence at least, counted from zero",
            ));
        }
        let places = Array::from_slice(rows, &[rows.len() as i32]);
        let of = |array: &Option<Array>| array.as_ref().map(|array| array.take_axis(&places, 0)).transpose();
        Ok(Self {
            slots: self.slots.iter().map(of).collect::<Result<_, _>>()?,
            left_padding: of(&self.left_padding)?,
            lengths: of(&self.lengths)?,
        })
    }

    /// The caches of several sequences as one batch, in this order.
    ///
    /// A slot that some of them have filled is zero for the others. A cache that holds nothing counts as one sequence. Each
    /// sequence keeps its padding.
    ///
    /// # Errors
    ///
    /// There are no caches, they have different numbers of slots, or one holds arrays of different batches, or of another shape or
    /// dtype than the others.
    pub fn merge(caches: &[Self]) -> Result<Self> {
        let Some(first) = caches.first() else {
            return Err(Error::invalid("there are no caches to merge", "give one at least"));
        };
        let slots = first.slots();
        if let Some(other) = caches.iter().map(Self::slots).find(|&other| other != slots) {
            return Err(Error::invalid(
                format!("caches of {slots} slots and of {other} are merged"),
                "merge caches of one layer",
            ));
        }
        let batches = caches.iter().map(|cache| Ok(cache.batch()?.unwrap_or(1))).collect::<Result<Vec<i32>>>()?;
        let slot = |slot: usize| joined(caches, &batches, |cache| cache.slots[slot].as_ref(), 0);
        Ok(Self {
            slots: (0..slots).map(slot).collect::<Result<_>>()?,
            left_padding: joined(caches, &batches, |cache| cache.left_padding.as_ref(), 0)?,
            // Who has said no length has all tokens, however many come.
            lengths: joined(caches, &batches, |cache| cache.lengths.as_ref(), i32::MAX)?,
        })
    }

    fn none(&self, slot: usize) -> Error {
        Error::invalid(
            format!("slot {slot} of a cache with {} is asked for", self.slots.len()),
            "make the cache with as many slots as its layer keeps arrays",
        )
    }
}

/// The arrays of several caches one behind the other, with others full of `absent` where one has none; nothing where none has
/// one.
fn joined<'c>(
    caches: &'c [ArraysCache],
    batches: &[i32],
    of: impl Fn(&'c ArraysCache) -> Option<&'c Array>,
    absent: i32,
) -> Result<Option<Array>> {
    let Some(like) = caches.iter().find_map(&of) else { return Ok(None) };
    let part = |(cache, &batch): (&'c ArraysCache, &i32)| -> Result<Array> {
        let Some(array) = of(cache) else {
            let shape = [&[batch], &like.shape()[1..]].concat();
            return Ok(ops::broadcast_to(Array::from_int(absent).as_dtype(like.dtype())?, &shape)?);
        };
        if array.shape()[1..] != like.shape()[1..] || array.dtype() != like.dtype() {
            return Err(Error::invalid(
                format!("{} and {} are not merged", Aval::from(like), Aval::from(array)),
                "merge caches of one layer, whose arrays differ in the batch alone",
            ));
        }
        Ok(array.clone())
    };
    let parts = caches.iter().zip(batches).map(part).collect::<Result<Vec<_>>>()?;
    Ok(Some(ops::concatenate(&parts, 0)?))
}
