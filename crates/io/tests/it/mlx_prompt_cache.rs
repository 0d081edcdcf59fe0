//! Prompt caches that mlx-lm wrote, in both of its layouts.

mod refused;

use std::fmt::Write as _;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Nf4, Quantizer};
use tacit_core::{Policy, Result, Value};
use tacit_io::mlx_prompt_cache::{self, PromptCache, StoredBuffers, StoredCache};
use tacit_io::{Metadata, Tensors, write};
use tacit_nn::{Cache as Layer, KvCache};

use crate::golden::{assert_same_tensors, golden};
use crate::scratch::Scratch;

/// What both layouts hold.
const FILES: [&str; 6] = ["kv", "quantized", "rotating", "chunked", "list", "batch"];
/// What the newer one holds alone.
const NEWER: [&str; 2] = ["chunked_trimmed", "empty"];

fn read(layout: &str, name: &str) -> PromptCache {
    mlx_prompt_cache::read(golden(&format!("mlx_prompt_cache/{layout}/{name}.safetensors"))).expect("reads")
}

/// The slots that attention is given, with the buffers that hold them.
fn given(cache: &StoredCache) -> Option<(&StoredBuffers, i32)> {
    let slots = |held: &StoredBuffers, written: i32| written.min(held.keys.aval().expect("an aval").shape[2]);
    match cache {
        StoredCache::Kv { held, offset } | StoredCache::Quantized { held, offset, .. } => {
            held.as_ref().map(|held| (held, *offset))
        }
        StoredCache::Rotating { held, offset, .. } => held.as_ref().map(|held| (held, slots(held, *offset))),
        StoredCache::Chunked { held, offset, start, .. } => held.as_ref().map(|held| (held, offset - start)),
        StoredCache::Batch { held, index, .. } => held.as_ref().map(|held| (held, *index)),
        StoredCache::BatchRotating { held, total, .. } => held.as_ref().map(|held| (held, slots(held, *total))),
        StoredCache::Arrays { .. } | StoredCache::List(_) => None,
    }
}

/// The caches with their places; those of a list one by one.
fn placed(layers: &[StoredCache]) -> Vec<(String, &StoredCache)> {
    let layers = layers.iter().enumerate().flat_map(|(layer, cache)| match cache {
        StoredCache::List(caches) => {
            caches.iter().enumerate().map(|(place, cache)| (format!("{layer}.{place}"), cache)).collect()
        }
        cache => vec![(layer.to_string(), cache)],
    });
    layers.collect()
}

#[test]
fn attention_is_given_what_mlx_lm_gives_it() {
    for (layout, newer) in [("0.31", &NEWER[..0]), ("0.32", &NEWER[..1])] {
        for name in FILES.iter().chain(newer) {
            let expected = Tensors::open(golden(&format!("mlx_prompt_cache/{layout}/{name}_expected.safetensors")));
            let expected = expected.expect("opens");
            let cache = read(layout, name);
            let mut compared = 0;
            for (place, (held, slots)) in placed(&cache.layers).into_iter().filter_map(|(p, c)| Some((p, given(c)?))) {
                for (part, value) in [("keys", &held.keys), ("values", &held.values)] {
                    let expected = expected.get(&format!("{place}.{part}")).expect("is there");
                    let dense = value.dense().expect("dense");
                    let found = dense.try_index((.., .., ..slots)).expect("cuts");
                    assert_eq!(found.dtype(), expected.dtype(), "{layout} {name} {place} {part}");
                    assert!(found.eq_exact(&expected).expect("compares"), "{layout} {name} {place} {part}");
                    compared += 1;
                }
            }
            assert_eq!(compared, expected.names().count(), "{layout} {name}");
        }
    }
}

/// A line for each cache.
fn summary(cache: &PromptCache) -> String {
    let mut text = String::new();
    for (place, cache) in placed(&cache.layers) {
        writeln!(text, "{place} {}", summary_of(cache)).expect("writes");
    }
    for (key, value) in &cache.metadata {
        writeln!(text, "{key} = {value}").expect("writes");
    }
    text
}

