//! Checkpoints of other libraries that are damaged: each is an error that names the file, the tensor and the reason.

mod adapters;
mod bitsandbytes_files;
mod mlx_lm_folders;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use mlx_rs::{Array, Dtype, ops};
use tacit_core::Result;
use tacit_io::{Tensors, bitsandbytes, hugging_face, mlx_lm, peft, write};
use tacit_nn::Parameters;

use crate::golden::golden;
use crate::scratch::Scratch;

/// What is done to a checkpoint: a name in words, and tensors that are gone or are others.
type Damage = (&'static str, Vec<(String, Option<Array>)>);

fn gone(name: &str) -> (String, Option<Array>) {
    (name.to_owned(), None)
}

fn is(name: &str, array: Array) -> (String, Option<Array>) {
    (name.to_owned(), Some(array))
}

fn zeros(dtype: Dtype, shape: &[i32]) -> Array {
    ops::zeros_dtype(shape, dtype).expect("zeros")
}

fn bytes(text: &str) -> Array {
    Array::from_slice(text.as_bytes(), &[text.len() as i32])
}

/// What a reader says of each damage to a file of a golden folder, one below the other.
fn table(golden: &str, file: &str, damages: Vec<Damage>, read: impl Fn(&Path) -> Result<Parameters>) -> String {
    let mut text = String::new();
    for (what, damage) in damages {
        let folder = copied(golden);
        // It would have to say the same tensors.
        let _ = fs::remove_file(folder.join("model.safetensors.index.json"));
        let path = folder.join(file);
        let tensors = Tensors::open(&path).expect("opens");
        let mut arrays: BTreeMap<String, Array> =
            tensors.names().map(|name| (name.to_owned(), tensors.get(name).expect("is there"))).collect();
        for (name, array) in damage {
            match array {
                Some(array) => drop(arrays.insert(name, array)),
                None => assert!(arrays.remove(&name).is_some(), "{name} is there"),
            }
        }
        write(&path, arrays.into_iter().collect(), tensors.metadata()).expect("writes");
        let error = read(&path).expect_err("refused");
        writeln!(text, "{what}:\n{}\n", folder.message(&error)).expect("writes");
    }
    text
}

/// A folder with a copy of each file of a golden one.
fn copied(name: &str) -> Scratch {
    let folder = Scratch::new();
    for entry in fs::read_dir(golden(name)).expect("reads") {
        let path = entry.expect("reads").path();
        fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("copies");
    }
    folder
}

/// The folder of a file.
fn of(file: &Path) -> &Path {
    file.parent().expect("a folder")
}

/// What a reader makes of a golden folder with some bytes of a file changed: an error or parameters, and never a panic.
fn flipped(
    golden: &str,
    file: &str,
    flips: &[(proptest::sample::Index, u8)],
    read: impl Fn(&Path) -> Result<Parameters>,
) {
    let folder = copied(golden);
    let path = folder.join(file);
    let mut bytes = fs::read(&path).expect("reads");
    for (at, to) in flips {
        let at = at.index(bytes.len());
        bytes[at] = *to;
    }
    fs::write(&path, bytes).expect("writes");
    if let Ok(parameters) = read(&path) {
        for value in parameters.values() {
            // Codes and scales are any bits now; what they stand for need not be finite, and is computed.
            let _ = value.dense().and_then(|array| Ok(array.eval()?));
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..proptest::test_runner::Config::with_cases(16) })]

    #[test]
    fn no_change_of_bytes_makes_a_reader_panic(
        flips in proptest::collection::vec(proptest::prelude::any::<(proptest::sample::Index, u8)>(), 1..4),
    ) {
        let model = hugging_face::read(golden("peft/base.safetensors")).expect("reads");
        flipped("bitsandbytes", "4bit.safetensors", &flips, |file| bitsandbytes::read(file));
        flipped("bitsandbytes", "int8.safetensors", &flips, |file| bitsandbytes::read(file));
        flipped("mlx_lm/mixed", "model.safetensors", &flips, |file| mlx_lm::read(of(file)));
        flipped("mlx_lm/mixed", "config.json", &flips, |file| mlx_lm::read(of(file)));
        flipped("peft/dora", "adapter_config.json", &flips, |file| peft::read(of(file), &model));
    }
}
