//! Steps with a cache: compiled, within each other, failing, and what a step may do to the cache that it is given.

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_conformance::assert_close;
use tacit_core::compile::CompileOptions;
use tacit_core::{Error, Policy, Result, Value, compile, compile_with_state, implicit, implicit_with_state};
use tacit_nn::{KvCache, PaddingSide, Window};

use super::{FORMATS, HEADS, Tokens, WIDTH, WINDOWS, cache, eager, layer, part, tokens, whole};

#[test]
fn a_compiled_step_is_traced_once() {
    let _deny = Policy::Deny.scope();
    let all = tokens(1, 1, 300, Dtype::Float32);
    for (formats, window) in
        [(FORMATS[0], WINDOWS[0]), (FORMATS[2], WINDOWS[0]), (FORMATS[3], WINDOWS[2]), (FORMATS[2], WINDOWS[3])]
    {
        let expected = whole(&all, formats, window);
        let mut cache = cache(1, Dtype::Float32, formats, window);
        let mut step = compile_with_state(CompileOptions::default(), layer);
        eager(&mut cache, &part(&all, 0, 4)).expect("attends");
        cache.reserve(256 - 4).expect("room");
        for at in 4..40 {
            cache.reserve(1).expect("room");
            let (q, k, v) = part(&all, at, at + 1);
            let made = step.call(&mut cache, (q, k, v)).expect("attends").dense().expect("dense");
            let expected = expected.try_index((.., .., at..=at, ..)).expect("a range");
            assert_close!(made, expected, 1e-5, "{formats:?} {window:?} at {at}");
        }
        assert_eq!((step.stats().traces, cache.len()), (1, 40), "{:?}", step.stats().retraces().collect::<Vec<_>>());
    }
}

#[test]
fn a_step_within_a_step_is_counted_once() {
    let _deny = Policy::Deny.scope();
    let all = tokens(1, 1, 12, Dtype::Float32);
    for formats in [FORMATS[0], FORMATS[2]] {
        let expected = whole(&all, formats, WINDOWS[0]);
        let mut cache = cache(1, Dtype::Float32, formats, WINDOWS[0]);
        // Two tokens of a call, by two steps of its own.
        let twice = |cache: &mut KvCache, (q, k, v): (Array, Array, Array)| -> Result<Array> {
            let each = [0, 1].map(|at| {
                implicit_with_state(cache, part(&(q.clone(), k.clone(), v.clone()), at, at + 1), layer)?.dense()
            });
            let [first, second] = each;
            Ok(ops::concatenate(&[first?, second?], 2)?)
        };
        let mut step = compile_with_state(CompileOptions::default(), twice);
        for at in (0..12).step_by(2) {
            cache.reserve(2).expect("room");
            let (q, k, v) = part(&all, at, at + 2);
            let made = step.call(&mut cache, (q, k, v)).expect("attends").dense().expect("dense");
            assert_close!(made, expected.try_index((.., .., at..at + 2, ..)).unwrap(), 1e-5, "{formats:?} at {at}");
        }
        assert_eq!((step.stats().traces, cache.len()), (1, 12));
        cache.trim(3).expect("trims");
        assert_eq!(cache.len(), 9);
    }
}

#[test]
fn a_step_that_fails_leaves_the_cache_as_it_was() {
    let _deny = Policy::Deny.scope();
    let all = tokens(5, 1, 12, Dtype::Float32);
    let expected = whole(&all, FORMATS[3], Window::Everything);
    let mut cache = cache(1, Dtype::Float32, FORMATS[3], Window::Everything);
    eager(&mut cache, &part(&all, 0, 8)).expect("attends");
    let four = part(&all, 8, 12);
    let failed = implicit_with_state(&mut cache, &four, |cache, tokens| {
        layer(cache, tokens)?;
        Err::<Array, _>(Error::invalid("not now", "try again"))
    });
    assert!(failed.expect_err("it fails").to_string().contains("not now"));
    let panicked = implicit_with_state(&mut cache, &four, |cache, tokens| {
        layer(cache, tokens)?;
        assert!(cache.is_empty(), "a panic in the middle");
        Ok::<_, Error>(())
    });
    assert!(panicked.expect_err("it fails").to_string().contains("a panic in the middle"));
    let mut step = compile_with_state(CompileOptions::default(), |cache: &mut KvCache, tokens: Tokens| {
        layer(cache, tokens)?;
        Err::<Array, _>(Error::invalid("not now", "try again"))
    });
    let (q, k, v) = four.clone();
    assert!(step.call(&mut cache, (q, k, v)).expect_err("it fails").to_string().contains("not now"));
    assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (8, &[8][..]));
    let made = eager(&mut cache, &four).expect("attends");
    assert_close!(made, expected.try_index((.., .., 8.., ..)).unwrap(), 1e-5);
}

