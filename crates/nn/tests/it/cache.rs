//! Attention with a cache against attention over the whole sequence.

mod steps;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, fast, ops, random};
use tacit_arrays::format::AnyFormat;
use tacit_conformance::assert_close;
use tacit_core::{Policy, Result, implicit_with_state};
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
