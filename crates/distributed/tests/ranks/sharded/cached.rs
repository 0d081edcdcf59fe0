//! Layers of split heads with a cache of keys and values.

use std::slice::from_ref;

use mlx_rs::{Array, Dtype, fast, ops};
use tacit_arrays::Nf4Array;
use tacit_arrays::format::Affine;
use tacit_conformance::close;
use tacit_core::{Error, Policy, Result, Value, compile_with_state};
use tacit_distributed::{Group, Sharded, split_heads};
use tacit_nn::KvCache;

use super::{check, split};
use crate::checkpoints::normal;

pub(super) fn caches(group: &Group) -> Result<()> {
    let new = split(1, &[1, 4, 2, 8], 1, group)?;
    check("write into a new cache", from_ref(&new), |a| {
        let start = Array::from_slice(&[3i32], &[1]);
        let cache = ops::zeros::<f32>(&[1, 4, 8, 8])?;
        let cache = tacit_core::extra_ops::dynamic_slice_update(&cache, &a[0], &start, &[2])?;
        let next = tacit_core::extra_ops::dynamic_slice_update(&cache, &a[0], &Array::from_slice(&[5i32], &[1]), &[2])?;
        Ok(vec![tacit_core::extra_ops::dynamic_slice(&next, &start, &[2], &[1, 4, 4, 8])?])
    });
    check("grow an empty cache", from_ref(&new), |a| {
        let empty = ops::zeros::<f32>(&[1, 4, 1, 8])?;
        let first = ops::concatenate(&[&empty, &a[0]], 2)?;
        Ok(vec![
            ops::concatenate(&[&first, &a[0]], 2)?,
            ops::pad(&a[0], &[(0, 0), (0, 0), (1, 2), (0, 0)], None, None)?,
        ])
    });
    check("pad with a number", &[new.clone(), Value::from(Array::from_f32(0.5))], |a| {
        let padded = ops::pad(&a[0], &[(0, 0), (0, 0), (1, 2), (0, 0)], a[1].clone(), None)?;
        let numbers = ops::arange::<_, f32>(None, padded.size() as i32, None)?.reshape(padded.shape())?;
        Ok(vec![padded.multiply(numbers)?])
    });
    check("put to places", from_ref(&new), |a| {
        let places = ops::broadcast_to(Array::from_slice(&[6i32, 1], &[1, 1, 2, 1]), &[1, 4, 2, 8])?;
        Ok(vec![ops::zeros::<f32>(&[1, 4, 8, 8])?.put_along_axis(&places, &a[0], 2)?])
    });
    check("write at a place", &[new], |a| {
        use mlx_rs::ops::indexing::TryIndexMutOp;
        let mut cache = ops::zeros::<f32>(&[1, 4, 8, 8])?;
        cache.try_index_mut((.., .., 2..4, ..), &a[0])?;
        Ok(vec![cache])
    });
    Ok(())
}

/// An attention layer that decodes with a cache of codes: weights, heads and cache are split, and nothing is gathered.
pub(super) fn decoding(group: &Group) -> Result<()> {
    let weight = |seed| -> Result<Value> { Ok(Nf4Array::quantize(&normal(seed, &[512, 512])?, 64)?.into()) };
    let whole = [weight(1)?, weight(2)?, weight(3)?, weight(4)?];
    let parts = whole.iter().zip([0, 0, 0, 1]).map(|(w, axis)| Ok(Sharded::split(w.clone(), axis, group)?.into()));
    let parts: Vec<Value> = parts.collect::<Result<_>>()?;
    let format = Affine { bits: 8, group: 64 };
    let cache = KvCache::new([1, 8, 64], Dtype::Float32)?.quantized(format, format)?;
    let decode = |weights: Vec<Value>, mut cache: KvCache| -> Result<Vec<Array>> {
        let _deny = Policy::Deny.scope();
        let step = |cache: &mut KvCache, (w, x): (Vec<Array>, Array)| {
            let tokens = x.dim(1);
            let heads = |w: &Array| x.matmul(w.t())?.reshape(&[1, tokens, 8, 64])?.transpose_axes(&[0, 2, 1, 3]);
            let (q, k, v) = (heads(&w[0])?, heads(&w[1])?, heads(&w[2])?);
            let mask = cache.mask(tokens)?;
            let (k, v) = cache.update(&k, &v)?;
            let y = fast::scaled_dot_product_attention(&q, &k, &v, 0.125, Some((&mask).into()), None)?;
            let y = y.transpose_axes(&[0, 2, 1, 3])?.reshape(&[1, tokens, 512])?;
            Ok::<_, Error>(y.matmul(w[3].t())?)
        };
        let mut step = compile_with_state(tacit_core::compile::CompileOptions::default(), step);
        let mut outputs = Vec::new();
        for (seed, tokens) in [(10, 5), (11, 1), (12, 1)] {
            cache.reserve(tokens)?;
            let x = normal(seed, &[1, tokens, 512])?.multiply(Array::from_f32(0.05))?;
            outputs.push(step.call(&mut cache, (weights.clone(), x))?.dense()?);
        }
        Ok(outputs)
    };
    let expected = decode(whole.to_vec(), cache.clone())?;
    let found = decode(parts, split_heads(&cache, group)?)?;
    for (found, expected) in found.iter().zip(&expected) {
        close(found, expected, 1e-4).unwrap_or_else(|error| panic!("{error}"));
    }
    Ok(())
}