#[test]
fn a_step_beyond_the_room_overwrites_nothing() {
    let _deny = Policy::Deny.scope();
    let all = tokens(5, 1, 20, Dtype::Float32);
    let mut cache = KvCache::new([1, HEADS, WIDTH], Dtype::Float32).unwrap().with_capacity(16).unwrap();
    let mut step = compile_with_state(CompileOptions::default(), layer);
    let call = |step: &mut tacit_core::compile::CompiledWithState<'_, KvCache, Tokens, Array>,
                cache: &mut KvCache,
                from: i32,
                to: i32|
     -> Result<Value> {
        let (q, k, v) = part(&all, from, to);
        step.call(cache, &(q, k, v))
    };
    for from in [0, 5, 10] {
        call(&mut step, &mut cache, from, from + 5).expect("attends");
    }
    let before = cache.keys().dense().unwrap();
    assert_eq!(step.stats().traces, 1, "{:?}", step.stats().retraces().collect::<Vec<_>>());
    let error = call(&mut step, &mut cache, 15, 20).expect_err("there is one slot");
    assert!(error.to_string().contains("5 tokens are written behind 15 into a cache with room for 16"), "{error}");
    assert!(cache.reserve(5).is_err());
    assert_eq!((cache.len(), cache.capacity()), (15, 16));
    assert_close!(cache.keys().dense().unwrap(), before, 0.0);
    let made = call(&mut step, &mut cache, 15, 16).expect("attends").dense().unwrap();
    assert!(call(&mut step, &mut cache, 16, 17).is_err());
    assert_eq!((step.stats().traces, cache.len()), (2, 16));
    let expected = whole(&part(&all, 0, 16), FORMATS[0], Window::Everything);
    assert_close!(made, expected.try_index((.., .., 15.., ..)).unwrap(), 1e-5);
}

#[test]
fn tokens_that_are_written_outside_a_step_are_counted_once() -> Result<()> {
    let all = tokens(5, 1, 12, Dtype::Float32);
    let expected = whole(&all, FORMATS[0], Window::Everything);
    let mut compiled = compile_with_state(CompileOptions::default(), layer);
    for is_compiled in [false, true] {
        let mut cache = KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(16)?;
        layer(&mut cache, part(&all, 0, 3))?;
        for at in 3..6 {
            let next = part(&all, at, at + 1);
            if is_compiled {
                compiled.call(&mut cache, next)?;
            } else {
                implicit_with_state(&mut cache, &next, layer)?;
            }
            assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (at + 1, &[at + 1][..]), "{is_compiled}");
        }
        cache.trim(1)?;
        let made = eager(&mut cache, &part(&all, 5, 6))?;
        assert_close!(made, expected.try_index((.., .., 5..6, ..))?, 1e-5, "{is_compiled}");
    }
    Ok(())
}

#[test]
fn no_tokens_are_written_as_nothing() -> Result<()> {
    let _allow = Policy::Allow.scope();
    let all = tokens(5, 1, 3, Dtype::Float32);
    for window in [Window::Everything, Window::Sliding { size: 4, sinks: 1 }] {
        let mut cache = cache(1, Dtype::Float32, ["affine:8:64"; 2], window);
        eager(&mut cache, &all)?;
        let before = cache.keys().dense()?;
        let keys = implicit_with_state(&mut cache, part(&all, 0, 0), |cache, (_, k, v)| {
            Ok::<_, Error>(cache.update(&k, &v)?.0)
        })?;
        assert_close!(keys.dense()?, before, 0.0);
        assert_close!(cache.keys().dense()?, before, 0.0);
        assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (3, &[3][..]));
    }
    Ok(())
}

