//! Values that are made one by one: what is kept of them, and when it is not.

use std::cell::Cell;
use std::fs;
use std::io::Write;
use std::path::Path;

use expect_test::expect;
use mlx_rs::{Array, random};
use tacit_arrays::Nf4Array;
use tacit_core::{Result, Value};
use tacit_io::{Resumable, Writing, load, save, sources};
use tacit_nn::Parameters;

use crate::scratch::Scratch;

fn packed(seed: u64) -> Result<(Value, f32)> {
    let dense = random::normal::<f32>(&[8, 64], None, None, &random::key(seed)?)?;
    Ok((Nf4Array::quantize(&dense, 64)?.into(), 0.1))
}

/// Makes so many values of as many that are wanted, and says how many of these were made now.
fn worked(work: &mut Resumable, recipe: &str, count: u64) -> Result<(Parameters, usize)> {
    let (made, calls) = (Cell::new(0), Parameters::new());
    let all = (0..count).try_fold(calls, |mut all, seed| {
        let (value, note) = work.value(&format!("{seed}.weight"), recipe, || {
            made.set(made.get() + 1);
            packed(seed)
        })?;
        assert_eq!(note.to_bits(), 0.1f32.to_bits());
        all.insert(format!("{seed}.weight"), value);
        Ok::<_, tacit_core::Error>(all)
    })?;
    Ok((all, made.get()))
}

fn input(folder: &Path, number: f32) -> std::path::PathBuf {
    let path = folder.join("in.safetensors");
    let parameters = [("bias".to_owned(), Array::from_slice(&[number; 3], &[3]).into())];
    save(&path, &Parameters::from(parameters)).expect("saves");
    path
}

#[test]
fn what_was_made_is_found_and_the_output_is_the_same_byte_by_byte() {
    let folder = Scratch::new();
    let (input, whole, parts) = (input(&folder, 1.0), folder.join("whole"), folder.join("parts"));
    let mut work = Resumable::open(&whole, [&input]).expect("begins");
    let (all, made) = worked(&mut work, "nf4:64", 4).expect("makes");
    assert_eq!((made, work.resumed()), (4, 0));
    work.finish(&all, Writing::default()).expect("writes");

    drop(worked(&mut Resumable::open(&parts, [&input]).expect("begins"), "nf4:64", 2).expect("makes"));
    assert!(!parts.exists(), "the output is not there until it is whole");
    let mut work = Resumable::open(&parts, [&input]).expect("goes on");
    let found = ["0.weight", "1.weight", "2.weight"].map(|path| work.made::<f32>(path, "nf4:64").is_some());
    assert_eq!((found, work.resumed()), ([true, true, false], 2));
    assert!(work.made::<f32>("0.weight", "nf4:32").is_none() && work.made::<String>("0.weight", "nf4:64").is_none());
    // Those that were asked for already count once, and those that are made here not at all.
    let (all, made) = worked(&mut work, "nf4:64", 4).expect("makes");
    assert_eq!((made, work.resumed()), (2, 2));
    assert!(work.made::<f32>("3.weight", "nf4:64").is_some());
    assert_eq!(work.resumed(), 2);
    let values = work.values().expect("reads");
    assert!(values.keys().eq(all.keys()));
    work.finish(values, Writing::default()).expect("writes");
    assert!(fs::read(&whole).unwrap() == fs::read(&parts).unwrap(), "the same bytes");
    assert_eq!(load(&parts).expect("loads").len(), 4);
    assert_eq!(folder.names(), ["in.safetensors", "parts", "whole"]);
}

#[test]
fn another_recipe_other_inputs_and_damage_are_made_anew() {
    let folder = Scratch::new();
    let (source, output) = (input(&folder, 1.0), folder.join("out"));
    let made = |recipe: &str| {
        let mut work = Resumable::open(&output, [&source]).expect("opens");
        worked(&mut work, recipe, 3).expect("makes").1
    };
    assert_eq!((made("nf4:64"), made("nf4:64"), made("nf4:32"), made("nf4:64")), (3, 0, 3, 0));
    // The values of each run lie in a file of their own, one behind the other.
    let segment = folder.join(".out.parts/0.segment");
    let mut bytes = fs::read(&segment).expect("values");
    bytes.pop();
    fs::write(&segment, &bytes).expect("cuts the last one");
    assert_eq!((made("nf4:64"), made("nf4:64")), (1, 0));
    bytes[..8].fill(u8::MAX);
    fs::write(&segment, &bytes).expect("damages the first one");
    assert_eq!((made("nf4:64"), made("nf4:64")), (1, 0));
    let stranger = folder.join(".out.parts/99.segment");
    fs::write(&stranger, "no value").expect("writes");
    assert_eq!(made("nf4:64"), 0);
    assert!(!stranger.exists());
    // Longer than before, whatever a clock says.
    save(&source, &Parameters::from([("bias".to_owned(), Array::from_slice(&[1f32; 99], &[99]).into())])).unwrap();
    assert_eq!((made("nf4:64"), made("nf4:32")), (3, 3));
}

