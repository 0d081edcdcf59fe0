//! Damaged files and caches that mlx-lm or a model here does not have: errors.

use std::fmt::Write as _;

use expect_test::expect;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use tacit_arrays::format::{Affine, Nf4};
use tacit_core::{Error, Policy, Result, implicit_with_state};
use tacit_io::mlx_prompt_cache::{self, PromptCache, StoredBuffers, StoredCache};
use tacit_io::{Metadata, Tensors, write};
use tacit_nn::{Cache as Layer, KvCache, PaddingSide, Window};

use super::{read, summary};
use crate::golden::golden;
use crate::scratch::Scratch;

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
fn files_that_say_too_little_are_refused() {
    let damages: [(&str, &str, Damage); 3] = [
        ("0.32", "kv", |tensors, said| {
            tensors.clear();
            said.clear();
        }),
        ("0.32", "chunked", |tensors, _| set(tensors, "0.4", Array::from_int(99))),
        // The words that name the classes of a list.
        ("0.32", "list", |_, said| {
            let words = said.iter().filter(|(key, kind)| key.starts_with("2.") && *kind == "string");
            let words: Vec<String> = words.filter_map(|(key, _)| Some(key.strip_suffix('1')?.to_owned())).collect();
            said.retain(|key, _| !words.iter().any(|word| key.starts_with(word)));
        }),
    ];
    expect![[r#"
        FOLDER/cache.safetensors: it names no classes of caches
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later
        FOLDER/cache.safetensors: 0.4: 99 tokens that are gone are more than the 5 that there may be
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later
        FOLDER/cache.safetensors: 1.0.1: it is an array, and its class has a word
        help: the file is not a prompt cache of mlx-lm's, or is damaged: write it again, by mlx-lm 0.32 or later"#]]
    .assert_eq(&damages.map(|(layout, name, damage)| damaged(layout, name, damage)).join("\n"));
}

#[test]
fn padding_that_mlx_lm_does_not_have_is_refused() -> Result<()> {
    let x = ops::ones::<f32>(&[2, 1, 3, 4])?;
    let held = Some(StoredBuffers { keys: x.clone().into(), values: x.clone().into() });
    let numbers = |numbers: [i32; 2]| Array::from_slice(&numbers, &[2]);
    let batch = StoredCache::Batch { held, offset: numbers([3, 3]), left_padding: numbers([0, 1]), index: 3 };
    let batch = PromptCache { layers: vec![batch], ..PromptCache::default() };
    let mut cache = KvCache::new([2, 1, 4], Dtype::Float32)?;
    cache.prepare(3, &[2, 3], PaddingSide::Right)?;
    cache.reserve(3)?;
    implicit_with_state(&mut cache, &x, |cache, x| Ok::<_, Error>(cache.update(&x, &x)?.0))?;
    let behind = PromptCache::of_caches(&[cache.into()], Metadata::new());
    let said = [batch.caches().map(drop), behind.map(drop)].map(|result| result.expect_err("refused").to_string());
    expect![[r#"
        a batch of 3 slots, padded by [0, 1], is said to have [3, 3] tokens
        help: finish its prompt by `finalize` before it is saved
        mlx-lm has no cache of sequences that are padded behind their first token
        help: make the cache dense by `KvCache::dense`, and split a batch into its sequences"#]]
    .assert_eq(&said.join("\n"));
    Ok(())
}
