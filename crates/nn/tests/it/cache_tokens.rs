//! The tokens of a cache in their order, and a cache of tokens.

use expect_test::expect;
use mlx_rs::{Array, Dtype, fast, ops, random};
use tacit_arrays::format::{AnyFormat, parse};
use tacit_core::{Counters, Error, Policy, Result, implicit_with_state};
use tacit_nn::{KvCache, Side, Tokens, Window};

const WINDOWS: [Window; 3] = [Window::Everything, Window::Sliding { size: 4, sinks: 2 }, Window::Chunked { size: 4 }];

fn normal(seed: u64, shape: &[i32]) -> Array {
    random::normal::<f32>(shape, None, None, Some(&random::key(seed).expect("a key"))).expect("numbers")
}

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

fn assert_goes_on(mut cache: KvCache, seed: u64) {
    let mut again = KvCache::of_tokens(&cache.tokens().expect("in order"), cache.window()).expect("fits");
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
                if let Some([keys, values]) = formats {
                    let of = |text: &str| AnyFormat::from(parse(text).expect("a format"));
                    cache = cache.quantized(of(keys), of(values)).expect("one");
                }
                for (seed, &tokens) in (0..).zip(steps) {
                    step(&mut cache, seed, tokens).expect("runs");
                }
                assert_goes_on(cache, 100);
            }
        }
    }
}

#[test]
fn steps_over_rotated_tokens_build_nothing() {
    for window in WINDOWS {
        let format = |text: &str| AnyFormat::from(parse(text).expect("a format"));
        let mut cache = KvCache::new([2, 2, 64], Dtype::Bfloat16)
            .and_then(|cache| {
                cache.with_window(window)?.quantized(format("rotated:affine:8:32"), format("rotated:int8:64"))
            })
            .expect("one");
        let mut dense =
            KvCache::new([2, 2, 64], Dtype::Bfloat16).and_then(|cache| cache.with_window(window)).expect("one");
        for (seed, tokens) in [(0, 5), (1, 1), (2, 1), (3, 1)] {
            let (made, counters) = Counters::of(|| {
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
    cache.prepare(4, &[2, 4, 1], Side::Left).expect("a prompt");
    step(&mut cache, 0, 4).expect("runs");
    step(&mut cache, 1, 1).expect("runs");
    assert_eq!(cache.tokens().expect("in order").left_padding, [2, 0, 3]);
    assert_goes_on(cache, 100);
    let mut right = KvCache::new([2, 2, 16], Dtype::Float32).expect("one");
    right.prepare(4, &[2, 4], Side::Right).expect("a prompt");
    step(&mut right, 0, 4).expect("runs");
    expect![[r#"
        a sequence is padded behind its first token, which is no order of tokens
        help: split the batch, and take the tokens of each sequence"#]]
    .assert_eq(&right.tokens().expect_err("refused").to_string());
}

#[test]
fn what_is_no_tokens_of_a_cache() {
    let tokens = |there: i32, total: i32| {
        let keys = ops::zeros::<f32>(&[1, 2, there, 32]).expect("zeros");
        let (keys, values) = (keys.clone().into(), keys.into());
        Tokens { keys, values, formats: [None, None], total, left_padding: vec![0] }
    };
    let said = |tokens: Tokens, window| KvCache::of_tokens(&tokens, window).expect_err("refused").to_string();
    let sliding = Window::Sliding { size: 4, sinks: 1 };
    let nf4 = || Some(parse("nf4:32").expect("a format").into());
    let found = [
        said(tokens(3, 5), Window::Everything),
        said(tokens(4, 9), sliding),
        said(Tokens { left_padding: vec![1], ..tokens(5, 9) }, sliding),
        said(Tokens { left_padding: vec![], ..tokens(5, 5) }, sliding),
        said(Tokens { formats: [nf4(), None], ..tokens(5, 5) }, sliding),
        said(tokens(5, 5), Window::Sliding { size: 0, sinks: 1 }),
    ];
    expect![[r#"
        f32[1,2,3,32] and f32[1,2,3,32] are not 5 tokens, padded by [0], as Everything keeps them
        help: give all tokens in their order, or those that the window keeps
        f32[1,2,4,32] and f32[1,2,4,32] are not 9 tokens, padded by [0], as Sliding { size: 4, sinks: 1 } keeps them
        help: give all tokens in their order, or those that the window keeps
        f32[1,2,5,32] and f32[1,2,5,32] are not 9 tokens, padded by [1], as Sliding { size: 4, sinks: 1 } keeps them
        help: give all tokens in their order, or those that the window keeps
        f32[1,2,5,32] and f32[1,2,5,32] are not 5 tokens, padded by [], as Sliding { size: 4, sinks: 1 } keeps them
        help: give all tokens in their order, or those that the window keeps
        f32[1,2,5,32] is given as nf4:32
        help: name the format that the tokens are stored in, or none where they are dense
        there is no window of 0 tokens behind 1
        help: let a token see itself at least"#]]
    .assert_eq(&found.join("\n"));
}
