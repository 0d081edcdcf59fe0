//! Attention with a cache against attention over the whole sequence.

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast, ops, random};
use tacit_arrays::format::AnyFormat;
use tacit_conformance::assert_close;
use tacit_core::compile::CompileOptions;
use tacit_core::{Error, Policy, Result, Value, compile, compile_with_state, implicit, implicit_with_state};
use tacit_nn::{KvCache, PaddingSide, Window};

pub(crate) const HEADS: i32 = 2;
pub(crate) const WIDTH: i32 = 64;

/// Queries, keys and values of some tokens: `[batch, 4, tokens, 64]` and `[batch, 2, tokens, 64]`.
pub(crate) type Tokens = (Array, Array, Array);

pub(crate) fn tokens(seed: u64, batch: i32, count: i32, dtype: Dtype) -> Tokens {
    let normal = |part: u64, heads: i32| {
        let key = random::key(3 * seed + part).expect("a key");
        let array = random::normal::<f32>(&[batch, heads, count, WIDTH], None, None, Some(&key)).expect("numbers");
        let array = array.as_dtype(dtype).expect("a float type");
        array.eval().expect("evaluates");
        array
    };
    (normal(0, 2 * HEADS), normal(1, HEADS), normal(2, HEADS))
}

pub(crate) fn part((q, k, v): &Tokens, from: i32, to: i32) -> Tokens {
    let of = |array: &Array| array.try_index((.., .., from..to, ..)).expect("a range");
    (of(q), of(k), of(v))
}

pub(crate) fn attend(q: &Array, k: &Array, v: &Array, mask: &Array) -> Result<Array> {
    Ok(fast::scaled_dot_product_attention(q, k, v, 0.125, Some(mask.into()), None)?)
}

/// One layer's attention: plain mlx-rs.
pub(crate) fn layer(cache: &mut KvCache, (q, k, v): Tokens) -> Result<Array> {
    let mask = cache.mask(q.dim(2))?;
    let (k, v) = cache.update(&k, &v)?;
    attend(&q, &k, &v, &mask)
}

pub(crate) fn eager(cache: &mut KvCache, tokens: &Tokens) -> Result<Array> {
    cache.reserve(tokens.0.dim(2))?;
    implicit_with_state(cache, tokens, layer)?.dense()
}

pub(crate) fn cache(batch: i32, dtype: Dtype, formats: [&str; 2], window: Window) -> KvCache {
    let cache = KvCache::new([batch, HEADS, WIDTH], dtype).expect("a cache").with_window(window).expect("a window");
    let [keys, values] = formats.map(format);
    cache.stored(keys, values).expect("formats")
}

pub(crate) fn format(text: &str) -> Option<AnyFormat> {
    (text != "dense").then(|| text.parse().expect("a format"))
}

/// What a format makes of floats.
pub(crate) fn stored(x: &Array, text: &str) -> Array {
    let _allow = Policy::Allow.scope();
    format(text).map_or_else(|| x.clone(), |format| format.quantize(x).expect("quantizes").dense().expect("decodes"))
}

pub(crate) fn sees(window: Window, asked: i32, held: i32) -> bool {
    held <= asked
        && match window {
            Window::Everything => true,
            Window::Sliding { size, sinks } => asked - held < size || held < sinks,
            Window::Chunked { size } => asked / size == held / size,
        }
}

/// Attention over the whole of one sequence.
pub(crate) fn whole((q, k, v): &Tokens, formats: [&str; 2], window: Window) -> Array {
    let count = q.dim(2);
    let mask: Vec<bool> = (0..count).flat_map(|asked| (0..count).map(move |held| sees(window, asked, held))).collect();
    let mask = Array::from_slice(&mask, &[1, 1, count, count]);
    attend(q, &stored(k, formats[0]), &stored(v, formats[1]), &mask).expect("attends")
}

pub(crate) const FORMATS: [[&str; 2]; 7] = [
    ["dense", "dense"],
    ["affine:8:64", "affine:8:64"],
    ["affine:8:64", "affine:4:32"],
    ["nf4:64", "affine:4:64"],
    ["int8:64", "dense"],
    ["mxfp8", "nf4:32"],
    ["rotated:affine:4:64", "rotated:nf4:64"],
];

pub(crate) const WINDOWS: [Window; 5] = [
    Window::Everything,
    Window::Sliding { size: 8, sinks: 0 },
    Window::Sliding { size: 6, sinks: 3 },
    Window::Chunked { size: 8 },
    Window::Sliding { size: 1, sinks: 1 },
];

/// How 41 tokens go in.
const PIECES: [&[i32]; 3] = [&[41], &[1, 2, 9, 1, 1, 7, 16, 4], &[20, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 6]];

