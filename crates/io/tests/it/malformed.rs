//! Files that are not what they should be: each is an error that names the file, the tensor and the reason.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::LazyLock;

use expect_test::expect;
use mlx_rs::Array;
use proptest::prelude::*;
use safetensors::SafeTensors;
use tacit_core::Error;
use tacit_io::{Metadata, Tensors, write};

use crate::scratch::Scratch;

/// A file of this header and so many bytes of elements.
fn file(header: &str, elements: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + elements, 0);
    bytes
}

/// A file of one tensor `w` that is described so.
fn tensor(dtype: &str, shape: &str, offsets: &str, elements: usize) -> Vec<u8> {
    file(&format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#), elements)
}

fn refused(folder: &Scratch, name: &str) -> String {
    let opened = Tensors::open(folder.join(name));
    let error = opened.expect_err(name);
    assert!(matches!(error, Error::Checkpoint { .. } | Error::File { .. }), "{name}: {error}");
    folder.message(&error)
}

/// Files by what is wrong with them.
fn wrong() -> Vec<(&'static str, Vec<u8>)> {
    let whole = tensor("F32", "[2]", "[0,8]", 8);
    let with_length = |length: u64| [&length.to_le_bytes()[..], &whole[8..]].concat();
    let two = |second: &str, elements| {
        let first = r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
        file(&format!("{{{first},{second}}}"), elements)
    };
    let deep = format!("{{\"w\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
    vec![
        ("empty", vec![]),
        ("no_header", vec![1, 0, 0]),
        ("zip", b"PK\x03\x04 and what PyTorch wrote".to_vec()),
        ("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 8\n".to_vec()),
        ("page", b"<!DOCTYPE html><html></html>".to_vec()),
        ("header_beyond_the_file", with_length(1000)),
        ("header_beyond_memory", with_length(u64::MAX)),
        ("header_too_short", with_length(3)),
        ("not_json", file("{\"w\":", 0)),
        ("not_an_object", file("[1]", 0)),
        ("not_utf8", [&8u64.to_le_bytes()[..], b"{\"\xff\xff\":1}"].concat()),
        ("nested_without_end", file(&deep, 0)),
        ("trailing", file("{}x", 0)),
        ("space_before", file(" {}", 0)),
        ("tensor_twice", two(r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#, 4)),
        ("tensor_twice_by_an_escape", two(r#""\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}"#, 8)),
        ("field_twice", file(r#"{"w":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}"#, 1)),
        ("field_missing", file(r#"{"w":{"dtype":"U8","data_offsets":[0,1]}}"#, 1)),
        ("metadata_twice", file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0)),
        ("metadata_key_twice", file(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0)),
        ("metadata_not_text", file(r#"{"__metadata__":{"a":1}}"#, 0)),
        ("dtype_unknown", tensor("F4", "[2]", "[0,1]", 1)),
        ("extent_negative", tensor("F32", "[-2]", "[0,8]", 8)),
        ("extent_fraction", tensor("F32", "[2.0]", "[0,8]", 8)),
        ("extent_beyond_mlx", tensor("U8", "[3000000000]", "[0,8]", 8)),
        ("extent_beyond_numbers", tensor("U8", "[99999999999999999999]", "[0,8]", 8)),
        ("size_beyond_numbers", tensor("F32", "[2147483647,2147483647,2147483647]", "[0,8]", 8)),
        ("strides_beyond_numbers", tensor("U8", "[0,2147483647,2147483647,2147483647]", "[0,0]", 0)),
        ("offsets_beyond_the_file", tensor("F32", "[2]", "[0,8]", 7)),
        ("offsets_beyond_numbers", tensor("F32", "[2]", "[0,18446744073709551615]", 8)),
        ("offsets_turned", tensor("F32", "[2]", "[8,0]", 8)),
        ("offsets_of_another_size", tensor("F32", "[2]", "[0,4]", 4)),
        ("offsets_of_three", tensor("F32", "[2]", "[0,8,8]", 8)),
        ("overlap", two(r#""b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}"#, 6)),
        ("same_bytes", two(r#""b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#, 4)),
        ("gap", two(r#""b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}"#, 9)),
        ("gap_at_the_start", tensor("U8", "[4]", "[1,5]", 5)),
        ("bytes_left", tensor("F32", "[2]", "[0,8]", 9)),
    ]
}

#[test]
fn each_way_to_be_wrong_has_its_message() {
    let folder = Scratch::new();
    let mut said = String::new();
    for (name, bytes) in wrong() {
        folder.file(name, bytes);
        let message = refused(&folder, name).replace("FOLDER/", "");
        let (reason, help) = message.split_once("\nhelp: ").expect("each says what to do");
        let known = help == "the file is not as it was written: fetch or write it again";
        writeln!(said, "{reason}{}", if known { String::new() } else { format!(" -- {help}") })
            .expect("a string grows");
    }
    expect![[r#"
        empty: it has 0 bytes, and a header's length is 8
        no_header: it has 3 bytes, and a header's length is 8
        zip: it is a zip archive, as PyTorch writes it, and no safetensors -- take the safetensors of this model, or write them with the program that wrote the archive
        lfs: it is the pointer of Git LFS to a file, and not that file -- fetch the file by `git lfs pull`
        page: it is a page of the web, and no safetensors -- fetch the file itself, by the address of its download
        header_beyond_the_file: its header is to have 1000 bytes, and 62 bytes follow
        header_beyond_memory: its header is to have 18446744073709551615 bytes, and 62 bytes follow
        header_too_short: in its header, EOF while parsing a string at line 1 column 3
        not_json: w: in its header, EOF while parsing a value at line 1 column 5
        not_an_object: its header does not begin with `{`
        not_utf8: in its header, invalid unicode code point at line 1 column 3
        nested_without_end: w: in its header, invalid type: sequence, expected a string at line 1 column 6
        trailing: in its header, trailing characters at line 1 column 3
        space_before: its header does not begin with `{`
        tensor_twice: a: in its header, the name is there twice at line 1 column 105
        tensor_twice_by_an_escape: a: in its header, the name is there twice at line 1 column 110
        field_twice: w: in its header, duplicate field `dtype` at line 1 column 26
        field_missing: w: in its header, missing field `shape` at line 1 column 40
        metadata_twice: __metadata__: in its header, the name is there twice at line 1 column 37
        metadata_key_twice: __metadata__: in its header, the key "a" is there twice at line 1 column 33
        metadata_not_text: __metadata__: in its header, invalid type: integer `1`, expected a string at line 1 column 22
        dtype_unknown: w: "F4" is no dtype of MLX's, which are BOOL, U8, F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, U16, U32, U64, I8, I16, I32, I64, F16, F32, F64, BF16, C64 -- MLX cannot hold it: convert the file with the program that wrote it
        extent_negative: w: in its header, invalid value: integer `-2`, expected u64 at line 1 column 31
        extent_fraction: w: in its header, invalid type: floating point `2.0`, expected u64 at line 1 column 32
        extent_beyond_mlx: w: its extent 3000000000 is too large -- MLX cannot hold it: convert the file with the program that wrote it
        extent_beyond_numbers: w: in its header, invalid type: floating point `1e+20`, expected u64 at line 1 column 48
        size_beyond_numbers: w: f32[2147483647,2147483647,2147483647] is more than memory can hold -- MLX cannot hold it: convert the file with the program that wrote it
        strides_beyond_numbers: w: u8[0,2147483647,2147483647,2147483647] is more than memory can hold -- MLX cannot hold it: convert the file with the program that wrote it
        offsets_beyond_the_file: w: its bytes are to be 0..8, and there are 7
        offsets_beyond_numbers: w: its bytes are to be 0..18446744073709551615, and there are 8
        offsets_turned: w: f32[2] has 8 bytes, and these are to be 8..0
        offsets_of_another_size: w: f32[2] has 8 bytes, and these are to be 0..4
        offsets_of_three: w: in its header, trailing characters at line 1 column 53
        overlap: b: overlaps the tensor before it
        same_bytes: b: overlaps the tensor before it
        gap: b: leaves a gap before it
        gap_at_the_start: w: leaves a gap before it
        bytes_left: 1 bytes are left behind the last tensor
    "#]].assert_eq(&said);
}

#[test]
fn a_file_that_is_not_there_or_no_file_is_the_systems_to_refuse() {
    let folder = Scratch::new();
    let message = refused(&folder, "absent.safetensors");
    expect!["cannot open FOLDER/absent.safetensors: No such file or directory (os error 2)"].assert_eq(&message);
    fs::create_dir(folder.join("empty")).expect("makes a folder");
    expect![[r#"
        FOLDER/empty: no file of the folder ends in .safetensors
        help: open another folder"#]]
    .assert_eq(&refused(&folder, "empty"));
    folder.file("a.safetensors", file("{}", 0));
    folder.file("b.safetensors", file("{}", 0));
    expect![[r#"
        FOLDER/: the folder has a.safetensors, b.safetensors, and none of them is its model
        help: open one of them"#]]
    .assert_eq(&refused(&folder, ""));
    let error = Tensors::open("/dev/null").expect_err("no regular file");
    expect!["cannot map /dev/null: it is no regular file"].assert_eq(&error.to_string());
}

#[test]
fn a_tensor_that_is_not_there_or_no_bool_is_an_error_when_it_is_asked_for() {
    let folder = Scratch::new();
    let mut bytes = tensor("BOOL", "[2]", "[0,2]", 2);
    *bytes.last_mut().expect("a byte") = 2;
    let tensors = Tensors::open(folder.file("m.safetensors", bytes)).expect("the header is right");
    expect![[r#"
        FOLDER/m.safetensors: w: a BOOL is 0 or 1, and one of it is 2
        help: the file is not as it was written: fetch or write it again"#]]
    .assert_eq(&folder.message(&tensors.get("w").expect_err("no bool")));
    expect![[r#"
        FOLDER/m.safetensors: v: there is no such tensor
        help: there are w"#]]
    .assert_eq(&folder.message(&tensors.get("v").expect_err("not there")));
}

#[test]
fn an_index_is_checked_against_its_files() {
    let folder = Scratch::new();
    let outside = Scratch::new();
    fs::write(outside.join("x.safetensors"), tensor("U8", "[4]", "[0,4]", 4)).expect("writes");
    folder.file("m.safetensors", tensor("U8", "[4]", "[0,4]", 4));
    symlink(outside.join("x.safetensors"), folder.join("link.safetensors")).expect("links");
    let absolute = format!(r#"{{"weight_map":{{"w":"{}"}}}}"#, outside.join("x.safetensors").display());
    let cases = [
        ("not_json", "{"),
        ("no_map", r#"{"metadata":{}}"#),
        ("key_twice", r#"{"weight_map":{"w":"m.safetensors","w":"m.safetensors"}}"#),
        ("file_above", r#"{"weight_map":{"w":"../m.safetensors"}}"#),
        ("file_absolute", absolute.as_str()),
        ("file_linked_out", r#"{"weight_map":{"w":"link.safetensors"}}"#),
        ("file_absent", r#"{"weight_map":{"w":"n.safetensors"}}"#),
        ("file_unnamed", r#"{"weight_map":{"w":""}}"#),
        ("key_too_many", r#"{"weight_map":{"w":"m.safetensors","v":"m.safetensors"}}"#),
        ("key_too_few", r#"{"weight_map":{}}"#),
        ("key_of_another", r#"{"weight_map":{"v":"m.safetensors"}}"#),
    ];
    let mut said = String::new();
    for (name, text) in cases {
        let name = format!("{name}.safetensors.index.json");
        folder.file(&name, text);
        if name.starts_with("key_too_few") {
            assert_eq!(Tensors::open(folder.join(&name)).expect("is empty").names().count(), 0);
            continue;
        }
        let message = refused(&folder, &name);
        let message = message.replace(&format!("{}", outside.display()), "OUTSIDE").replace("FOLDER/", "");
        writeln!(said, "{message}").expect("a string grows");
    }
    expect![[r#"
        not_json.safetensors.index.json: it is no index: EOF while parsing an object at line 1 column 1
        help: fetch or write it again
        no_map.safetensors.index.json: it is no index: missing field `weight_map` at line 1 column 15
        help: fetch or write it again
        key_twice.safetensors.index.json: it is no index: the key "w" is there twice at line 1 column 55
        help: fetch or write it again
        file_above.safetensors.index.json: w: its file "../m.safetensors" is not in the folder of the index
        help: an index names files of its own folder: open such a file by itself
        file_absolute.safetensors.index.json: w: its file "OUTSIDE/x.safetensors" is not in the folder of the index
        help: an index names files of its own folder: open such a file by itself
        file_linked_out.safetensors.index.json: w: its file "link.safetensors" is a link out of the folder of the index
        help: an index names files of its own folder: open such a file by itself
        file_absent.safetensors.index.json: w: its file "n.safetensors" is not there: No such file or directory (os error 2)
        help: an index names files of its own folder: open such a file by itself
        file_unnamed.safetensors.index.json: w: its file "" is not in the folder of the index
        help: an index names files of its own folder: open such a file by itself
        m.safetensors: v: the index key_too_many.safetensors.index.json names it, and it is not there
        help: fetch the index and its files again, together
        m.safetensors: w: the index key_of_another.safetensors.index.json does not say that it is there
        help: fetch the index and its files again, together
    "#]].assert_eq(&said);
}

#[test]
fn a_snapshot_of_the_hub_cache_links_to_its_blobs() {
    let folder = Scratch::new();
    let snapshot = folder.join("snapshots").join("1");
    fs::create_dir_all(&snapshot).expect("makes folders");
    fs::create_dir(folder.join("blobs")).expect("makes a folder");
    folder.file("blobs/0", tensor("U8", "[4]", "[0,4]", 4));
    folder.file("blobs/1", r#"{"weight_map":{"w":"model-1.safetensors"}}"#);
    symlink("../../blobs/0", snapshot.join("model-1.safetensors")).expect("links");
    symlink("../../blobs/1", snapshot.join("model.safetensors.index.json")).expect("links");
    assert_eq!(Tensors::open(&snapshot).expect("opens").names().collect::<Vec<_>>(), ["w"]);
}

/// As Hugging Face's library has it since 2026, where two models have the same file.
#[test]
fn a_part_of_a_snapshot_links_to_blobs_that_all_models_share() {
    let folder = Scratch::new();
    let part = folder.join("model/snapshots/1/part");
    for place in ["model/snapshots/1/part", "model/blobs", "blobs/00"] {
        fs::create_dir_all(folder.join(place)).expect("makes folders");
    }
    folder.file("model/blobs/1", tensor("U8", "[4]", "[0,4]", 4));
    folder.file("blobs/00/2", file(r#"{"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, 2));
    symlink("../../blobs/00/2", folder.join("model/blobs/2")).expect("links");
    let index = |map: &str| fs::write(part.join("model.safetensors.index.json"), map).expect("writes");
    for number in [1, 2] {
        let name = format!("{number}.safetensors");
        symlink(format!("../../../blobs/{number}"), part.join(name)).expect("links");
    }
    index(r#"{"weight_map":{"w":"1.safetensors"}}"#);
    Tensors::open(&part).expect("opens");
    index(r#"{"weight_map":{"w":"1.safetensors","v":"2.safetensors"}}"#);
    let error = Tensors::open(&part).expect_err("the folder is not marked as one of blobs");
    assert!(error.to_string().contains("is a link out of the folder of the index"), "{error}");
    folder.file("blobs/.huggingface-shared-blobs", "1\n");
    assert_eq!(Tensors::open(&part).expect("opens").names().collect::<Vec<_>>(), ["v", "w"]);
}

/// A file with a bit of everything.
static SOUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = Scratch::new();
    let tensors = vec![
        ("layers.0.weight".to_owned(), Array::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])),
        ("mask".to_owned(), Array::from_slice(&[true, false, true], &[3])),
        ("step".to_owned(), Array::from_int(7)),
    ];
    let path = folder.join("sound.safetensors");
    write(&path, tensors, &Metadata::from([("note".to_owned(), "text".to_owned())])).expect("writes");
    fs::read(path).expect("reads")
});

#[test]
fn a_file_that_is_cut_short_anywhere_is_refused() {
    let folder = Scratch::new();
    let sound = &*SOUND;
    for length in 0..sound.len() {
        folder.file("cut.safetensors", &sound[..length]);
        refused(&folder, "cut.safetensors");
    }
    folder.file("cut.safetensors", sound);
    Tensors::open(folder.join("cut.safetensors")).expect("the whole is sound");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Where it opens all the same, every tensor can be read, and the reference implementation reads the same.
    #[test]
    fn a_file_with_other_bytes_is_refused_or_sound(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in any::<prop::sample::Index>(),
        cut in prop::bool::weighted(0.2),
    ) {
        let folder = Scratch::new();
        let mut bytes = SOUND.clone();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        match Tensors::open(folder.file("changed.safetensors", &bytes)) {
            Err(error) => prop_assert!(matches!(error, Error::Checkpoint { .. }), "{}", error),
            Ok(tensors) => {
                let reference = SafeTensors::deserialize(&bytes);
                let reference = reference.map_err(|error| TestCaseError::fail(format!("the reference: {error}")))?;
                for name in tensors.names() {
                    let theirs = reference.tensor(name).map_err(|error| TestCaseError::fail(error.to_string()))?;
                    prop_assert_eq!(theirs.data(), tensors.bytes(name)?);
                    match tensors.get(name) {
                        Ok(array) => prop_assert_eq!(array.nbytes(), theirs.data().len()),
                        Err(error) => prop_assert!(error.to_string().contains("a BOOL is 0 or 1"), "{}", error),
                    }
                }
            }
        }
    }
}
