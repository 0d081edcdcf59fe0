//! Prompt caches that mlx-lm wrote, in both of its layouts.

use std::fmt::Write as _;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, Nf4, Quantizer};
use tacit_core::{Error, Policy, Result, Value, implicit_with_state};
use tacit_io::mlx_prompt_cache::{self, PromptCache, StoredBuffers, StoredCache};
use tacit_io::{Metadata, Tensors, write};
use tacit_nn::{Cache as Layer, KvCache, Window};

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

/// What is done to the tensors and the metadata.
type Damage = fn(&mut Vec<(String, Array)>, &mut Metadata);

fn set(tensors: &mut [(String, Array)], name: &str, array: Array) {
    tensors.iter_mut().find(|(own, _)| own == name).expect("is there").1 = array;
}

/// What is said of a golden file with a damage.
fn damaged(layout: &str, name: &str, damage: Damage) -> String {
    let folder = Scratch::new();
    let path = folder.join("cache.safetensors");
    let whole = Tensors::open(golden(&format!("mlx_prompt_cache/{layout}/{name}.safetensors"))).expect("opens");
    let mut tensors: Vec<_> = whole.names().map(|name| (name.to_owned(), whole.get(name).expect("is there"))).collect();
    let mut said = whole.metadata().clone();
    damage(&mut tensors, &mut said);
    write(&path, tensors, &said).expect("writes");
    folder.message(&mlx_prompt_cache::read(&path).expect_err("is refused"))
}

/// Says that a tensor stands for something else.
fn stand(said: &mut Metadata, place: &str, kind: &str) {
    said.insert("2.99.0".into(), place.into());
    said.insert("2.99.1".into(), kind.into());
}

