//! What is said of files and runs that nothing else here meets.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use expect_test::expect;
use mlx_rs::ops;
use tacit_core::{Error, Result};
use tacit_io::{Metadata, ModelFile, Tensors, Training, Writing, save_with, torchao, write};
use tacit_nn::{ParameterFilter, Parameters};

use crate::models::dense;
use crate::scratch::Scratch;

/// The messages of errors, each behind its name.
fn said(folder: &Scratch, cases: impl IntoIterator<Item = (&'static str, Result<()>)>) -> String {
    let said = |(name, result): (&str, Result<()>)| format!("{name}: {}\n", folder.message(&result.expect_err(name)));
    cases.into_iter().map(said).collect()
}

/// Lets a file say something else of itself, under these keys.
fn says(folder: &Scratch, whole: &str, entries: &[(&str, &str)]) -> Result<PathBuf> {
    let tensors = Tensors::open(folder.join(whole))?;
    let arrays = tensors.names().map(|name| Ok((name.to_owned(), tensors.get(name)?))).collect::<Result<Vec<_>>>()?;
    let mut metadata = tensors.metadata().clone();
    metadata.extend(entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())));
    let path = folder.join("changed.safetensors");
    write(&path, arrays, &metadata)?;
    Ok(path)
}

#[test]
fn a_header_that_no_file_has_is_refused() -> Result<()> {
    const LENGTH: u64 = 100_000_001;
    let folder = Scratch::new();
    let path = folder.join("long.safetensors");
    // Without room on the disk for what it does not hold.
    let made = File::create(&path).and_then(|mut file| {
        file.write_all(&LENGTH.to_le_bytes())?;
        file.set_len(LENGTH + 8)
    });
    made.map_err(Error::file("write", &path))?;
    write(folder.join("empty.safetensors"), Vec::new(), &Metadata::new())?;
    let empty = Tensors::open(folder.join("empty.safetensors"))?;
    let cases = [("a long header", Tensors::open(&path).map(drop)), ("no tensor", empty.get("w").map(drop))];
    expect![[r#"
        a long header: FOLDER/long.safetensors: its header is to have 100000001 bytes, and 100000000 is the most
        help: the file is not as it was written: fetch or write it again
        no tensor: FOLDER/empty.safetensors: w: there is no such tensor
        help: there is none at all
    "#]]
    .assert_eq(&said(&folder, cases));
    Ok(())
}

#[test]
fn what_a_model_s_file_says_wrongly_of_itself() -> Result<()> {
    let folder = Scratch::new();
    let mut model = dense();
    model.save(folder.join("whole.safetensors"), ParameterFilter::All)?;
    let mut loaded = |entries: &[(&str, &str)]| model.load(says(&folder, "whole.safetensors", entries)?);
    let cases = [
        ("an unknown part", loaded(&[("tacit.part", "gradients")])),
        ("leaves without their kinds", loaded(&[("tacit.part", "leaves"), ("tacit.leaves", "[")])),
        ("no version", loaded(&[("tacit.version", "newest")])),
        ("no values", loaded(&[("tacit.values", "[]")])),
    ];
    expect![[r#"
        an unknown part: FOLDER/changed.safetensors: it has an unknown part of a model, "gradients"
        help: the file is not as it was written: fetch or write it again
        leaves without their kinds: FOLDER/changed.safetensors: what it says of its leaves cannot be read: EOF while parsing a list at line 1 column 1
        help: the file is not as it was written: fetch or write it again
        no version: FOLDER/changed.safetensors: its version is "newest"
        help: the file is not as it was written: fetch or write it again
        no values: FOLDER/changed.safetensors: it does not say which values it holds: invalid type: sequence, expected a map at line 1 column 0
        help: the file is not as it was written: fetch or write it again
    "#]].assert_eq(&said(&folder, cases));
    Ok(())
}

#[test]
fn what_is_wrong_with_a_run_is_named() -> Result<()> {
    let folder = Scratch::new();
    let with = |state: &str| {
        let mut run = Training::new(3);
        run.states.insert(state.to_owned(), BTreeMap::new());
        run
    };
    Training::new(3).save(folder.join("run.safetensors"))?;
    let damaged = says(&folder, "run.safetensors", &[("tacit.training", r#"{"step": -1}"#)])?;
    let cases = [
        ("a damaged state", Training::load(damaged).map(drop)),
        ("no key", with("random").random().map(drop)),
        ("no random state", Training::new(3).random().map(drop)),
        ("no random state among others", with("notes").random().map(drop)),
        ("no model", Training::new(3).restore_model(&mut dense())),
        ("a state named as the values", with("model").save(folder.join("no.safetensors"))),
        ("a state named as the moments", with("moments").save(folder.join("no.safetensors"))),
    ];
    expect![[r#"
        a damaged state: FOLDER/changed.safetensors: its state of a training run cannot be read: invalid value: integer `-1`, expected u64 at line 1 column 11
        help: the file is not as it was written: fetch or write it again
        no key: the random state has no key
        help: save it with `Training::with_random`
        no random state: the run was saved without its random state
        help: add it by `Training::with_random` before the run is saved; the states that were saved: none at all
        no random state among others: the run was saved without its random state
        help: add it by `Training::with_random` before the run is saved; the states that were saved: notes
        no model: no model was saved with the run
        help: save it with `Training::with_model`
        a state named as the values: a state is named model, as the values are
        help: give it another name
        a state named as the moments: a state is named moments, as the moments are
        help: give it another name
    "#]].assert_eq(&said(&folder, cases));
    Ok(())
}

#[test]
fn several_files_have_a_name_that_an_index_can_say() -> Result<()> {
    let folder = Scratch::new();
    let parameters = Parameters::from([("w".to_owned(), ops::ones::<f32>(&[8])?.into())]);
    let writing = Writing { shard: Some(16), ..Writing::default() };
    let cases = [("another ending", save_with(folder.join("model.bin"), &parameters, writing))];
    expect![[r#"
        another ending: FOLDER/model.bin: the name does not end in .safetensors
        help: give the place of a single file, such as model.safetensors
    "#]]
    .assert_eq(&said(&folder, cases));
    assert!(folder.names().is_empty());
    Ok(())
}

#[test]
fn metadata_that_are_not_torchao_s() -> Result<()> {
    let folder = Scratch::new();
    let path = folder.join("model.safetensors");
    let read = |entries: &[(&str, &str)]| {
        let metadata: Metadata = entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        write(&path, Vec::new(), &metadata)?;
        torchao::read(&path).map(drop)
    };
    let named = ("tensor_names", r#"["a.weight"]"#);
    let cases = [
        ("no names", read(&[])),
        ("nothing of a tensor", read(&[named])),
        ("a number for the fields", read(&[named, ("a.weight", r#"{"_type": "Int4Tensor", "_data": 3}"#)])),
        ("no blocks", read(&[named, ("a.weight", r#"{"_type": "NF4Tensor", "_data": {"shape": [4]}}"#)])),
    ];
    expect![[r#"
        no names: FOLDER/model.safetensors: tensor_names: the file's metadata do not have it, as torchao's do
        help: the tensors and the file's metadata do not fit: write the file again
        nothing of a tensor: FOLDER/model.safetensors: a.weight: the file's metadata do not have it, as torchao's do
        help: the tensors and the file's metadata do not fit: write the file again
        a number for the fields: FOLDER/model.safetensors: a.weight: the file's metadata of it are not torchao's: invalid type: integer `3`, expected static fields at line 1 column 34
        help: the tensors and the file's metadata do not fit: write the file again
        no blocks: FOLDER/model.safetensors: a.weight: its metadata have no shape, block_size and scaler_block_size of whole numbers
        help: the tensors and the file's metadata do not fit: write the file again
    "#]].assert_eq(&said(&folder, cases));
    Ok(())
}