fn tolerance(dtype: Dtype) -> f64 {
    if dtype == Dtype::Float32 { 1e-5 } else { 2e-2 }
}

#[test]
fn pieces_of_a_sequence_see_what_the_whole_sees() {
    let _allow = Policy::Allow.scope();
    for dtype in [Dtype::Float32, Dtype::Float16] {
        let all = tokens(1, 2, 41, dtype);
        for formats in FORMATS {
            for window in WINDOWS {
                let expected = whole(&all, formats, window);
                for pieces in PIECES {
                    let mut cache = cache(2, dtype, formats, window);
                    let mut from = 0;
                    for count in pieces {
                        let made = eager(&mut cache, &part(&all, from, from + count)).expect("attends");
                        let expected = expected.try_index((.., .., from..from + count, ..)).expect("a range");
                        let context = format!("{formats:?} {window:?} {pieces:?} from {from}");
                        assert_close!(made, expected, tolerance(dtype), "{context}");
                        from += count;
                    }
                    assert_eq!(cache.len(), 41);
                    assert_eq!(cache.offset().as_slice::<i32>(), [41, 41]);
                }
            }
        }
    }
}

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
fn a_sequence_goes_on_in_another_format() {
    let _allow = Policy::Allow.scope();
    let all = tokens(2, 1, 30, Dtype::Float32);
    for window in WINDOWS {
        let mut cache = cache(1, Dtype::Float32, ["dense", "dense"], window);
        eager(&mut cache, &part(&all, 0, 20)).expect("attends");
        let mut cache = cache.quantized(format("affine:8:64").unwrap(), format("nf4:64").unwrap()).expect("fits");
        assert_eq!((cache.len(), cache.keys().is_implicit(), cache.values().is_implicit()), (20, true, true));
        let made = eager(&mut cache, &part(&all, 20, 25)).expect("attends");
        let expected = whole(&part(&all, 0, 25), ["affine:8:64", "nf4:64"], window);
        assert_close!(made, expected.try_index((.., .., 20.., ..)).unwrap(), 1e-5, "{window:?}");
        let mut cache = cache.dense().expect("decodes");
        assert!(!cache.keys().is_implicit());
        let made = eager(&mut cache, &part(&all, 25, 26)).expect("attends");
        let (q, k, v) = part(&all, 0, 26);
        let kept = |x: &Array, text: &str| {
            let (old, new) = (x.try_index((.., .., ..25, ..)).unwrap(), x.try_index((.., .., 25.., ..)).unwrap());
            ops::concatenate(&[&stored(&old, text), &new], 2).unwrap()
        };
        let expected = whole(&(q, kept(&k, "affine:8:64"), kept(&v, "nf4:64")), ["dense", "dense"], window);
        assert_close!(made, expected.try_index((.., .., 25.., ..)).unwrap(), 1e-5, "{window:?}");
    }
}

#[test]
fn tokens_taken_away_were_never_there() {
    let _deny = Policy::Deny.scope();
    let (all, other) = (tokens(3, 1, 40, Dtype::Float32), tokens(4, 1, 40, Dtype::Float32));
    for formats in [FORMATS[0], FORMATS[3]] {
        for window in WINDOWS {
            let mut cache = cache(1, Dtype::Float32, formats, window);
            cache.reserve(5).expect("room");
            let expected = whole(&all, formats, window);
            let mut from = 0;
            while from < 36 {
                // Some that are not accepted: the ring keeps as many slots more.
                eager(&mut cache, &part(&other, from, from + 4)).expect("attends");
                cache.trim(4).expect("trims");
                let made = eager(&mut cache, &part(&all, from, from + 3)).expect("attends");
                let expected = expected.try_index((.., .., from..from + 3, ..)).unwrap();
                assert_close!(made, expected, 1e-5, "{formats:?} {window:?} from {from}");
                from += 3;
            }
        }
    }
}