/// A step that fails and is then repeated counts the tokens before it, too, once.
#[test]
fn tokens_that_are_written_outside_a_step_are_there_after_one_that_fails() -> Result<()> {
    let all = tokens(5, 1, 5, Dtype::Float32);
    // A list that is shorter inside the step is made again from what it was.
    let mut caches = vec![KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(16)?];
    layer(&mut caches[0], part(&all, 0, 3))?;
    let fails = |caches: &mut Vec<KvCache>, _: Tokens| {
        caches.clear();
        Err::<Array, _>(Error::invalid("not now", "try again"))
    };
    assert!(implicit_with_state(&mut caches, part(&all, 3, 4), fails).is_err());
    assert_eq!(caches[0].len(), 3);
    implicit_with_state(&mut caches, part(&all, 3, 4), |caches, next| layer(&mut caches[0], next))?;
    assert_eq!((caches[0].len(), caches[0].offset().as_slice::<i32>()), (4, &[4][..]));
    Ok(())
}

#[test]
fn room_that_is_asked_for_within_a_step_forgets_no_token() -> Result<()> {
    let all = tokens(5, 1, 2, Dtype::Float32);
    let mut cache = KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(16)?;
    implicit_with_state(&mut cache, &all, |cache, all: Tokens| {
        layer(cache, part(&all, 0, 1))?;
        cache.reserve(1)?;
        layer(cache, part(&all, 1, 2))
    })?;
    assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (2, &[2][..]));
    Ok(())
}

#[test]
fn a_cache_that_grows_within_a_step_is_refused_and_is_what_it_was() -> Result<()> {
    let all = tokens(5, 1, 1, Dtype::Float32);
    let mut cache = cache(1, Dtype::Float32, FORMATS[0], Window::Everything);
    cache.reserve(1)?;
    let grows = |cache: &mut KvCache, next: Tokens| {
        cache.reserve(300)?;
        layer(cache, next)
    };
    let error = implicit_with_state(&mut cache, &all, grows).expect_err("it has other buffers").to_string();
    expect![[r#"
        a step leaves 512 slots to a cache that it was given with 256
        help: reserve room before the step, by `KvCache::reserve`"#]]
    .assert_eq(&error);
    let mut compiled = compile_with_state(CompileOptions::default(), grows);
    let (q, k, v) = all.clone();
    assert_eq!(compiled.call(&mut cache, (q, k, v)).expect_err("it has other buffers").to_string(), error);
    assert_eq!((cache.len(), cache.capacity(), cache.keys().aval()?.shape[2]), (0, 256, 256));
    eager(&mut cache, &all)?;
    assert_eq!(cache.len(), 1);
    Ok(())
}

/// What a trace gives back as a result has the number of tokens of the call that was traced.
#[test]
fn a_cache_that_a_compiled_function_is_given_and_returns_is_not_miscounted() -> Result<()> {
    let all = tokens(5, 1, 12, Dtype::Float32);
    let fixed = || KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(8);
    let mut step = compile(|(mut cache, tokens): (KvCache, Tokens)| {
        let made = layer(&mut cache, tokens)?;
        Ok::<_, Error>((made, cache))
    });
    let (_, cache) = step.call((fixed()?, part(&all, 0, 1)))?;
    assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (1, &[1][..]));
    // Another number of tokens is another trace.
    let (_, cache) = step.call((cache, part(&all, 1, 3)))?;
    assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (3, &[3][..]));
    let error = step.call((cache, part(&all, 3, 4))).expect_err("it is a replay").to_string();
    expect![[r#"
        a compiled function returns a cache that it was given, whose tokens a replay does not count
        help: pass it as a state, by `compile_with_state` or `implicit_with_state`"#]]
    .assert_eq(&error);
    // So is a copy of a state, which is then what it was.
    let mut copies = compile_with_state(CompileOptions::default(), |cache: &mut KvCache, tokens: Tokens| {
        layer(cache, tokens)?;
        Ok::<_, Error>(cache.clone())
    });
    let mut cache = fixed()?;
    assert_eq!(copies.call(&mut cache, part(&all, 0, 1))?.len(), 1);
    assert_eq!(copies.call(&mut cache, part(&all, 1, 2)).expect_err("it is a replay").to_string(), error);
    assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (1, &[1][..]));
    Ok(())
}

#[test]
fn caches_that_are_results_of_what_is_not_replayed_are_counted() -> Result<()> {
    let all = tokens(5, 1, 12, Dtype::Float32);
    let fixed = || KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(8);
    let written = |mut cache: KvCache, tokens: Tokens| {
        layer(&mut cache, tokens)?;
        Ok::<_, Error>(cache)
    };
    let (mut cache, mut other) = (fixed()?, fixed()?);
    for at in 0..3 {
        cache = implicit((cache, part(&all, at, at + 1)), |(cache, tokens)| written(cache, tokens))?;
        let given = (other, part(&all, at, at + 1));
        other = implicit_with_state(&mut (), given, |(), (cache, tokens)| written(cache, tokens))?;
        for cache in [&cache, &other] {
            assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (at + 1, &[at + 1][..]));
        }
    }
    // One that a compiled function makes has as many tokens in each call.
    let mut begin = compile_with_state(CompileOptions::default(), |cache: &mut Option<KvCache>, tokens: Tokens| {
        let mut own = KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(8)?;
        let made = layer(&mut own, tokens)?;
        *cache = Some(own);
        Ok::<_, Error>(made)
    });
    for from in 0..3 {
        let mut cache = None;
        begin.call(&mut cache, part(&all, from, from + 2))?;
        let mut cache = cache.expect("it was made");
        assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (2, &[2][..]));
        eager(&mut cache, &part(&all, from + 2, from + 3))?;
        assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (3, &[3][..]));
    }
    assert_eq!(begin.stats().traces, 1);
    Ok(())
}