#[test]
fn parts_that_a_class_does_not_have_are_refused() {
    let damages: [(&str, &str, Damage); 15] = [
        ("0.32", "kv", |_, said| drop(said.remove("2.1.1"))),
        ("0.32", "kv", |_, said| drop(said.insert("2.1.0".into(), "0.9".into()))),
        ("0.32", "kv", |tensors, said| {
            set(tensors, "0.0", Array::from_int(5));
            stand(said, "0.0", "scalar");
        }),
        ("0.32", "kv", |tensors, said| {
            set(tensors, "0.0", Array::from_slice::<f32>(&[], &[0]));
            stand(said, "0.0", "none");
        }),
        ("0.32", "kv", |tensors, said| {
            tensors.iter_mut().filter(|(name, _)| name == "0.2").for_each(|(name, _)| name.push_str(".0"));
            said.insert("2.1.0".into(), "0.2.0".into());
        }),
        ("0.32", "kv", |tensors, _| set(tensors, "0.0", ops::ones::<f32>(&[2, 5, 4]).expect("ones"))),
        ("0.32", "quantized", |tensors, _| set(tensors, "0.0.1", Array::from_f32(1.0))),
        ("0.32", "quantized", |tensors, _| {
            set(tensors, "0.0.1", ops::ones::<f32>(&[1, 2, 7, 2]).expect("ones"));
            set(tensors, "0.3", Array::from_int(i32::MAX));
        }),
        ("0.32", "batch", |_, said| said.retain(|key, _| !key.starts_with("2.5."))),
        ("0.32", "empty", |tensors, _| tensors.push(("0.3".into(), Array::from_int(1)))),
        ("0.32", "empty", |tensors, said| {
            tensors.retain(|(name, _)| !name.starts_with("0."));
            tensors.push(("0".into(), Array::from_int(1)));
            said.retain(|key, _| !key.starts_with("2.1.") && !key.starts_with("2.2."));
        }),
        ("0.31", "quantized", |_, said| said.retain(|key, _| !key.starts_with("0.0."))),
        ("0.31", "quantized", |_, said| drop(said.remove("0.0.2"))),
        ("0.31", "chunked", |_, said| drop(said.remove("0.0.1"))),
        ("0.31", "list", |_, said| drop(said.remove("0.1.0.1"))),
    ];
    let clause = |(layout, name, damage)| {
        let message = damaged(layout, name, damage);
        message.lines().next().expect("a clause").replace("FOLDER/cache.safetensors: ", "")
    };
    expect![[r"
        0.2: what it stands for is not said
        0.9: it is not there once, as the file says
        0.0: it is an integer, and its class has an array
        0.0: it is nothing, and its class has an array
        0.2: it has parts, and its class has one value
        0.0: it is f32[2,5,4], and buffers are floats of four axes
        0.0.1: the scales are one number
        0.0.1: there are too many scales
        1.7: it is an array, and its class has a flag
        0.3: its class has three parts
        0: it has no parts, and its class has three
        0: it is a word, and its class has parts
        0: it has not the three numbers of its class
        0: it has not the two numbers of its class
        1: it has not a class and a state for each of its caches"]]
    .assert_eq(&damages.map(clause).join("\n"));
}

#[test]
#[allow(clippy::too_many_lines, reason = "the snapshot stands in the call")]
fn damaged_files_are_refused() {
    let damages: [(&str, &str, &str, Damage); 21] = [
        ("no metadata", "0.32", "kv", |_, said| said.clear()),
        ("an unknown class", "0.32", "kv", |_, said| drop(said.insert("1.0".into(), "TokenCache".into()))),
        ("a class too few", "0.32", "kv", |_, said| drop(said.remove("1.1"))),
        ("a class left out", "0.32", "kv", |_, said| drop(said.remove("1.0"))),
        ("a part too few", "0.32", "kv", |tensors, said| {
            tensors.retain(|(name, _)| name != "0.2");
            said.retain(|key, _| !key.starts_with("2.1."));
        }),
        ("a part left out", "0.32", "kv", |tensors, _| tensors.retain(|(name, _)| name != "0.0")),
        ("a name of no place", "0.32", "kv", |tensors, _| tensors.push(("0.keys".into(), tensors[0].1.clone()))),
        ("a part below a part", "0.32", "kv", |tensors, _| tensors.push(("0.0.1".into(), tensors[0].1.clone()))),
        ("a place far below", "0.32", "kv", |tensors, _| tensors.push((vec!["7"; 17].join("."), tensors[0].1.clone()))),
        ("more tokens than slots", "0.32", "kv", |tensors, _| set(tensors, "0.2", Array::from_int(9))),
        ("fewer tokens than none", "0.32", "kv", |tensors, _| set(tensors, "0.2", Array::from_int(-1))),
        ("a number that is an array", "0.32", "kv", |_, said| said.retain(|key, _| !key.starts_with("2.1."))),
        ("a number of another type", "0.32", "kv", |tensors, _| set(tensors, "0.2", Array::from_f32(5.0))),
        ("a kind that is not known", "0.32", "kv", |_, said| drop(said.insert("2.1.1".into(), "tensor".into()))),
        ("codes of another width", "0.32", "quantized", |tensors, _| set(tensors, "0.4", Array::from_int(3))),
        ("other values than keys", "0.31", "kv", |tensors, _| {
            let values = tensors[1].1.try_index((.., .., ..2)).expect("cuts");
            set(tensors, "0.1", values);
        }),
        ("no numbers", "0.31", "rotating", |_, said| drop(said.remove("0.0.3"))),
        ("words for numbers", "0.31", "rotating", |_, said| drop(said.insert("0.0.3".into(), "four".into()))),
        ("tokens that cannot be counted", "0.31", "chunked_trimmed", |_, _| ()),
        ("neither True nor False", "0.31", "batch", |_, said| drop(said.insert("0.1.3".into(), "1".into()))),
        ("other sequences", "0.31", "batch", |tensors, _| set(tensors, "0.3", Array::from_slice(&[1, 2], &[2]))),
    ];
    let mut text = String::new();
    for (what, layout, name, damage) in damages {
        writeln!(text, "{what}:\n{}\n", damaged(layout, name, damage)).expect("writes");
    }
    expect![[r#"
        no metadata:
        FOLDER/cache.safetensors: 0: its class is not named
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        an unknown class:
        FOLDER/cache.safetensors: 0: "TokenCache" is no class of caches that is known
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a class too few:
        FOLDER/cache.safetensors: 1: its class is not named
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a class left out:
        FOLDER/cache.safetensors: of its classes its part 0 is not there
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a part too few:
        FOLDER/cache.safetensors: 0: it has 2 parts, and its class has 3
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a part left out:
        FOLDER/cache.safetensors: 0: its part 0 is not there
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a name of no place:
        FOLDER/cache.safetensors: 0.keys: its name is not the place of a part
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a part below a part:
        FOLDER/cache.safetensors: 0.0.1: there is another part where it would be
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a place far below:
        FOLDER/cache.safetensors: 7.7.7.7.7.7.7.7.7.7.7.7.7.7.7.7.7: its name is not the place of a part
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        more tokens than slots:
        FOLDER/cache.safetensors: 0.2: 9 tokens are more than the 8 that there may be
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        fewer tokens than none:
        FOLDER/cache.safetensors: 0.2: it is -1, and counts something
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a number that is an array:
        FOLDER/cache.safetensors: 0.2: it is an array, and its class has an integer
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a number of another type:
        FOLDER/cache.safetensors: 0.2: it is f32[], and stands for "scalar"
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        a kind that is not known:
        FOLDER/cache.safetensors: 0.2: it is i32[], and stands for "tensor"
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        codes of another width:
        FOLDER/cache.safetensors: 0.0: codes is u32[1,2,7,2], where affine:3:32 of f32[1,2,7,32] has u32[1,2,7,3]
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        other values than keys:
        FOLDER/cache.safetensors: 0.1: it is f32[1,2,2,4], and the keys are f32[1,2,5,4]
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        no numbers:
        FOLDER/cache.safetensors: 0: it has not the four numbers of its class
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        words for numbers:
        FOLDER/cache.safetensors: 0: 0, 8, 4, four are not the numbers of its class
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        tokens that cannot be counted:
        FOLDER/cache.safetensors: 0: its first 3 tokens are gone, and this layout does not say how many are left
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        neither True nor False:
        FOLDER/cache.safetensors: 1: "1" is neither True nor False
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

        other sequences:
        FOLDER/cache.safetensors: 0.3: it is i32[2], and i32[3] of 3 sequences
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later

    "#]]
    .assert_eq(&text);
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
fn what_mlx_lm_has_no_cache_of() {
    let said = |caches: Result<Vec<Layer>>| caches.expect_err("refused").to_string();
    let nothing = read("0.32", "empty");
    let ring = PromptCache { layers: read("0.32", "batch").layers[1..].to_vec(), ..PromptCache::default() };
    let mut text = [said(nothing.caches()), said(ring.caches())];
    let mixed = || {
        KvCache::new([1, 2, 64], Dtype::Float32)?
            .quantized(Affine { bits: 8, group: 64 }, Nf4 { block: 64, double: false })
    };
    let mut mixed = mixed().expect("is one");
    let x = ops::ones::<f32>(&[1, 2, 3, 64]).expect("ones");
    mixed.reserve(3).expect("has room");
    let _allow = Policy::Allow.scope();
    implicit_with_state(&mut mixed, &x, |cache, x| Ok::<_, Error>(cache.update(&x, &x)?.0)).expect("writes");
    let error = PromptCache::of_caches(&[mixed.clone().into()], Metadata::new()).expect_err("refused");
    text[1] = format!("{}\n{error}", text[1]);
    let dense = PromptCache::of_caches(&[mixed.dense().expect("decodes").into()], Metadata::new()).expect("converts");
    assert_eq!(summary(&dense), "0 f32[1,2,3,64] f32[1,2,3,64] offset 3\n");
    // Taken away, the last token leaves a ring in which one is missing.
    for window in [Window::Sliding { size: 4, sinks: 0 }, Window::Sliding { size: 4, sinks: 1 }] {
        let cache = || KvCache::new([1, 2, 64], Dtype::Float32)?.with_window(window);
        let mut cache = cache().expect("is one");
        for _ in 0..7 {
            cache.reserve(1).expect("has room");
            let x = ops::ones::<f32>(&[1, 2, 1, 64]).expect("ones");
            implicit_with_state(&mut cache, &x, |cache, x| Ok::<_, Error>(cache.update(&x, &x)?.0)).expect("writes");
        }
        cache.trim(1).expect("is there");
        let error = PromptCache::of_caches(&[cache.into()], Metadata::new()).expect_err("refused");
        text[1] = format!("{}\n{error}", text[1]);
    }
    expect![[r#"
        a cache without tokens says nothing of its shape
        help: make a new one for this layer, by `KvCache::new`
        a batch in a ring does not become a cache
        help: save the cache of each sequence, as `extract` gives it
        mlx-lm has no cache of Affine(f32[1,2,3,64]) and Nf4(f32[1,2,3,64]) in Everything, padded by [0]
        help: make the cache dense by `KvCache::dense`, and split a batch into its sequences
        of 6 tokens the window of 4 lacks one: it was overwritten by those that were taken away
        help: write the next token before the cache is saved, or keep room by `KvCache::reserve_trim` before the last ones
        of 6 tokens the window of 4 lacks one: it was overwritten by those that were taken away
        help: write the next token before the cache is saved, or keep room by `KvCache::reserve_trim` before the last ones"#]]
    .assert_eq(&text.join("\n"));
}

/// What arithmetic would overflow on, or a slice be read as another type, is refused by its part.
#[test]
fn numbers_that_no_cache_has_are_refused() -> Result<()> {
    let held = || {
        let buffer = ops::ones::<f32>(&[1, 1, 4, 4]).expect("ones");
        Some(StoredBuffers { keys: buffer.clone().into(), values: buffer.into() })
    };
    let slots = || vec![Some(ops::ones::<f32>(&[1, 3]).expect("ones"))];
    let arrays = |padding: Array| StoredCache::Arrays { slots: slots(), left_padding: Some(padding), lengths: None };
    let caches = [
        arrays(Array::from_slice(&[1i64], &[1])),
        arrays(Array::from_slice(&[1f32], &[1])),
        arrays(Array::from_slice(&[1i32, 2, 3], &[3])),
        StoredCache::Arrays { slots: slots(), left_padding: None, lengths: Some(Array::from_slice(&[1u32], &[1])) },
        StoredCache::Batch {
            held: held(),
            offset: Array::from_slice(&[4i32], &[1]),
            left_padding: Array::from_slice(&[i32::MIN], &[1]),
            index: 4,
        },
        StoredCache::Rotating { held: held(), offset: i32::MAX, keep: 0, max_size: 4, index: 4 },
        StoredCache::Rotating { held: held(), offset: 9, keep: 2, max_size: 4, index: 1 },
        StoredCache::Chunked { held: held(), offset: i32::MAX, chunk_size: 4, start: i32::MAX - 4 },
    ];
    let folder = Scratch::new();
    let path = folder.join("cache.safetensors");
    let mut text = String::new();
    for layer in caches {
        mlx_prompt_cache::write(&path, &PromptCache { layers: vec![layer], ..PromptCache::default() })?;
        let error = mlx_prompt_cache::read(&path).and_then(|cache| cache.caches().map(drop)).expect_err("is refused");
        let message = folder.message(&error);
        writeln!(text, "{}", message.lines().next().unwrap_or_default()).expect("writes");
    }
    expect![[r#"
        FOLDER/cache.safetensors: 0.1: it is i64[1], and i32[1] of 1 sequences
        FOLDER/cache.safetensors: 0.1: it is f32[1], and i32[1] of 1 sequences
        FOLDER/cache.safetensors: 0.1: it is i32[3], and i32[1] of 1 sequences
        FOLDER/cache.safetensors: 0.2: it is u32[1], and i32[1] of 1 sequences
        a batch of 4 slots, padded by [-2147483648], is said to have [4] tokens
        FOLDER/cache.safetensors: 0.2: 2147483647 tokens are more than the 1073741824 that there may be
        FOLDER/cache.safetensors: 0.3: 2 tokens that stay are more than the 1 that there may be
        FOLDER/cache.safetensors: 0.2: 2147483647 tokens are more than the 1073741824 that there may be
    "#]]
    .assert_eq(&text);
    Ok(())
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
