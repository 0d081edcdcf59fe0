//! Several sequences in one cache.

use mlx_rs::{Array, ops};
use tacit_core::{Error, Result, Value};

use super::padding::Padding;
use super::slots::Slots;
use super::store::{Store, four, joined};
use super::written::{LONGEST, Written};
use super::{KvCache, PaddingSide};

impl KvCache {
    /// Announces a padded prompt: the next `tokens` belong to sequences of these lengths, padded on one side.
    ///
    /// It is called outside a step.
    ///
    /// No token sees padding, and padding counts in no position: [`offset`](Self::offset) and [`mask`](Self::mask) are those of each
    /// sequence alone. The prompt may be written in pieces; the last one has to end where the prompt ends.
    ///
    /// # Errors
    ///
    /// There is not one length for each sequence, or one is longer than the prompt; the prompt before is not yet written to its end;
    /// or the cache would hold more than 2^30 tokens. With a window, lengths that differ are an error where it has sinks, whose slots
    /// the sequences of a batch share, and where padding would stand behind tokens, which it would push out.
    pub fn prepare(&mut self, tokens: i32, lengths: &[i32], side: PaddingSide) -> Result<()> {
        let batch = self.batch();
        if lengths.len() != batch as usize || lengths.iter().any(|length| !(0..=tokens).contains(length)) {
            return Err(Error::invalid(
                format!("lengths {lengths:?} are given for a prompt of {tokens} tokens in a batch of {batch}"),
                "give one length for each sequence, no longer than the prompt",
            ));
        }
        let start = self.len();
        if self.written.padded > start {
            return Err(Error::invalid(
                format!("the prompt before goes on to token {}, and there are {start}", self.written.padded),
                "prepare a prompt where the one before has ended",
            ));
        }
        if lengths.iter().all(|&length| length == tokens) {
            return Ok(());
        }
        match (self.window.bounds(), side) {
            (Some((_, sinks)), _) if sinks > 0 => {
                return Err(Error::invalid(
                    "a window with sinks takes sequences of one length only",
                    "keep one cache for each sequence, or group those of one length",
                ));
            }
            (Some(_), side) if side == PaddingSide::Right || start > 0 => {
                return Err(Error::invalid(
                    "padding behind tokens would push them out of a window",
                    "pad the sequences on the left, at their beginning",
                ));
            }
            _ => {}
        }
        let Some(end) = start.checked_add(tokens).filter(|&end| end <= LONGEST) else {
            return Err(Error::invalid(
                format!("{tokens} tokens behind {start} are more than a cache counts"),
                format!("give a prompt that ends after {LONGEST} tokens at most"),
            ));
        };
        let range = |&length: &i32| match side {
            PaddingSide::Left => (start, end - length),
            PaddingSide::Right => (start + length, end),
        };
        let mut padding = self.padding.clone();
        padding.push(Padding::new(&lengths.iter().map(range).collect::<Vec<_>>()));
        self.offset = Padding::offset(&padding, &self.next, batch)?;
        self.padding = padding;
        self.written.padded = end;
        Ok(())
    }