fn summary_of(cache: &StoredCache) -> String {
    let held = |held: &Option<StoredBuffers>| {
        held.as_ref().map_or_else(|| "nothing".to_owned(), |held| format!("{} {}", held.keys, held.values))
    };
    let numbers = |array: &Array| format!("{:?}", array.as_slice::<i32>());
    let option = |array: &Option<Array>| {
        array.as_ref().map_or_else(|| "none".to_owned(), |array| Value::from(array).to_string())
    };
    match cache {
        StoredCache::Kv { held: h, offset } => format!("{} offset {offset}", held(h)),
        StoredCache::Quantized { held: h, offset, group_size, bits } => {
            format!("{} offset {offset} group_size {group_size} bits {bits}", held(h))
        }
        StoredCache::Rotating { held: h, offset, keep, max_size, index } => {
            format!("{} offset {offset} keep {keep} max_size {max_size} index {index}", held(h))
        }
        StoredCache::Chunked { held: h, offset, chunk_size, start } => {
            format!("{} offset {offset} chunk_size {chunk_size} start {start}", held(h))
        }
        StoredCache::Arrays { slots, left_padding, lengths } => format!(
            "{} left_padding {} lengths {}",
            slots.iter().map(option).collect::<Vec<_>>().join(" "),
            option(left_padding),
            option(lengths)
        ),
        StoredCache::List(caches) => caches.iter().map(summary_of).collect::<Vec<_>>().join("; "),
        StoredCache::Batch { held: h, offset, left_padding, index } => {
            format!("{} offset {} left_padding {} index {index}", held(h), numbers(offset), numbers(left_padding))
        }
        StoredCache::BatchRotating { held: h, offset, left_padding, max_size, total, index, rotated } => format!(
            "{} offset {} left_padding {} max_size {max_size} total {total} index {index} rotated {rotated}",
            held(h),
            numbers(offset),
            numbers(left_padding)
        ),
    }
}