#[test]
fn another_cache_in_the_place_of_one_within_a_step_is_refused() -> Result<()> {
    let all = tokens(5, 1, 12, Dtype::Float32);
    let fixed = || KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(8);
    let mut both = (fixed()?, fixed()?);
    eager(&mut both.0, &part(&all, 0, 5))?;
    eager(&mut both.1, &part(&all, 0, 2))?;
    let swapped = implicit_with_state(&mut both, &all, |(a, b), _: Tokens| {
        std::mem::swap(a, b);
        Ok::<_, Error>(())
    });
    expect![[r#"
        a step leaves another cache in the place of the one that it was given, or trims or pads that one
        help: put another cache there, or trim or pad the one that is there, outside a step"#]]
    .assert_eq(&swapped.expect_err("the counts are not swapped").to_string());
    assert_eq!((both.0.len(), both.1.len()), (5, 2));
    // Copies are caches of their own, of one length too, where a replay would go on with the other's count.
    let mut copies = (both.1.clone(), both.1.clone());
    let swap = |(a, b): &mut (KvCache, KvCache), _: Tokens| {
        std::mem::swap(a, b);
        Ok::<_, Error>(())
    };
    let compiled = compile_with_state(CompileOptions::default(), swap).call(&mut copies, all.clone());
    for swapped in [implicit_with_state(&mut copies, &all, swap), compiled] {
        let error = swapped.expect_err("the counts are not swapped").to_string();
        assert!(error.contains("a step leaves another cache in the place of the one"), "{error}");
    }
    // One that a step copies takes its place.
    implicit_with_state(&mut copies.0, part(&all, 2, 3), |cache, next| {
        let mut own = cache.clone();
        let made = layer(&mut own, next)?;
        *cache = own;
        Ok::<_, Error>(made)
    })?;
    assert_eq!((copies.0.len(), copies.0.offset().as_slice::<i32>()), (3, &[3][..]));
    let mut began = Some(both.0);
    let mut begin = compile_with_state(CompileOptions::default(), |cache: &mut Option<KvCache>, tokens: Tokens| {
        let mut own = KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(8)?;
        let made = layer(&mut own, tokens)?;
        *cache = Some(own);
        Ok::<_, Error>(made)
    });
    assert!(begin.call(&mut began, part(&all, 0, 2)).is_err());
    let kept = began.expect("it is what it was");
    assert_eq!((kept.len(), kept.offset().as_slice::<i32>()), (5, &[5][..]));
    Ok(())
}

/// Replays went on from the number of tokens at the trace, and did not know of padding.
#[test]
fn a_step_that_trims_or_pads_the_cache_that_it_is_given_is_refused() -> Result<()> {
    let all = tokens(5, 2, 12, Dtype::Float32);
    let mut cache = KvCache::new([2, HEADS, WIDTH], Dtype::Float32)?.with_capacity(12)?;
    eager(&mut cache, &part(&all, 0, 2))?;
    let steps: [fn(&mut KvCache, Tokens) -> Result<Array>; 3] = [
        |cache, tokens| {
            let made = layer(cache, tokens)?;
            cache.trim(2)?;
            Ok(made)
        },
        |cache, tokens| {
            cache.trim(0)?;
            layer(cache, tokens)
        },
        |cache, tokens| {
            cache.prepare(2, &[1, 2], PaddingSide::Left)?;
            layer(cache, tokens)
        },
    ];
    for step in steps {
        let next = part(&all, 2, 4);
        let refused = implicit_with_state(&mut cache, &next, step);
        expect![[r"
            a step leaves another cache in the place of the one that it was given, or trims or pads that one
            help: put another cache there, or trim or pad the one that is there, outside a step"]]
        .assert_eq(&refused.expect_err("a replay does not do it").to_string());
        let refused = compile_with_state(CompileOptions::default(), step).call(&mut cache, next);
        let error = refused.expect_err("a replay does not do it").to_string();
        assert!(error.contains("a step leaves another cache in the place of the one"), "{error}");
        assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (2, &[2, 2][..]));
    }
    Ok(())
}

/// Each call is a trace, as nobody can take what a replay makes, and one trace is kept.
#[test]
fn an_argument_that_is_left_in_a_state_is_traced_in_each_call() -> Result<()> {
    let all = tokens(5, 1, 12, Dtype::Float32);
    let mut cache = KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(8)?;
    let mut step = compile_with_state(
        CompileOptions::default(),
        |slot: &mut Option<KvCache>, (mut cache, tokens): (KvCache, Tokens)| {
            let made = layer(&mut cache, tokens)?;
            *slot = Some(cache);
            Ok::<_, Error>(made)
        },
    );
    for at in 0..5 {
        let mut slot = None;
        step.call(&mut slot, (cache, part(&all, at, at + 1)))?;
        cache = slot.expect("it was left there");
        assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (at + 1, &[at + 1][..]));
    }
    assert_eq!((step.stats().traces, step.stats().evicted), (5, 0));
    Ok(())
}

/// The trace of a step does not depend on what was written before it, and a call without room takes no trace away.
#[test]
fn prompts_of_every_length_have_one_trace() -> Result<()> {
    let all = tokens(5, 1, 12, Dtype::Float32);
    let mut step = compile_with_state(CompileOptions::default(), layer);
    for length in 1..6 {
        let mut cache = KvCache::new([1, HEADS, WIDTH], Dtype::Float32)?.with_capacity(6)?;
        layer(&mut cache, part(&all, 0, length))?;
        for at in length..6 {
            step.call(&mut cache, part(&all, at, at + 1))?;
        }
        assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (6, &[6][..]));
        assert!(step.call(&mut cache, part(&all, 6, 7)).is_err());
        cache.trim(1)?;
        step.call(&mut cache, part(&all, 5, 6))?;
    }
    assert_eq!(step.stats().traces, 1);
    Ok(())
}

#[test]
fn a_cache_that_grows_in_a_function_within_the_step_is_refused() -> Result<()> {
    let all = tokens(5, 1, 12, Dtype::Float32);
    let mut cache = cache(1, Dtype::Float32, FORMATS[0], Window::Everything);
    cache.reserve(1)?;
    let grown = implicit_with_state(&mut cache, part(&all, 0, 1), |cache, next: Tokens| {
        let (made, grown) = implicit((cache.clone(), next), |(mut own, next): (KvCache, Tokens)| {
            own.reserve(300)?;
            Ok::<_, Error>((layer(&mut own, next)?, own))
        })?;
        *cache = grown;
        made.dense()
    });
    assert!(grown.is_err());
    assert_eq!((cache.len(), cache.capacity()), (0, 256));
    Ok(())
}