    /// The caches of several sequences as one batch, in this order.
    ///
    /// Shorter ones have empty slots before their first token, or behind the sinks of their window. The
    /// [fixed capacity](Self::with_capacity) that all of them have is that of the batch.
    ///
    /// # Errors
    ///
    /// There are no caches, they differ in shape, dtype, format or window, a padded prompt is not yet written to its end, or they
    /// differ in length and one has fewer tokens than its window has sinks.
    pub fn merge(caches: &[Self]) -> Result<Self> {
        let Some(first) = caches.first() else {
            return Err(Error::invalid("there are no caches to merge", "give one at least"));
        };
        for cache in caches {
            let alike = cache.window == first.window
                && cache.keys.is_like(&first.keys)?
                && cache.values.is_like(&first.values)?;
            if !alike {
                return Err(Error::invalid(
                    format!("{} and {} are not merged", first.keys.buffer, cache.keys.buffer),
                    "merge caches of one shape, dtype, format and window",
                ));
            }
            if cache.written.padded > cache.len() {
                return Err(Error::invalid(
                    format!(
                        "the padded prompt goes on to token {}, and there are {}",
                        cache.written.padded,
                        cache.len()
                    ),
                    "write the whole prompt first",
                ));
            }
        }
        let sinks = first.window.bounds().map_or(0, |(_, sinks)| sinks);
        let differ = caches.iter().any(|cache| cache.len() != first.len());
        if let Some(short) = caches.iter().find(|cache| differ && cache.len() < sinks) {
            return Err(Error::invalid(
                format!(
                    "a sequence of {} tokens has not filled the {sinks} sinks that those of a batch share",
                    short.len()
                ),
                "keep one cache for each sequence, or group those of one length",
            ));
        }
        let longest = caches.iter().map(Self::len).max().unwrap_or_default();
        let limit = first.limit.filter(|_| caches.iter().all(|cache| cache.limit == first.limit));
        let most = caches.iter().map(Self::capacity).max().unwrap_or_default();
        // No step has to reserve what was promised to be there.
        let capacity = if limit.is_some() { most } else { most.min(longest) };
        let slots = Slots { capacity, window: first.window };
        let shifts: Vec<i32> = caches.iter().map(|cache| longest - cache.len()).collect();
        let batches: Vec<i32> = caches.iter().map(Self::batch).collect();
        let batch = batches.iter().sum();
        let buffer = |of: &dyn Fn(&Self) -> &Store| -> Result<Store> {
            let store = of(first);
            if capacity == 0 {
                let aval = store.aval()?;
                let [_, heads, _, width] = four(&aval)?;
                return Ok(store.with(ops::zeros_dtype(&[batch, heads, 0, width], aval.dtype)?.into()));
            }
            let part = |(cache, &shift): (&Self, &i32)| of(cache).arranged(&cache.written.moved(slots, shift));
            let parts = caches.iter().zip(&shifts).map(part).collect::<Result<Vec<Value>>>()?;
            Ok(store.with(joined(&parts, 0)?))
        };
        let mut padding = Vec::new();
        for at in 0..caches.iter().map(|cache| cache.padding.len()).max().unwrap_or_default() {
            let paddings = caches.iter().zip(&shifts).zip(&batches).map(|((cache, &shift), &batch)| {
                cache
                    .padding
                    .get(at)
                    .map_or_else(|| Ok(Padding::new(&vec![(0, 0); batch as usize])), |range| range.later(shift))
            });
            padding.push(Padding::joined(&paddings.collect::<Result<Vec<_>>>()?)?);
        }
        if differ {
            let range = |shift| (sinks, sinks + shift);
            let before = shifts.iter().zip(&batches).flat_map(|(&shift, &batch)| vec![range(shift); batch as usize]);
            padding.push(Padding::new(&before.collect::<Vec<_>>()));
        }
        let lost = caches.iter().zip(&shifts).map(|(cache, &shift)| cache.written.later(shift));
        let mut written = lost.reduce(Written::with_losses_of).unwrap_or(first.written).with_capacity(capacity);
        if differ {
            // What is padded lies behind the sinks.
            written.padded = written.padded.max(sinks + shifts.iter().copied().max().unwrap_or_default());
        }
        let next = Array::from_slice(&[longest], &[1]);
        Ok(Self {
            keys: buffer(&|cache| &cache.keys)?,
            values: buffer(&|cache| &cache.values)?,
            offset: Padding::offset(&padding, &next, batch)?,
            next,
            padding,
            written: written.copied(),
            window: first.window,
            limit,
        })
    }

    /// The sequences at these places of the batch, in this order.
    ///
    /// # Errors
    ///
    /// `rows` is empty, or the batch has no such place.
    pub fn filter(&self, rows: &[i32]) -> Result<Self> {
        let batch = self.batch();
        if rows.is_empty() || rows.iter().any(|row| !(0..batch).contains(row)) {
            return Err(Error::invalid(
                format!("rows {rows:?} of a batch of {batch} are asked for"),
                "name one sequence at least, counted from zero",
            ));
        }
        let places = Array::from_slice(rows, &[rows.len() as i32]);
        Ok(Self {
            keys: self.keys.rows(rows)?,
            values: self.values.rows(rows)?,
            offset: self.offset.take_axis(&places, 0)?,
            padding: self.padding.iter().map(|range| range.rows(&places)).collect::<Result<_>>()?,
            ..self.clone()
        })
    }

    /// Each sequence of the batch in a cache of its own.
    ///
    /// # Errors
    ///
    /// MLX has no memory left.
    pub fn split(&self) -> Result<Vec<Self>> {
        (0..self.batch()).map(|row| self.filter(&[row])).collect()
    }
}