#[test]
fn the_numbers_of_each_class_are_read() {
    let summaries = |layout| FILES.map(|name| format!("{name}\n{}", summary(&read(layout, name)))).concat();
    expect![[r#"
        kv
        0 f32[1,2,8,4] f32[1,2,8,4] offset 5
        1 f16[1,2,7,4] f16[1,2,7,4] offset 5
        a.b = c
        model = tiny
        quantized
        0 Affine(f32[1,2,7,32]) Affine(f32[1,2,7,32]) offset 5 group_size 32 bits 2
        1 Affine(f32[1,2,7,32]) Affine(f32[1,2,7,32]) offset 5 group_size 32 bits 4
        2 Affine(f32[1,2,7,32]) Affine(f32[1,2,7,32]) offset 5 group_size 32 bits 8
        rotating
        0 f32[1,2,7,4] f32[1,2,7,4] offset 4 keep 0 max_size 8 index 4
        1 f32[1,2,8,4] f32[1,2,8,4] offset 11 keep 0 max_size 8 index 3
        2 f32[1,2,8,4] f32[1,2,8,4] offset 12 keep 2 max_size 8 index 6
        3 f32[1,2,7,4] f32[1,2,7,4] offset 7 keep 0 max_size 4 index 7
        chunked
        0 f32[1,2,7,4] f32[1,2,7,4] offset 5 chunk_size 6 start 0
        list
        0 f32[1,3,4] bf16[1,2,2] left_padding none lengths none
        1.0 f32[1,2,4,4] f32[1,2,4,4] offset 2
        1.1 f32[1,2,3,4] f32[1,2,3,4] offset 3 keep 0 max_size 4 index 3
        batch
        0 f32[3,2,8,4] f32[3,2,8,4] offset [4, 5, 3] left_padding [1, 0, 2] index 5
        1 f32[3,2,6,4] f32[3,2,6,4] offset [7, 8, 6] left_padding [-1, -2, 0] max_size 6 total 8 index 2 rotated true
    "#]]
    .assert_eq(&summaries("0.32"));
    expect![[r#"
        kv
        0 f32[1,2,5,4] f32[1,2,5,4] offset 5
        1 f16[1,2,5,4] f16[1,2,5,4] offset 5
        a.b = c
        model = tiny
        quantized
        0 Affine(f32[1,2,5,32]) Affine(f32[1,2,5,32]) offset 5 group_size 32 bits 2
        1 Affine(f32[1,2,5,32]) Affine(f32[1,2,5,32]) offset 5 group_size 32 bits 4
        2 Affine(f32[1,2,5,32]) Affine(f32[1,2,5,32]) offset 5 group_size 32 bits 8
        rotating
        0 f32[1,2,4,4] f32[1,2,4,4] offset 4 keep 0 max_size 8 index 4
        1 f32[1,2,8,4] f32[1,2,8,4] offset 11 keep 0 max_size 8 index 3
        2 f32[1,2,8,4] f32[1,2,8,4] offset 12 keep 2 max_size 8 index 6
        3 f32[1,2,7,4] f32[1,2,7,4] offset 7 keep 0 max_size 4 index 7
        chunked
        0 f32[1,2,5,4] f32[1,2,5,4] offset 5 chunk_size 6 start 0
        list
        0 f32[1,3,4] bf16[1,2,2] left_padding none lengths none
        1.0 f32[1,2,2,4] f32[1,2,2,4] offset 2
        1.1 f32[1,2,3,4] f32[1,2,3,4] offset 3 keep 0 max_size 4 index 3
        batch
        0 f32[3,2,5,4] f32[3,2,5,4] offset [4, 5, 3] left_padding [1, 0, 2] index 5
        1 f32[3,2,6,4] f32[3,2,6,4] offset [7, 8, 6] left_padding [-1, -2, 0] max_size 6 total 8 index 2 rotated true
    "#]]
    .assert_eq(&summaries("0.31"));
    expect![[r#"
        chunked_trimmed
        0 f32[1,2,10,4] f32[1,2,10,4] offset 10 chunk_size 6 start 3
        empty
        0 none f32[2,3] left_padding i32[2] lengths none
        1 nothing offset 0
        2 nothing offset 0 group_size 32 bits 4
        3 nothing offset 0 keep 2 max_size 8 index 0
        4 nothing offset 0 chunk_size 4 start 0
        5 nothing offset [0, -1] left_padding [0, 1] index 0
    "#]]
    .assert_eq(&NEWER.map(|name| format!("{name}\n{}", summary(&read("0.32", name)))).concat());
}

#[test]
fn what_is_read_is_written_as_the_same_tensors() {
    let folder = Scratch::new();
    let ours = folder.join("cache.safetensors");
    for name in FILES.into_iter().chain(NEWER) {
        mlx_prompt_cache::write(&ours, &read("0.32", name)).expect("writes");
        assert_same_tensors(&golden(&format!("mlx_prompt_cache/0.32/{name}.safetensors")), &ours);
    }
}

#[test]
fn an_older_file_is_written_in_the_newer_layout() {
    let folder = Scratch::new();
    let ours = folder.join("cache.safetensors");
    for name in FILES {
        let cache = read("0.31", name);
        mlx_prompt_cache::write(&ours, &cache).expect("writes");
        let again = mlx_prompt_cache::read(&ours).expect("reads");
        assert_eq!(summary(&again), summary(&cache));
    }
}

#[test]
fn numbers_of_earlier_versions_are_read() {
    let folder = Scratch::new();
    let path = folder.join("cache.safetensors");
    // The step of growth is among them, and a class has another name.
    let keys = ops::zeros::<f32>(&[1, 1, 3, 4]).expect("zeros");
    let codes = ops::zeros_dtype(&[1, 1, 3, 4], Dtype::Uint32).expect("zeros");
    let scales = ops::zeros::<f32>(&[1, 1, 3, 1]).expect("zeros");
    let triple =
        |at: &str| [(0, &codes), (1, &scales), (2, &scales)].map(|(i, array)| (format!("{at}.{i}"), array.clone()));
    let mut tensors: Vec<_> = ["0.0", "0.1", "2.0", "2.1"].map(|name| (name.to_owned(), keys.clone())).into();
    tensors.extend([triple("1.0"), triple("1.1")].concat());
    let said = [
        ("0.0.0", "2"),
        ("0.0.1", "8"),
        ("0.0.2", "256"),
        ("0.0.3", "3"),
        ("0.0.4", "3"),
        ("0.1.0", "256"),
        ("0.1.1", "3"),
        ("0.1.2", "32"),
        ("0.1.3", "4"),
        ("0.2", ""),
        ("2.0", "RotatingKVCache"),
        ("2.1", "QuantizedKVCache"),
        ("2.2", "MambaCache"),
    ];
    let said: Metadata = said.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    write(&path, tensors, &said).expect("writes");
    expect![[r#"
        0 f32[1,1,3,4] f32[1,1,3,4] offset 3 keep 2 max_size 8 index 3
        1 Affine(f32[1,1,3,32]) Affine(f32[1,1,3,32]) offset 3 group_size 32 bits 4
        2 f32[1,1,3,4] f32[1,1,3,4] left_padding none lengths none
    "#]]
    .assert_eq(&summary(&mlx_prompt_cache::read(&path).expect("reads")));
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let folder = Scratch::new();
    let path = folder.join("cache.safetensors");
    let nf4 =
        Nf4 { block: 64, double: false }.quantize(&ops::ones::<f32>(&[1, 1, 2, 64]).expect("ones")).expect("quantizes");
    let held = || Some(StoredBuffers { keys: nf4.clone(), values: nf4.clone() });
    let said = |layer: StoredCache| {
        let cache = PromptCache { layers: vec![layer], ..PromptCache::default() };
        mlx_prompt_cache::write(&path, &cache).expect_err("refused").to_string()
    };
    let found = [
        said(StoredCache::Kv { held: held(), offset: 2 }),
        said(StoredCache::Quantized { held: held(), offset: 2, group_size: 64, bits: 4 }),
    ];
    expect![[r#"
        Nf4(f32[1,1,2,64]) is written as a float array
        help: give dense keys and values, or affine ones to a cache that is quantized
        Nf4(f32[1,1,2,64]) is not written as affine:4:64
        help: quantize keys and values to the bits and the group size that the cache names"#]]
    .assert_eq(&found.join("\n"));
    assert!(!path.exists());
}

/// The caches of keys and values, those of lists too.
fn flat(layers: Vec<Layer>) -> Vec<KvCache> {
    let each = layers.into_iter().flat_map(|layer| match layer {
        Layer::Kv(cache) => vec![cache],
        Layer::List(caches) => flat(caches),
        Layer::Arrays(_) => Vec::new(),
    });
    each.collect()
}

fn slots(array: &Array, from: i32, to: i32) -> Array {
    array.try_index((.., .., from..to)).expect("cuts")
}

#[test]
fn caches_go_on_where_the_prompt_ended() {
    let _deny = Policy::Deny.scope();
    let dense = |value: &Value| {
        let _allow = Policy::Allow.scope();
        value.dense().expect("dense")
    };
    let mut text = String::new();
    for name in ["kv", "quantized", "rotating", "chunked", "chunked_trimmed", "list"] {
        let read = read("0.32", name);
        let expected =
            Tensors::open(golden(&format!("mlx_prompt_cache/0.32/{name}_expected.safetensors"))).expect("opens");
        let caches = read.caches().expect("converts");
        let again = PromptCache::of_caches(&caches, read.metadata.clone()).expect("converts");
        // Back in the order of the tokens.
        let again: Vec<KvCache> = flat(again.caches().expect("converts"));
        let places: Vec<String> = placed(&read.layers)
            .into_iter()
            .filter(|(_, cache)| given(cache).is_some())
            .map(|(place, _)| place)
            .collect();
        for ((cache, place), again) in flat(caches).iter().zip(places).zip(again) {
            let positions = cache.positions().expect("positions");
            let positions: Vec<i32> = positions.as_slice().to_vec();
            writeln!(text, "{name} {place} {} of {} in {:?}: {positions:?}", cache.keys(), cache.len(), cache.window())
                .expect("writes");
            assert_eq!(cache.offset().as_slice::<i32>(), [cache.len()]);
            assert_eq!(again.len(), cache.len());
            for part in ["keys", "values"] {
                let of = |cache: &KvCache| if part == "keys" { cache.keys().clone() } else { cache.values().clone() };
                let given = expected.get(&format!("{place}.{part}")).expect("is there");
                // The rings of the golden file in the order of their tokens.
                let ordered = match (name, &*place) {
                    ("rotating", "1") => {
                        ops::concatenate(&[slots(&given, 3, 8), slots(&given, 0, 3)], 2).expect("joins")
                    }
                    ("rotating", "2") => {
                        ops::concatenate(&[slots(&given, 0, 2), slots(&given, 6, 8), slots(&given, 2, 6)], 2)
                            .expect("joins")
                    }
                    _ => given,
                };
                let mut there: Vec<i32> = positions.iter().copied().filter(|&position| position >= 0).collect();
                there.sort_unstable();
                assert_eq!(there.len() as i32, ordered.dim(2), "{name} {place}");
                for (slot, position) in (0..).zip(&positions).filter(|(_, position)| **position >= 0) {
                    let at = there.iter().position(|own| own == position).expect("is there") as i32;
                    let held = slots(&dense(&of(cache)), slot, slot + 1);
                    assert!(
                        held.eq_exact(slots(&ordered, at, at + 1)).expect("compares"),
                        "{name} {place} {part} {position}"
                    );
                }
                // A window is written without what it no longer sees.
                let [own, again] = [cache, &again].map(|cache| {
                    let (keys, values) = cache.tokens().expect("in order");
                    dense(if part == "keys" { &keys } else { &values })
                });
                let seen = slots(&own, own.dim(2) - again.dim(2), own.dim(2));
                assert!(again.eq_exact(seen).expect("compares"), "{name} {place} {part}");
            }
        }
    }
    expect![[r#"
        kv 0 f32[1,2,5,4] of 5 in Everything: [0, 1, 2, 3, 4]
        kv 1 f16[1,2,5,4] of 5 in Everything: [0, 1, 2, 3, 4]
        quantized 0 Affine(f32[1,2,5,32]) of 5 in Everything: [0, 1, 2, 3, 4]
        quantized 1 Affine(f32[1,2,5,32]) of 5 in Everything: [0, 1, 2, 3, 4]
        quantized 2 Affine(f32[1,2,5,32]) of 5 in Everything: [0, 1, 2, 3, 4]
        rotating 0 f32[1,2,4,4] of 4 in Sliding { size: 8, sinks: 0 }: [0, 1, 2, 3]
        rotating 1 f32[1,2,8,4] of 11 in Sliding { size: 8, sinks: 0 }: [8, 9, 10, 3, 4, 5, 6, 7]
        rotating 2 f32[1,2,8,4] of 12 in Sliding { size: 6, sinks: 2 }: [0, 1, 8, 9, 10, 11, 6, 7]
        rotating 3 f32[1,2,7,4] of 7 in Sliding { size: 4, sinks: 0 }: [0, 1, 2, 3, 4, 5, 6]
        chunked 0 f32[1,2,5,4] of 5 in Chunked { size: 6 }: [0, 1, 2, 3, 4]
        chunked_trimmed 0 f32[1,2,7,4] of 10 in Chunked { size: 6 }: [7, 8, 9, 3, 4, 5, 6]
        list 1.0 f32[1,2,2,4] of 2 in Everything: [0, 1]
        list 1.1 f32[1,2,3,4] of 3 in Sliding { size: 4, sinks: 0 }: [0, 1, 2]
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_padded_batch_goes_on() {
    let read = read("0.32", "batch");
    let first = PromptCache { layers: read.layers[..1].to_vec(), ..PromptCache::default() };
    let caches = first.caches().expect("converts");
    let Layer::Kv(cache) = &caches[0] else { panic!("of keys and values") };
    assert_eq!(cache.offset().as_slice::<i32>(), [4, 5, 3]);
    assert_eq!(
        cache.positions().expect("positions").as_slice::<i32>(),
        [-1, 0, 1, 2, 3, 0, 1, 2, 3, 4, -1, -1, 0, 1, 2]
    );
    let again = PromptCache::of_caches(&caches, Metadata::new()).expect("converts");
    let cut = |cache: &PromptCache| {
        let (held, written) = given(&cache.layers[0]).expect("has tokens");
        slots(&held.keys.dense().expect("dense"), 0, written)
    };
    assert!(cut(&again).eq_exact(cut(&first)).expect("compares"));
    assert_eq!(summary(&again), "0 f32[3,2,5,4] f32[3,2,5,4] offset [4, 5, 3] left_padding [1, 0, 2] index 5\n");
}

#[test]
fn a_state_of_another_kind_goes_on() {
    let read = read("0.32", "empty");
    let first = PromptCache { layers: read.layers[..1].to_vec(), ..PromptCache::default() };
    let again = PromptCache::of_caches(&first.caches().expect("converts"), Metadata::new()).expect("converts");
    assert_eq!(summary(&again), summary(&first));
}

#[test]
fn a_batch_of_no_sequences_goes_on() -> Result<()> {
    let folder = Scratch::new();
    let path = folder.join("cache.safetensors");
    let none = || ops::zeros::<i32>(&[0]);
    let buffer = ops::zeros::<f32>(&[0, 2, 3, 4])?;
    let held = StoredBuffers { keys: buffer.clone().into(), values: buffer.into() };
    let layers = vec![
        StoredCache::Arrays { slots: vec![None], left_padding: Some(none()?), lengths: Some(none()?) },
        StoredCache::Batch { held: Some(held), offset: none()?, left_padding: none()?, index: 3 },
    ];
    mlx_prompt_cache::write(&path, &PromptCache { layers, ..PromptCache::default() })?;
    let again = PromptCache::of_caches(&mlx_prompt_cache::read(&path)?.caches()?, Metadata::new())?;
    assert_eq!(summary(&again), "0 none left_padding i32[0] lengths i32[0]\n1 f32[0,2,3,4] f32[0,2,3,4] offset 3\n");
    Ok(())
}
