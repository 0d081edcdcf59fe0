//! Small models whose tokens are known, and what they have seen.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast, ops, random};
use tacit_core::{Result, Tree};
use tacit_nn::KvCache;
use tacit_nn::generate::{GenerateOptions, Sequences, Token, Trim};

/// All that a model has seen, on the device.
#[derive(Tree, Clone, Debug)]
pub(crate) struct Seen(pub(crate) Array);

impl Seen {
    pub(crate) fn new(batch: i32) -> Result<Self> {
        Ok(Self(ops::zeros::<u32>(&[batch, 0])?))
    }

    pub(crate) fn tokens(&self) -> Vec<u32> {
        if self.0.size() == 0 {
            return Vec::new();
        }
        self.0.as_slice::<u32>().to_vec()
    }
}

impl Trim for Seen {
    fn trim(&mut self, tokens: i32) -> Result<()> {
        self.0 = self.0.try_index((.., ..self.0.dim(1) - tokens))?;
        Ok(())
    }
}

/// What stands before the first token of a shorter sequence.
pub(crate) const NOTHING: u32 = 99;

impl Sequences for Seen {
    fn pad_left(&mut self, _: i32, _: &[i32]) -> Result<()> {
        Ok(())
    }

    fn select(&self, rows: &[i32]) -> Result<Self> {
        Ok(Self(self.0.take_axis(Array::from_slice(rows, &[rows.len() as i32]), 0)?))
    }

    fn merge(parts: &[Self]) -> Result<Self> {
        let longest = parts.iter().map(|part| part.0.dim(1)).max().unwrap_or(0);
        let filled = |part: &Self| {
            let nothing =
                ops::full::<u32>(&[part.0.dim(0), longest - part.0.dim(1)], Array::from_slice(&[NOTHING], &[1]))?;
            ops::concatenate(&[&nothing, &part.0], 1)
        };
        Ok(Self(ops::concatenate(&parts.iter().map(filled).collect::<Result<Vec<_>, _>>()?, 0)?))
    }
}

/// The next of a token is its row in the table.
pub(crate) fn bigram(table: Array) -> impl FnMut(&Array, &mut Seen) -> Result<Array> {
    move |tokens, seen| {
        seen.0 = ops::concatenate(&[&seen.0, tokens], 1)?;
        Ok(table.take_axis(tokens, 0)?)
    }
}

/// Each of `count` tokens is followed by the next.
pub(crate) fn circle(count: i32) -> Result<Array> {
    let places = ops::arange::<_, i32>(0, count, None)?;
    let next = places.add(Array::from_int(1))?.remainder(Array::from_int(count))?;
    Ok(next.expand_dims(1)?.eq(&places)?.as_dtype(Dtype::Float32)?)
}

pub(crate) fn noise(count: i32, seed: u64) -> Result<Array> {
    Ok(random::normal::<f32>(&[count, count], None, None, &random::key(seed)?)?)
}

pub(crate) fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, ..GenerateOptions::default() }
}

pub(crate) fn ids(tokens: impl Iterator<Item = Result<Token>>) -> Result<Vec<u32>> {
    tokens.map(|token| Ok(token?.id)).collect()
}

/// Attention over a cache, on random weights: one head of 16, whose logits depend on all that it has seen.
pub(crate) fn attend(tokens: &Array, caches: &mut [KvCache], embedding: &Array) -> Result<Array> {
    let x = embedding.take_axis(tokens, 0)?.expand_dims(1)?;
    let cache = &mut caches[0];
    let rotated = fast::rope_dynamic(&x, 16, false, 100.0, 1.0, cache.offset(), None)?;
    let mask = cache.mask(tokens.dim(1))?;
    let (keys, values) = cache.update(&rotated, &x)?;
    let y = fast::scaled_dot_product_attention(&rotated, &keys, &values, 0.25, Some((&mask).into()), None)?;
    // Another matrix than that of the tokens, which would be repeated.
    let head = embedding.multiply(Array::from_f32(5.0))?.sin()?;
    Ok(y.squeeze_axes(&[1])?.matmul(head.t())?)
}

/// A step over one cache that makes room by itself.
pub(crate) fn eagerly(embedding: Array) -> impl FnMut(&Array, &mut Vec<KvCache>) -> Result<Array> {
    move |tokens, caches| {
        caches[0].reserve(tokens.dim(1))?;
        attend(tokens, caches, &embedding)
    }
}
