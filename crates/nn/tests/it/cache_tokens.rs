//! The tokens of a cache in their order, and a cache of tokens.

use mlx_rs::{Array, Dtype, fast};
use tacit_arrays::format::{AnyFormat, parse};
use tacit_core::{Counters, Error, Policy, Result, implicit_with_state};
use tacit_nn::{KvCache, PaddingSide, Window};

use crate::types::normal;

const WINDOWS: [Window; 3] = [Window::Everything, Window::Sliding { size: 4, sinks: 2 }, Window::Chunked { size: 4 }];

/// Attention over the cache after these tokens.
fn step(cache: &mut KvCache, seed: u64, tokens: i32) -> Result<Array> {
    let [batch, heads, _, width] = cache.keys().aval()?.shape[..] else { panic!("four axes") };
    let [q, k, v] = [0, 1, 2].map(|part| normal(8 * seed + part, &[batch, heads, tokens, width]));
    cache.reserve(tokens)?;
    implicit_with_state(cache, (&q, &k, &v), |cache, (q, k, v)| {
        let mask = cache.mask(tokens)?;
        let (k, v) = cache.update(&k, &v)?;
        Ok::<_, Error>(fast::scaled_dot_product_attention(&q, &k, &v, 0.25, Some((&mask).into()), None)?)
    })?
    .dense()
}

/// Compares steps of a cache, whose tokens are in these formats and padded so, with those of one that is filled with them.
fn assert_goes_on(mut cache: KvCache, formats: [Option<AnyFormat>; 2], padding: &[i32], seed: u64) {
    let (tokens, values) = cache.tokens().expect("in order");
    let [batch, heads, _, width] = tokens.aval().expect("an aval").shape[..] else { panic!("four axes") };
    let [of_keys, of_values] = formats;
    let mut again = KvCache::new([batch, heads, width], Dtype::Float32)
        .and_then(|again| again.with_window(cache.window())?.stored(of_keys, of_values))
        .and_then(|again| again.filled(tokens, values, cache.len()))
        .and_then(|again| if padding.is_empty() { Ok(again) } else { again.with_left_padding(padding) })
        .expect("fits");
    assert_eq!((again.len(), again.window()), (cache.len(), cache.window()));
    assert_eq!(again.offset().as_slice::<i32>(), cache.offset().as_slice::<i32>());
    for more in 0..3 {
        let [own, made] = [&mut cache, &mut again].map(|cache| step(cache, seed + more, 1).expect("runs"));
        assert!(own.all_close(&made, 1e-5, 1e-6, None).expect("compares"), "{:?}, {more}", cache.window());
    }
}

#[test]
fn a_cache_of_its_tokens_goes_on_as_it_would() {
    let _allow = Policy::Allow.scope();
    for window in WINDOWS {
        for formats in [None, Some(["affine:8:32", "rotated:nf4:32"])] {
            for steps in [&[3][..], &[3, 1, 1, 1, 1, 1, 1, 1], &[9, 2, 1]] {
                let mut cache =
                    KvCache::new([2, 2, 32], Dtype::Float32).and_then(|cache| cache.with_window(window)).expect("one");
                let formats = [0, 1].map(|part| formats.map(|texts| parse(texts[part]).expect("a format")));
                let [of_keys, of_values] = formats.clone();
                cache = cache.stored(of_keys, of_values).expect("one");
                for (seed, &tokens) in (0..).zip(steps) {
                    step(&mut cache, seed, tokens).expect("runs");
                }
                assert_goes_on(cache, formats, &[], 100);
            }
        }
    }
}

#[test]
fn steps_over_rotated_tokens_build_nothing() {
    for window in WINDOWS {
        let format = |text: &str| parse(text).expect("a format");
        let mut cache = KvCache::new([2, 2, 64], Dtype::Bfloat16)
            .and_then(|cache| {
                cache.with_window(window)?.quantized(format("rotated:affine:8:32"), format("rotated:int8:64"))
            })
            .expect("one");
        let mut dense =
            KvCache::new([2, 2, 64], Dtype::Bfloat16).and_then(|cache| cache.with_window(window)).expect("one");
        for (seed, tokens) in [(0, 5), (1, 1), (2, 1), (3, 1)] {
            let (made, counters) = Counters::during(|| {
                let _deny = Policy::Deny.scope();
                step(&mut cache, seed, tokens)
            });
            let made = made.expect("runs");
            assert_eq!(counters.materialized, 0);
            let exact = step(&mut dense, seed, tokens).expect("runs");
            assert!(made.all_close(&exact, 0.05, 0.05, None).expect("compares"), "{window:?} {tokens}");
        }
        assert_eq!(cache.keys().to_string().split('(').next(), Some("Rotated"));
        assert!(10 * cache.nbytes() < 6 * dense.nbytes());
    }
}

#[test]
fn a_padded_batch_goes_on_as_it_would() {
    let mut cache = KvCache::new([3, 2, 16], Dtype::Float32).expect("one");
    cache.prepare(4, &[2, 4, 1], PaddingSide::Left).expect("a prompt");
    step(&mut cache, 0, 4).expect("runs");
    step(&mut cache, 1, 1).expect("runs");
    assert_goes_on(cache, [None, None], &[2, 0, 3], 100);
}

/// It was forgotten that the prompt is padded, and padding could be taken away.
#[test]
fn the_padding_of_a_prompt_that_is_filled_in_is_not_trimmed() {
    let mut cache = KvCache::new([2, 2, 16], Dtype::Float32).expect("one");
    cache.prepare(4, &[1, 4], PaddingSide::Left).expect("a prompt");
    let tokens = normal(1, &[2, 2, 5, 16]);
    let mut cache = cache.filled(tokens.clone(), tokens, 5).expect("fills");
    assert_eq!(cache.offset().as_slice::<i32>(), [2, 5]);
    cache.trim(1).expect("it is behind the prompt");
    assert!(cache.trim(1).is_err());
    assert_eq!(cache.offset().as_slice::<i32>(), [1, 4]);
}
