//! Attention with a cache against attention over the whole sequence.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast, ops, random};
use tacit_arrays::format::AnyFormat;
use tacit_conformance::assert_close;
use tacit_core::compile::Options;
use tacit_core::{Error, Policy, Result, Value, compile_with_state, implicit_with_state};
use tacit_nn::{KvCache, Window};

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

pub(crate) const FORMATS: [[&str; 2]; 6] = [
    ["dense", "dense"],
    ["affine:8:64", "affine:8:64"],
    ["affine:8:64", "affine:4:32"],
    ["nf4:64", "affine:4:64"],
    ["int8:64", "dense"],
    ["mxfp8", "nf4:32"],
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
    let _allow = Policy::Allow.scope();
    let all = tokens(1, 1, 300, Dtype::Float32);
    for (formats, window) in
        [(FORMATS[0], WINDOWS[0]), (FORMATS[2], WINDOWS[0]), (FORMATS[3], WINDOWS[2]), (FORMATS[2], WINDOWS[3])]
    {
        let expected = whole(&all, formats, window);
        let mut cache = cache(1, Dtype::Float32, formats, window);
        let mut step = compile_with_state(layer, Options::default());
        eager(&mut cache, &part(&all, 0, 4)).expect("attends");
        cache.reserve(256 - 4).expect("room");
        for at in 4..40 {
            cache.reserve(1).expect("room");
            let (q, k, v) = part(&all, at, at + 1);
            let made = step.call(&mut cache, &(q.into(), k.into(), v.into())).expect("attends").dense().expect("dense");
            let expected = expected.try_index((.., .., at..=at, ..)).expect("a range");
            assert_close!(made, expected, 1e-5, "{formats:?} {window:?} at {at}");
        }
        assert_eq!((step.stats().traces, cache.len()), (1, 40), "{:?}", step.stats().retraces().collect::<Vec<_>>());
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
    let _allow = Policy::Allow.scope();
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
    let _allow = Policy::Allow.scope();
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
    let _allow = Policy::Allow.scope();
    let all = tokens(5, 1, 12, Dtype::Float32);
    let expected = whole(&all, FORMATS[3], Window::Everything);
    let mut cache = cache(1, Dtype::Float32, FORMATS[3], Window::Everything);
    eager(&mut cache, &part(&all, 0, 8)).expect("attends");
    let four = part(&all, 8, 12);
    let failed = implicit_with_state(&mut cache, &four, |cache, tokens| {
        layer(cache, tokens)?;
        Err::<Array, _>(Error::invalid("not now", "try again"))
    });
    assert!(failed.is_err());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        implicit_with_state(&mut cache, &four, |cache, tokens| {
            layer(cache, tokens)?;
            assert!(cache.is_empty(), "a panic in the middle");
            Ok::<_, Error>(())
        })
    }));
    assert!(panicked.is_err());
    let mut step = compile_with_state(
        |cache: &mut KvCache, tokens: Tokens| {
            layer(cache, tokens)?;
            Err::<Array, _>(Error::invalid("not now", "try again"))
        },
        Options::default(),
    );
    let (q, k, v) = four.clone();
    assert!(step.call(&mut cache, &(q.into(), k.into(), v.into())).is_err());
    assert_eq!((cache.len(), cache.offset().as_slice::<i32>()), (8, &[8][..]));
    let made = eager(&mut cache, &four).expect("attends");
    assert_close!(made, expected.try_index((.., .., 8.., ..)).unwrap(), 1e-5);
}

#[test]
fn a_step_beyond_the_room_overwrites_nothing() {
    let _allow = Policy::Allow.scope();
    let all = tokens(5, 1, 20, Dtype::Float32);
    let mut cache = KvCache::new([1, HEADS, WIDTH], Dtype::Float32).unwrap().with_capacity(16).unwrap();
    let mut step = compile_with_state(layer, Options::default());
    let call = |step: &mut tacit_core::compile::CompiledWithState<'_, KvCache, Tokens, Array>,
                cache: &mut KvCache,
                from: i32,
                to: i32|
     -> Result<Value> {
        let (q, k, v) = part(&all, from, to);
        step.call(cache, &(q.into(), k.into(), v.into()))
    };
    for from in [0, 5, 10] {
        call(&mut step, &mut cache, from, from + 5).expect("attends");
    }
    let before = cache.keys().dense().unwrap();
    assert_eq!(step.stats().traces, 1);
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
