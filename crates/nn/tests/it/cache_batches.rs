//! Several sequences in one cache, each as it would be alone.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_conformance::assert_close;
use tacit_core::{Policy, implicit_with_state};
use tacit_nn::{KvCache, PaddingSide, Window};

use crate::cache::{FORMATS, Tokens, WINDOWS, cache, eager, layer, part, tokens, whole};

const F32: Dtype = Dtype::Float32;
const LENGTHS: [i32; 3] = [9, 4, 12];

fn row((q, k, v): &Tokens, row: i32) -> Tokens {
    let of = |array: &Array| array.try_index(row..row + 1).expect("a row");
    (of(q), of(k), of(v))
}

fn each(tokens: &[Tokens], of: impl Fn(&Tokens) -> &Array, axis: i32) -> Array {
    ops::concatenate(&tokens.iter().map(of).collect::<Vec<_>>(), axis).expect("joins")
}

fn joined(tokens: &[Tokens], axis: i32) -> Tokens {
    (each(tokens, |each| &each.0, axis), each(tokens, |each| &each.1, axis), each(tokens, |each| &each.2, axis))
}

/// A prompt of the first tokens of each sequence, padded with others.
fn padded(all: &Tokens, tokens: i32, side: PaddingSide) -> Tokens {
    let rows = LENGTHS.iter().enumerate().map(|(at, &length)| {
        let own = row(all, at as i32);
        let (prompt, padding) = (part(&own, 0, length), part(&own, 20, 20 + tokens - length));
        if side == PaddingSide::Left { joined(&[padding, prompt], 2) } else { joined(&[prompt, padding], 2) }
    });
    joined(&rows.collect::<Vec<_>>(), 0)
}

/// The next tokens of each sequence.
fn following(all: &Tokens, lengths: &[i32], from: i32, count: i32) -> Tokens {
    let rows = lengths.iter().enumerate();
    let rows = rows.map(|(at, length)| part(&row(all, at as i32), length + from, length + from + count));
    joined(&rows.collect::<Vec<_>>(), 0)
}

/// Compares what three tokens of each sequence after its prompt see.
fn go_on(cache: &mut KvCache, all: &Tokens, lengths: &[i32], formats: [&str; 2], window: Window, context: &str) {
    for step in 0..3 {
        let made = eager(cache, &following(all, lengths, step, 1)).expect("attends");
        for (at, &length) in lengths.iter().enumerate() {
            let alone = whole(&part(&row(all, at as i32), 0, length + step + 1), formats, window);
            let expected = alone.try_index((.., .., length + step.., ..)).expect("the last");
            assert_close!(made.try_index(at as i32..at as i32 + 1).expect("a row"), expected, 1e-5, "{context} {at}");
        }
    }
}

#[test]
fn padding_on_either_side_is_seen_by_nothing() {
    let _deny = Policy::Deny.scope();
    let all = tokens(6, 3, 40, F32);
    for formats in [FORMATS[0], FORMATS[2]] {
        for (side, windows) in [
            (PaddingSide::Left, &WINDOWS[..2]),
            (PaddingSide::Right, &WINDOWS[..1]),
            (PaddingSide::Left, &WINDOWS[3..4]),
        ] {
            for &window in windows {
                for pieces in [&[12][..], &[5, 7], &[3, 3, 3, 3]] {
                    let context = format!("{side:?} {window:?} {pieces:?}");
                    let mut cache = cache(3, F32, formats, window);
                    cache.prepare(12, &LENGTHS, side).expect("prepares");
                    let prompt = padded(&all, 12, side);
                    let mut from = 0;
                    for &count in pieces {
                        eager(&mut cache, &part(&prompt, from, from + count)).expect("attends");
                        from += count;
                    }
                    assert_eq!(cache.offset().as_slice::<i32>(), LENGTHS, "{context}");
                    go_on(&mut cache, &all, &LENGTHS, formats, window, &context);
                }
            }
        }
    }
}

