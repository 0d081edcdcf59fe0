//! The tokens of a cache in their order, as other programs keep them.

use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::AnyFormat;
use tacit_core::{Aval, Error, Result, Value};

use super::hole::Hole;
use super::slots::{Run, Slots};
use super::store::{Store, four};
use super::written::Written;
use super::{KvCache, Window};

/// Keys and values of tokens that follow each other.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// `[batch, heads, tokens, width]`: all tokens; or the first ones that the window keeps, and behind them the last ones.
    pub keys: Value,
    /// As the keys, of their own width.
    pub values: Value,
    /// The formats of keys and values, where these are stored in one.
    pub formats: [Option<AnyFormat>; 2],
    /// The tokens so far, whether or not they are there.
    pub total: i32,
    /// How many of the first tokens of each sequence are padding.
    pub left_padding: Vec<i32>,
}

impl KvCache {
    /// The cache of these tokens, of which a token sees a window.
    ///
    /// ```
    /// # fn main() -> tacit_core::Result<()> {
    /// use mlx_rs::ops;
    /// use tacit_nn::{KvCache, Tokens, Window};
    ///
    /// let keys = ops::ones::<f32>(&[1, 2, 5, 64])?;
    /// let (keys, values) = (keys.clone().into(), keys.into());
    /// let tokens = Tokens { keys, values, formats: [None, None], total: 9, left_padding: vec![0] };
    /// let cache = KvCache::of_tokens(&tokens, Window::Sliding { size: 4, sinks: 1 })?;
    /// assert_eq!((cache.len(), cache.capacity()), (9, 5));
    /// assert_eq!(cache.positions()?.as_slice::<i32>(), [0, 5, 6, 7, 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Keys and values are not of the same tokens, a value is not in its format, or there are fewer tokens than the next one
    /// sees.
    pub fn of_tokens(tokens: &Tokens, window: Window) -> Result<Self> {
        window.check()?;
        let (keys, values) = (tokens.keys.aval()?, tokens.values.aval()?);
        let [batch, _, there, _] = four(&keys)?;
        let total = tokens.total;
        let (size, sinks) = window.bounds().unwrap_or((i32::MAX, 0));
        let whole = there == total || there < total && there >= size.saturating_add(sinks);
        let padding = &tokens.left_padding;
        let padded = padding.iter().copied().max().unwrap_or(0);
        let fitting = four(&values)?[..3] == keys.shape[..3]
            && padding.len() == batch as usize
            && padding.iter().all(|padding| (0..=total).contains(padding))
            && (padded == 0 || there == total && sinks == 0);
        if !whole || !fitting {
            return Err(Error::invalid(
                format!("{keys} and {values} are not {total} tokens, padded by {padding:?}, as {window:?} keeps them"),
                "give all tokens in their order, or those that the window keeps",
            ));
        }
        // The last tokens go round behind those that stay.
        let runs = if there == total {
            vec![Run::Kept(0, there)]
        } else {
            let ring = there - sinks;
            let around = (total - ring - sinks) % ring;
            vec![Run::Kept(0, sinks), Run::Kept(there - around, there), Run::Kept(sinks, there - around)]
        };
        let runs: Vec<Run> = runs.into_iter().filter(|run| !run.is_empty()).collect();
        let [of_keys, of_values] = &tokens.formats;
        let store = |value: &Value, format: &Option<AnyFormat>| {
            let store = stored(value, format.clone())?;
            if there == 0 { Ok(store) } else { Ok::<_, Error>(store.with(store.arranged(&runs)?)) }
        };
        let holes = if padded > 0 {
            vec![Hole::new(&padding.iter().map(|&padding| (0, padding)).collect::<Vec<_>>())]
        } else {
            Vec::new()
        };
        let next = Array::from_slice(&[total], &[1]);
        Ok(Self {
            written: Written::of(Slots { capacity: there, window }, total, padded),
            keys: store(&tokens.keys, of_keys)?,
            values: store(&tokens.values, of_values)?,
            offset: Hole::offset(&holes, &next, batch)?,
            next,
            holes,
            window,
            limit: None,
        })
    }

    /// The tokens that are there, in their order.
    ///
    /// # Errors
    ///
    /// A sequence is padded elsewhere than before its first token.
    pub fn tokens(&self) -> Result<Tokens> {
        let total = self.len();
        let line = Slots { capacity: total, window: Window::Everything };
        let runs = self.written.moved(line, 0).into_iter().filter(|run| matches!(run, Run::Kept(..)));
        let runs: Vec<Run> = runs.collect();
        let of = |store: &Store| if total == 0 { Ok(store.buffer.clone()) } else { store.arranged(&runs) };
        Ok(Tokens {
            keys: of(&self.keys)?,
            values: of(&self.values)?,
            formats: [&self.keys, &self.values].map(|store| store.format().cloned()),
            total,
            left_padding: self.left_padding()?,
        })
    }

    /// The padding before each sequence.
    fn left_padding(&self) -> Result<Vec<i32>> {
        let total = self.len();
        let offsets = self.offset.as_dtype(Dtype::Int32)?;
        let padding: Vec<i32> = offsets.as_slice::<i32>().iter().map(|offset| total - offset).collect();
        if padding.iter().all(|&padding| padding == 0) {
            return Ok(padding);
        }
        let tokens = ops::arange::<_, i32>(0, total, None)?.reshape(&[1, total])?;
        let expected = tokens.subtract(Array::from_slice(&padding, &[padding.len() as i32, 1]))?;
        let expected = ops::maximum(expected, Array::from_int(-1))?;
        if !Hole::positions(&self.holes, &tokens)?.eq_exact(&expected)? {
            return Err(Error::invalid(
                "a sequence is padded behind its first token, which is no order of tokens",
                "split the batch, and take the tokens of each sequence",
            ));
        }
        Ok(padding)
    }
}

/// A buffer of tokens that are in this format.
fn stored(buffer: &Value, format: Option<AnyFormat>) -> Result<Store> {
    let aval: Aval = buffer.aval()?;
    let [batch, heads, there, width] = four(&aval)?;
    let is_stored = match &format {
        Some(format) => format.stores(buffer) || there == 0,
        None => !buffer.is_implicit(),
    };
    if !is_stored {
        let format = format.map_or_else(|| "dense".to_owned(), |format| format.to_string());
        return Err(Error::invalid(
            format!("{buffer} is given as {format}"),
            "name the format that the tokens are stored in, or none where they are dense",
        ));
    }
    Ok(Store::new([batch, heads, width], aval.dtype)?.stored(format)?.with(buffer.clone()))
}