#[test]
fn a_clone_is_what_the_original_was() {
    let _deny = Policy::Deny.scope();
    let (all, other) = (tokens(3, 1, 24, Dtype::Float32), tokens(4, 1, 24, Dtype::Float32));
    for formats in [FORMATS[0], FORMATS[3]] {
        let mut prefix = cache(1, Dtype::Float32, formats, Window::Everything);
        eager(&mut prefix, &part(&all, 0, 20)).expect("attends");
        let mut branch = prefix.clone();
        eager(&mut branch, &part(&other, 20, 24)).expect("attends").eval().expect("evaluates");
        let made = eager(&mut prefix, &part(&all, 20, 24)).expect("attends");
        let expected = whole(&all, formats, Window::Everything);
        assert_close!(made, expected.try_index((.., .., 20.., ..)).unwrap(), 1e-5, "{formats:?}");
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

#[test]
fn sizes_that_no_number_holds_are_refused() {
    let new = || KvCache::new([1, HEADS, WIDTH], Dtype::Float32).expect("a cache");
    let wide = new().with_window(Window::Sliding { size: i32::MAX, sinks: 1 }).expect("a window");
    assert!(wide.with_capacity(4).is_err());
    let all = tokens(1, 1, 8, Dtype::Float32);
    let mut seen = new();
    eager(&mut seen, &part(&all, 0, 3)).expect("attends");
    assert!(seen.prepare(i32::MAX, &[1], PaddingSide::Left).is_err());
    assert!(seen.trim(i32::MIN).is_err());
    assert_eq!(seen.len(), 3);
    let sliding = new().with_window(Window::Sliding { size: 8, sinks: 0 }).expect("a window");
    assert!(sliding.filled(all.1, all.2, i32::MAX).is_err());
}

#[test]
fn tokens_in_order_fill_another_cache() {
    let _allow = Policy::Allow.scope();
    let all = tokens(9, 1, 30, Dtype::Float32);
    for formats in [FORMATS[0], FORMATS[3]] {
        for window in WINDOWS {
            for len in [5, 8, 9, 21] {
                let mut old = cache(1, Dtype::Float32, formats, window);
                (0..len).for_each(|at| drop(eager(&mut old, &part(&all, at, at + 1)).expect("attends")));
                let (keys, values) = old.tokens().expect("are there");
                let count = keys.aval().expect("an aval").shape[2];
                let expected = stored(&all.1, formats[0]).try_index((.., .., len - 1..len, ..)).expect("the last");
                let last = keys.dense().expect("decodes").try_index((.., .., count - 1.., ..)).expect("the last");
                assert_close!(last, expected, 0.0, "{window:?} {len}");
                let mut new = cache(1, Dtype::Float32, formats, window).filled(keys, values, len).expect("fills");
                assert_eq!((new.len(), new.offset().as_slice::<i32>()), (len, &[len][..]));
                let expected = whole(&part(&all, 0, len + 4), formats, window);
                for (at, count) in [(len, 1), (len + 1, 3)] {
                    let made = eager(&mut new, &part(&all, at, at + count)).expect("attends");
                    let expected = expected.try_index((.., .., at..at + count, ..)).expect("a range");
                    assert_close!(made, expected, 1e-5, "{formats:?} {window:?} {len}");
                }
            }
        }
    }
}

#[test]
fn layers_of_one_window_share_a_mask() {
    let windows = [WINDOWS[0], WINDOWS[1], WINDOWS[0], WINDOWS[1]];
    let mut caches = windows.map(|window| cache(1, Dtype::Float32, FORMATS[0], window));
    caches.iter_mut().try_for_each(|cache| cache.reserve(6)).expect("room");
    let masks = KvCache::masks(&caches, 6).expect("masks");
    let shared = |a: usize, b: usize| tacit_core::array_id(&masks[a]) == tacit_core::array_id(&masks[b]);
    assert_eq!([shared(0, 2), shared(1, 3), shared(0, 1)], [true, true, false]);
    assert_eq!(masks[0].shape(), [1, 1, 6, caches[0].capacity()]);
}

#[test]
fn messages() {
    let new = || KvCache::new([2, HEADS, WIDTH], Dtype::Float32).expect("a cache");
    let said = |outcome: Result<KvCache>| outcome.map(drop).map_err(|error| format!("{error}\n")).expect_err("fails");
    let sliding = |size, sinks| new().with_window(Window::Sliding { size, sinks });
    let mut full = new().with_capacity(4).expect("room");
    let mut padded = new();
    padded.prepare(4, &[1, 4], PaddingSide::Left).expect("prepares");
    let (_, k, v) = tokens(1, 2, 3, Dtype::Float32);
    let mut packed = new().quantized(format("nf4:64").unwrap(), format("nf4:64").unwrap()).expect("fits");
    packed.reserve(4).expect("room");
    let mut wrapped = cache(2, Dtype::Float32, FORMATS[0], WINDOWS[1]);
    let all = tokens(1, 2, 20, Dtype::Float32);
    (0..20).for_each(|at| drop(eager(&mut wrapped, &part(&all, at, at + 1)).expect("attends")));
    let text = [
        said(KvCache::new([1, 2, 64], Dtype::Int32)),
        said(sliding(0, 1)),
        said(sliding(8, 0).and_then(|cache| cache.with_capacity(4))),
        said(full.clone().with_window(Window::Everything)),
        said(full.reserve(5).map(|()| full.clone())),
        said(full.clone().update(&k, &k.try_index((.., ..1)).unwrap()).map(|_| new())),
        said(new().update(&k, &v).map(|_| new())),
        said(packed.update(&k, &v).map(|_| new())),
        said(new().quantized(format("nf4:64:double").unwrap(), format("nf4:64").unwrap())),
        said(new().quantized(format("affine:4:128").unwrap(), format("nf4:64").unwrap())),
        said(new().prepare(4, &[5, 1], PaddingSide::Left).map(|()| new())),
        said(padded.prepare(4, &[1, 2], PaddingSide::Left).map(|()| new())),
        said(new().prepare(i32::MAX, &[1, 2], PaddingSide::Left).map(|()| new())),
        said(sliding(8, 2).and_then(|mut cache| cache.prepare(4, &[1, 2], PaddingSide::Left).map(|()| new()))),
        said(sliding(8, 0).and_then(|mut cache| cache.prepare(4, &[1, 2], PaddingSide::Right).map(|()| new()))),
        said(KvCache::merge(&[])),
        said(KvCache::merge(&[new(), packed.clone()])),
        said(KvCache::merge(&[padded.clone()])),
        said(new().filter(&[2])),
        said(new().trim(1).map(|()| new())),
        said(wrapped.trim(2).map(|()| new())),
        said(new().tokens().map(|_| new())),
        said(new().filled(k.clone(), v.clone(), 9)),
        said(new().filled(k.try_index((..1,)).unwrap(), v.clone(), 3)),
        said(new().with_left_padding(&[1, 0])),
    ];
    expect![[r#"
        a cache does not hold i32[1,2,0,64]
        help: use f32, f16 or bf16

        there is no window of 0 tokens behind 1
        help: let a token see itself at least

        4 slots are fewer than the 8 that the cache needs
        help: give it at least as many slots as its window has, and as it has already

        the cache has slots already
        help: say so of a new cache, before its capacity

        5 tokens behind 0 need 5 slots of a cache with 4
        help: give it a larger capacity, trim it, or write a prompt in smaller pieces

        f32[2,1,3,64] is written into a cache of f32[2,2,4,64]
        help: give keys and values of the shape [batch, heads, tokens, width] that the cache was made for

        3 tokens are written behind 0 into a cache with room for 0
        help: reserve room for them before the step, by `KvCache::reserve`

        the tokens of Nf4(f32[2,2,256,64]) are codes outside a step
        help: update the cache inside `Model::run_with`, `implicit_with_state` or `compile_with_state`

        tokens of f32[1,2,1,64] are not kept in nf4:64:double: the scales are packed themselves
        help: choose a format whose blocks divide the width 64 and whose scales are numbers of their own, such as affine:8:64

        tokens of f32[1,2,1,64] are not kept in affine:4:128: the last axis of f32[1,2,2,64] is not whole groups of 128, as affine has them
        help: choose a format whose blocks divide the width 64 and whose scales are numbers of their own, such as affine:8:64

        lengths [5, 1] are given for a prompt of 4 tokens in a batch of 2
        help: give one length for each sequence, no longer than the prompt

        the prompt before goes on to token 4, and there are 0
        help: prepare a prompt where the one before has ended

        2147483647 tokens behind 0 are more than a cache counts
        help: give a prompt that ends after 1073741824 tokens at most

        a window with sinks takes sequences of one length only
        help: keep one cache for each sequence, or group those of one length

        padding behind tokens would push them out of a window
        help: pad the sequences on the left, at their beginning

        there are no caches to merge
        help: give one at least

        f32[2,2,0,64] and Nf4(f32[2,2,256,64]) are not merged
        help: merge caches of one shape, dtype, format and window

        the padded prompt goes on to token 4, and there are 0
        help: write the whole prompt first

        rows [2] of a batch of 2 are asked for
        help: name one sequence at least, counted from zero

        1 of 0 tokens cannot be taken away
        help: trim at most what came after the prompt

        without the last 2 tokens, token 18 would see token 11, which was overwritten
        help: trim fewer tokens, or reserve more slots than the window before: `KvCache::with_capacity`

        there is nothing to join
        help: write a token first

        f32[2,2,3,64] and f32[2,2,3,64] are not the tokens after 9 that Everything sees
        help: give all tokens, or the sinks and at least as many of the last as the window has

        f32[1,2,3,64] fills a cache of f32[2,2,0,64]
        help: give tokens of the shape and dtype that the cache was made for

        padding [1, 0] before 0 tokens in a batch of 2
        help: give one number for each sequence of a cache without sinks, no more than it has tokens
    "#]].assert_eq(&text.join("\n"));
}