#[test]
fn a_prompt_that_is_refused_leaves_the_cache_as_it_was() {
    let _deny = Policy::Deny.scope();
    let all = tokens(6, 3, 40, F32);
    let sides = [PaddingSide::Left, PaddingSide::Right];
    let refused: [(i32, &[i32]); 4] = [(4, &[4, 1]), (4, &[5, 1, 2]), (4, &[-1, 4, 4]), (i32::MAX, &[1, 2, 3])];
    for formats in [FORMATS[0], FORMATS[2]] {
        for &window in &WINDOWS[..2] {
            let context = format!("{formats:?} {window:?}");
            let mut between = cache(3, F32, formats, window);
            eager(&mut between, &part(&all, 0, 4)).expect("attends");
            for ((tokens, lengths), side) in refused.iter().flat_map(|of| sides.map(|side| (of, side))) {
                between.prepare(*tokens, lengths, side).expect_err("is refused");
            }
            go_on(&mut between, &all, &[4; 3], formats, window, &context);
            // In the middle of a prompt.
            let mut within = cache(3, F32, formats, window);
            within.prepare(12, &LENGTHS, PaddingSide::Left).expect("prepares");
            let prompt = padded(&all, 12, PaddingSide::Left);
            eager(&mut within, &part(&prompt, 0, 5)).expect("attends");
            for side in sides {
                within.prepare(7, &[7, 1, 2], side).expect_err("is refused");
            }
            eager(&mut within, &part(&prompt, 5, 12)).expect("attends");
            assert_eq!(within.offset().as_slice::<i32>(), LENGTHS, "{context}");
            go_on(&mut within, &all, &LENGTHS, formats, window, &context);
        }
    }
}

#[test]
fn a_second_prompt_is_padded_too() {
    let _deny = Policy::Deny.scope();
    let all = tokens(6, 2, 40, F32);
    for (formats, side) in
        [FORMATS[0], FORMATS[3]].into_iter().flat_map(|of| [(of, PaddingSide::Left), (of, PaddingSide::Right)])
    {
        let mut cache = cache(2, F32, formats, Window::Everything);
        eager(&mut cache, &part(&all, 0, 6)).expect("attends");
        cache.prepare(5, &[2, 5], side).expect("prepares");
        let prompt = [2, 5].iter().enumerate().map(|(at, &length)| {
            let (own, padding) = (row(&all, at as i32), part(&row(&all, 1), 30, 35 - length));
            let prompt = part(&own, 6, 6 + length);
            let parts = if side == PaddingSide::Left { [padding, prompt] } else { [prompt, padding] };
            joined(&parts, 2)
        });
        let prompt = joined(&prompt.collect::<Vec<_>>(), 0);
        eager(&mut cache, &prompt).expect("attends");
        assert_eq!(cache.offset().as_slice::<i32>(), [8, 11]);
        go_on(&mut cache, &all, &[8, 11], formats, Window::Everything, &format!("{formats:?} {side:?}"));
        cache.trim(3).expect("trims");
        assert!(cache.trim(1).is_err());
        go_on(&mut cache, &all, &[8, 11], formats, Window::Everything, &format!("{formats:?} {side:?} again"));
    }
}

#[test]
fn merged_sequences_go_on_as_each_would_alone() {
    let _deny = Policy::Deny.scope();
    let all = tokens(7, 3, 40, F32);
    for formats in [FORMATS[0], FORMATS[3]] {
        for window in [WINDOWS[0], WINDOWS[1], WINDOWS[2], WINDOWS[3]] {
            let each = LENGTHS.iter().enumerate().map(|(at, &length)| {
                let mut cache = cache(1, F32, formats, window);
                let own = row(&all, at as i32);
                (0..length).for_each(|token| drop(eager(&mut cache, &part(&own, token, token + 1)).expect("attends")));
                cache
            });
            let each: Vec<KvCache> = each.collect();
            let mut batch = KvCache::merge(&each).expect("merges");
            assert_eq!((batch.batch(), batch.offset().as_slice::<i32>()), (3, &LENGTHS[..]));
            let context = format!("{formats:?} {window:?}");
            go_on(&mut batch, &all, &LENGTHS, formats, window, &context);

            let parts = batch.split().expect("splits");
            let again = KvCache::merge(&[parts[2].clone(), parts[0].clone()]).expect("merges");
            let mut chosen = batch.filter(&[2, 0]).expect("filters");
            assert_eq!(chosen.offset().as_slice::<i32>(), again.offset().as_slice::<i32>());
            let reordered = joined(&[row(&all, 2), row(&all, 0)], 0);
            for cache in [&mut chosen, &mut again.clone()] {
                go_on(cache, &reordered, &[15, 12], formats, window, &context);
            }
        }
    }
}

