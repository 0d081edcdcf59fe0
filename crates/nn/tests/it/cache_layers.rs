//! States of layers without attention, and layers of several kinds together.

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_core::compile::CompileOptions;
use tacit_core::{Error, Policy, Result, compile_with_state};
use tacit_nn::generate::Sequences;
use tacit_nn::{ArraysCache, Cache, KvCache};

use crate::cache::{FORMATS, Tokens, cache, layer, part, tokens, whole};

fn column(values: &[f32]) -> Array {
    Array::from_slice(values, &[values.len() as i32, 1])
}

fn floats(array: &Array) -> Vec<f32> {
    array.as_slice::<f32>().to_vec()
}

/// Padding on the left would stand between what a state has seen and the tokens.
#[test]
fn a_state_that_has_seen_tokens_takes_no_padding_on_the_left() -> Result<()> {
    let mut cache = ArraysCache::new(1);
    cache.pad_left(5, &[5, 3])?;
    cache.set(0, ops::zeros::<f32>(&[2, 3])?)?;
    cache.pad_left(4, &[4, 4])?;
    let refused = cache.pad_left(5, &[5, 3]).expect_err("rows of other lengths");
    expect![[r#"
        prompts of [5, 3] tokens go on from a state, which takes no padding
        help: give the sequences prompts of one length, or each by itself"#]]
    .assert_eq(&refused.to_string());
    // It is as it was.
    cache.pad_left(4, &[4, 4])?;
    Ok(())
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
    Ok(())
}

/// The text of what is refused.
fn refused<T>(made: Result<T>) -> String {
    made.err().expect("it is refused").to_string()
}

#[test]
fn states_of_other_batches_are_refused_and_padding_stays() -> Result<()> {
    let mut one = ArraysCache::new(2);
    one.set(0, column(&[1.0, 2.0]))?;
    one.set_left_padding(&[1, 0]);
    let mut other = ArraysCache::new(2);
    other.set(1, column(&[3.0]))?;
    other.set_lengths(&[2]);
    let merged = ArraysCache::merge(&[one.clone(), other.clone()])?;
    assert_eq!(floats(merged.get(0)?.expect("is there")), [1.0, 2.0, 0.0]);
    assert_eq!(floats(merged.get(1)?.expect("is there")), [0.0, 0.0, 3.0]);
    let mask = merged.mask(3)?.expect("there is padding");
    assert_eq!(mask.as_slice::<bool>(), [false, true, true, true, true, true, true, true, false]);
    assert_eq!(merged.filter(&[2])?.mask(3)?.expect("stays").as_slice::<bool>(), [true, true, false]);

    // Only padding says how many sequences there are.
    let mut padded = ArraysCache::new(1);
    padded.set_left_padding(&[0, 1]);
    let mut mixed = one.clone();
    mixed.set(1, column(&[1.0, 2.0, 3.0]))?;
    let mut wide = ArraysCache::new(2);
    wide.set(0, Array::from_slice(&[1.0f32, 2.0], &[1, 2]))?;
    let messages = [
        refused(padded.filter(&[2])),
        refused(padded.filter(&[])),
        refused(ArraysCache::new(1).filter(&[-1])),
        refused(ArraysCache::merge(&[mixed.clone(), other.clone()])),
        refused(mixed.filter(&[0])),
        refused(ArraysCache::merge(&[one, wide])),
        refused(ArraysCache::new(1).set(0, Array::from_f32(1.0))),
        refused(ArraysCache::new(1).set(1, column(&[1.0]))),
        refused(ArraysCache::merge(&[])),
        refused(ArraysCache::merge(&[ArraysCache::new(2), ArraysCache::new(1)])),
        refused(padded.pad_left(3, &[3, 3, 3])),
        refused(Cache::merge(&[ArraysCache::new(1).into(), KvCache::new([1, 2, 64], Dtype::Float32)?.into()])),
        refused(Vec::<Cache>::merge(&[vec![ArraysCache::new(1).into()], Vec::new()])),
    ];
    expect![[r#"
        rows [2] of a batch of 2 are asked for
        help: name one sequence at least, counted from zero
        rows [] of a batch of 2 are asked for
        help: name one sequence at least, counted from zero
        rows [-1] of a batch are asked for
        help: name one sequence at least, counted from zero
        a cache holds arrays of 2 sequences and of 3
        help: put arrays of one batch into its slots, and say the padding of as many sequences
        a cache holds arrays of 2 sequences and of 3
        help: put arrays of one batch into its slots, and say the padding of as many sequences
        f32[2,1] and f32[1,2] are not merged
        help: merge caches of one layer, whose arrays differ in the batch alone
        a slot of a cache is given f32[], which has no batch
        help: put an array there whose first axis is the batch
        slot 1 of a cache with 1 is asked for
        help: make the cache with as many slots as its layer keeps arrays
        there are no caches to merge
        help: give one at least
        caches of 2 slots and of 1 are merged
        help: merge caches of one layer
        a cache of 2 sequences is given 3 prompts
        help: give one prompt for each sequence
        caches of different kinds are merged
        help: merge the caches of one layer of one model
        states of different layers are merged
        help: merge the states of one model"#]]
    .assert_eq(&messages.join("\n"));
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
    let mut step = compile_with_state(CompileOptions::default(), layers);
    for at in 0..12 {
        let (q, k, v) = part(&all, at, at + 1);
        let (y, sum) = step.call(&mut caches, (q, k, v))?;
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
