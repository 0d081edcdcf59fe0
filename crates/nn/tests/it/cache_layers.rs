//! States of layers without attention, and layers of several kinds together.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::compile::Options;
use tacit_core::{Error, Policy, Result, compile_with_state};
use tacit_nn::{ArraysCache, Cache, KvCache};

use crate::cache::{FORMATS, Tokens, cache, layer, part, tokens, whole};

fn column(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32, 1])
}

fn floats(array: &Array) -> Vec<f32> {
    array.as_slice::<f32>().to_vec()
}

#[test]
fn padding_of_a_state_ends_where_the_tokens_begin() -> Result<()> {
    let mut cache = ArraysCache::new(1);
    assert!(cache.mask(3)?.is_none());
    cache.set_left_padding(&[2, 0]);
    let seen = |cache: &ArraysCache, tokens: i32| -> Result<Vec<bool>> {
        Ok(cache.mask(tokens)?.expect("there is padding").as_slice::<bool>().to_vec())
    };
    assert_eq!(seen(&cache, 3)?, [false, false, true, true, true, true]);
    cache.advance(1)?;
    assert_eq!(seen(&cache, 2)?, [false, true, true, true]);
    cache.finish();
    cache.set_lengths(&[1, 3]);
    assert_eq!(seen(&cache, 3)?, [true, false, false, true, true, true]);
    Ok(())
}

#[test]
fn states_are_merged_and_filtered_by_sequence() -> Result<()> {
    let mut one = ArraysCache::new(2);
    one.set(0, column(&[1.0, 2.0]))?;
    let mut other = ArraysCache::new(2);
    other.set(0, column(&[3.0]))?;
    let merged = ArraysCache::merge(&[one, ArraysCache::new(2), other])?;
    assert_eq!(floats(merged.get(0)?.expect("is there")), [1.0, 2.0, 0.0, 3.0]);
    assert!(merged.get(1)?.is_none());
    assert_eq!(floats(merged.filter(&[3, 0])?.get(0)?.expect("is there")), [3.0, 1.0]);
    assert!(merged.filter(&[4]).is_err() && merged.get(2).is_err());
    assert!(ArraysCache::merge(&[merged, ArraysCache::new(1)]).is_err() && ArraysCache::merge(&[]).is_err());
    Ok(())
}

/// Attention, and beside it a sum of all queries.
fn layers(caches: &mut [Cache; 2], tokens: Tokens) -> Result<(Array, Array)> {
    let missing = || Error::invalid("another layer is expected", "give the caches of this model");
    let sum = tokens.0.sum(None)?.reshape(&[1])?;
    let [attention, Cache::List(others)] = caches else { return Err(missing()) };
    let y = layer(attention.as_kv().ok_or_else(missing)?, tokens)?;
    let state = others.first_mut().and_then(Cache::as_arrays).ok_or_else(missing)?;
    let sum = state.get(0)?.map_or_else(|| Ok(sum.clone()), |before| before.add(&sum))?;
    state.set(0, sum.clone())?;
    Ok((y, sum))
}

#[test]
fn layers_of_several_kinds_are_the_state_of_one_compiled_step() -> Result<()> {
    let _deny = Policy::Deny.scope();
    let all = tokens(1, 1, 12, Dtype::Float32);
    let attention: KvCache = cache(1, Dtype::Float32, FORMATS[3], tacit_nn::Window::Everything);
    let mut caches = [Cache::from(attention), Cache::List(vec![ArraysCache::new(1).into()])];
    caches.iter_mut().try_for_each(|cache| cache.reserve(12))?;
    let expected = whole(&all, FORMATS[3], tacit_nn::Window::Everything);
    let mut step = compile_with_state(layers, Options::default());
    for at in 0..12 {
        let (q, k, v) = part(&all, at, at + 1);
        let (y, sum) = step.call(&mut caches, &(q.into(), k.into(), v.into()))?;
        let close = y.dense()?.all_close(expected.try_index((.., .., at..=at, ..))?, 1e-5, 1e-5, None)?;
        assert!(close, "at {at}");
        let total = all.0.try_index((.., .., ..=at, ..))?.sum(None)?;
        assert!(ops::subtract(sum.dense()?, &total)?.abs()?.item_exact::<f32>() < 1e-3);
    }
    // The first step finds the slot empty.
    assert_eq!(step.stats().traces, 2, "{:?}", step.stats().retraces().collect::<Vec<_>>());
    assert!(!caches.iter().any(Cache::is_empty) && caches[1].nbytes() == 4);
    Ok(())
}