#[test]
fn a_fixed_capacity_stays_where_caches_are_merged() {
    let _deny = Policy::Deny.scope();
    let all = tokens(7, 2, 20, F32);
    for formats in [FORMATS[0], FORMATS[3]] {
        for window in [WINDOWS[0], WINDOWS[1], WINDOWS[2]] {
            let of = |at: i32, length: i32| {
                let mut own = cache(1, F32, formats, window).with_capacity(24).expect("room");
                eager(&mut own, &part(&row(&all, at), 0, length)).expect("attends");
                own
            };
            let context = format!("{formats:?} {window:?}");
            let mut batch = KvCache::merge(&[of(0, 9), of(1, 4)]).expect("merges");
            assert_eq!(batch.capacity(), 24, "{context}");
            // No step has to reserve room.
            drop(implicit_with_state(&mut batch, following(&all, &[9, 4], 0, 1), layer).expect("has room"));
            go_on(&mut batch, &all, &[10, 5], formats, window, &context);
        }
    }
    // Of different capacities none is that of the batch.
    let of = |capacity| cache(1, F32, FORMATS[0], WINDOWS[0]).with_capacity(capacity).expect("room");
    let mut batch = KvCache::merge(&[of(8), of(24)]).expect("merges");
    assert_eq!(batch.capacity(), 0);
    batch.reserve(100).expect("it has no fixed capacity");
}

#[test]
fn sinks_that_are_not_full_are_not_merged() {
    let all = tokens(7, 2, 40, F32);
    let of = |row_number: i32, length: i32| {
        let mut cache = cache(1, F32, FORMATS[0], WINDOWS[2]);
        let own = row(&all, row_number);
        (0..length).for_each(|token| drop(eager(&mut cache, &part(&own, token, token + 1)).expect("attends")));
        cache
    };
    let error = KvCache::merge(&[of(0, 2), of(1, 5)]).expect_err("they share the sinks").to_string();
    expect_test::expect![[r#"
        a sequence of 2 tokens has not filled the 3 sinks that those of a batch share
        help: keep one cache for each sequence, or group those of one length"#]]
    .assert_eq(&error);
    assert!(KvCache::merge(&[of(0, 2), of(1, 2)]).is_ok());
}

#[test]
fn empty_caches_are_merged() {
    let _deny = Policy::Deny.scope();
    let all = tokens(8, 2, 20, F32);
    let empty = || cache(1, F32, FORMATS[2], Window::Everything);
    let mut batch = KvCache::merge(&[empty(), empty()]).expect("merges");
    assert!(batch.is_empty());
    let made = eager(&mut batch, &part(&all, 0, 3)).expect("attends");
    assert_close!(made, whole(&part(&all, 0, 3), FORMATS[2], Window::Everything), 1e-5);
}

/// Sequences of different lengths are padded behind the sinks, and nothing is taken away into that.
#[test]
fn what_is_padded_behind_sinks_cannot_be_trimmed() {
    let all = tokens(7, 2, 30, F32);
    let window = Window::Sliding { size: 5, sinks: 1 };
    let of = |at: i32, length: i32| {
        let mut own = cache(1, F32, FORMATS[0], window);
        eager(&mut own, &part(&row(&all, at), 0, length)).expect("attends");
        own
    };
    let merge = || KvCache::merge(&[of(0, 6), of(1, 3)]).expect("merges");
    let error = merge().trim(3).expect_err("a padded token is among them");
    assert!(error.to_string().starts_with("3 of 6 tokens cannot be taken away: the first 4 hold padding"), "{error}");
    let mut merged = merge();
    merged.trim(2).expect("there are two");
    let made = eager(&mut merged, &following(&all, &[4, 1], 0, 1)).expect("attends");
    for (at, length) in [(0, 4), (1, 1)] {
        let alone = whole(&part(&row(&all, at), 0, length + 1), FORMATS[0], window);
        let expected = alone.try_index((.., .., length.., ..)).expect("the last");
        assert_close!(made.try_index(at..at + 1).expect("a row"), expected, 1e-5, "{at}");
    }
}