#[test]
fn two_at_once_and_a_value_that_cannot_be_made_are_refused() {
    let folder = Scratch::new();
    let (input, output) = (input(&folder, 1.0), folder.join("out"));
    let mut first = Resumable::open(&output, [&input]).expect("begins");
    let second = Resumable::open(&output, [&input]).expect_err("somebody works here");
    expect![[r"
        FOLDER/out: it is being made already
        help: let the other program come to its end, or write to another place"]]
    .assert_eq(&folder.message(&second));
    let fails = || Err::<(Value, ()), _>(tacit_core::Error::invalid("no", "none"));
    assert!(first.value("a", "b", fails).is_err());
    assert_eq!(worked(&mut first, "nf4:64", 1).expect("makes").1, 1);
    drop(first);
    assert!(folder.join(".out.parts").exists(), "what was made is kept");
    let mut none = Resumable::open(folder.join("none"), [&input]).expect("begins");
    assert!(none.value("a", "b", fails).is_err());
    drop(none);
    assert_eq!(folder.names(), [".out.parts", "in.safetensors"]);
    assert!(Resumable::open(&output, [folder.join("nothing")]).is_err());
    assert!(Resumable::open(folder.join("no/folder/out"), [&input]).is_err());
    assert!(!output.exists());
}

#[test]
fn what_an_older_version_began_is_refused() {
    let folder = Scratch::new();
    let (input, parts) = (input(&folder, 1.0), folder.join(".out.parts"));
    fs::create_dir(&parts).expect("makes");
    fs::write(parts.join("inputs"), "").expect("writes");
    let refused = Resumable::open(folder.join("out"), [&input]).expect_err("is another layout");
    expect![[r"
        FOLDER/.out.parts: an older version of Tacit began the work there
        help: let that version finish it, or remove the folder to begin anew"]]
    .assert_eq(&folder.message(&refused));
    assert_eq!(fs::read_dir(parts).expect("reads").count(), 1, "nothing of it changes");
}

#[test]
fn a_stream_is_given_the_values_that_are_held() {
    let folder = Scratch::new();
    let mut work = Resumable::open("/dev/null", [input(&folder, 1.0)]).expect("begins");
    let (all, _) = worked(&mut work, "nf4:64", 3).expect("makes");
    let values = work.values().expect("are held");
    assert!(work.folder().is_none() && values.keys().eq(all.keys()));
    work.finish(values, Writing::default()).expect("writes");
    assert_eq!(folder.names(), ["in.safetensors"]);
}

/// All parts of a GGUF file count, and a folder in which there is nothing else.
#[test]
fn a_model_in_gguf_files_that_changed_is_another_input() {
    let folder = Scratch::new();
    let models = folder.join("model");
    fs::create_dir(&models).expect("makes");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf/types.gguf");
    let parts = [1, 2].map(|part| models.join(format!("m-0000{part}-of-00002.gguf")));
    for part in &parts {
        fs::copy(&golden, part).expect("copies");
    }
    for (at, input) in [&parts[0], &parts[1], &models].into_iter().enumerate() {
        assert_eq!(sources(input).expect("finds"), parts);
        let made = || {
            worked(&mut Resumable::open(folder.join(at.to_string()), [input]).expect("begins"), "nf4:64", 2)
                .expect("makes")
                .1
        };
        assert_eq!((made(), made()), (2, 0));
        // Longer, as another file of the same age may be.
        let longer = [fs::read(&parts[1]).expect("reads"), vec![0]].concat();
        fs::write(&parts[1], longer).expect("writes");
        assert_eq!(made(), 2);
    }
}

/// JSON has no number for it, so that what would be read again is nothing.
#[test]
fn a_note_that_is_not_finite_is_refused_before_it_is_kept() -> Result<()> {
    let folder = Scratch::new();
    let input = input(&folder.join(""), 1.0);
    let output = folder.join("made.safetensors");
    let mut work = Resumable::open(&output, [&input])?;
    let refused = work.value("w", "recipe", || Ok((packed(1)?.0, f32::INFINITY))).expect_err("is refused");
    expect![[r#"
        the note of w cannot be read again: invalid type: null, expected f32 at line 1 column 4
        help: make it a note that JSON has, of finite numbers"#]]
    .assert_eq(&refused.to_string());
    // It goes on with a note that it can.
    let (_, note) = work.value("w", "recipe", || Ok((packed(1)?.0, 0.5)))?;
    assert_eq!((note, work.resumed()), (0.5, 0));
    Ok(())
}

#[test]
fn a_value_that_became_another_one_is_told() {
    let folder = Scratch::new();
    let (input, output) = (input(&folder, 1.0), folder.join("out"));
    let mut work = Resumable::open(&output, [&input]).expect("begins");
    worked(&mut work, "nf4:64", 1).expect("makes");
    let segment = folder.join(".out.parts/0.segment");
    let mut bytes = fs::read(&segment).expect("reads");
    let named = bytes.windows(8).enumerate().filter(|(_, text)| *text == b"0.weight");
    let named: Vec<usize> = named.map(|(at, _)| at).collect();
    for at in named {
        bytes[at] = b'9';
    }
    // In its place: the program has the file mapped.
    let mut file = fs::File::options().write(true).open(&segment).expect("opens");
    file.write_all(&bytes).expect("writes");
    expect![[r#"
        FOLDER/.out.parts/0.segment: 0.weight: it is not there
        help: remove the file, and its values are made again"#]]
    .assert_eq(&folder.message(&work.values().expect_err("has another name")));
}
