//! Folders that a writer may find.

use std::fs;
use std::path::{Path, PathBuf};

use mlx_rs::Array;
use tacit_io::{Metadata, Resumable, Writing, save_with, write, write_sharded};
use tacit_nn::Parameters;

use crate::golden::golden;
use crate::scratch::Scratch;

/// The folders of goldens that hold files of tensors.
pub(super) fn goldens() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![golden("")];
    while let Some(folder) = left.pop() {
        let entries: Vec<PathBuf> = fs::read_dir(&folder).expect("reads").flatten().map(|entry| entry.path()).collect();
        let ends =
            |file: &PathBuf| ["safetensors", "gguf"].iter().any(|end| file.extension().is_some_and(|own| own == *end));
        if entries.iter().any(ends) {
            found.push(folder);
        }
        left.extend(entries.into_iter().filter(|path| path.is_dir()));
    }
    found.sort();
    found
}

/// A copy of the files of a folder.
pub(super) fn copied(from: &Path) -> Scratch {
    let folder = Scratch::in_memory();
    fill(from, &folder);
    folder
}

fn fill(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("reads").flatten() {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            fs::create_dir(&to).expect("makes");
            fill(&path, &to);
        } else {
            fs::copy(&path, to).expect("copies");
        }
    }
}

fn two(numbers: [f32; 2]) -> Vec<(String, Array)> {
    ["a", "b"].into_iter().zip(numbers).map(|(name, number)| (name.to_owned(), Array::from_f32(number))).collect()
}

/// Checkpoints whose names begin alike, in two files each.
pub(super) fn neighbours() -> Scratch {
    let folder = Scratch::in_memory();
    for (number, stem) in
        ["model.2", "model-00001", "models", "model.2.2", "mod", "ckpt", "ckpt.100"].into_iter().enumerate()
    {
        let place = folder.join(format!("{stem}.safetensors"));
        write_sharded(place, two([number as f32, -1.0]), &Metadata::new(), 4).expect("writes");
    }
    write_sharded(folder.join("model.safetensors"), two([10.0, -1.0]), &Metadata::new(), 4).expect("writes");
    folder
}

/// The files of [`strange`] that nobody may touch, but for the shard.
pub(super) const MINE: [&str; 8] = [
    "thesis.txt",
    "sub/deep.txt",
    "sub/model-00001-of-00002.safetensors",
    "mine.safetensors",
    "model-00001-of-00002.safetensors",
    "model-1.safetensors",
    "ckpt-00001-of-00002.safetensors",
    "model.safetensors.txt",
];

/// A folder with an index that names what is not its own, and one of another checkpoint that names a shard as well.
pub(super) fn strange() -> Scratch {
    let folder = Scratch::in_memory();
    fs::create_dir(folder.join("sub")).expect("makes");
    for name in MINE {
        folder.file(name, "years of work");
    }
    folder.file("model-00002-of-00002.safetensors", "a shard that is left behind");
    let names = MINE.iter().copied().chain(["../x", "/etc/passwd", "", ".", "model-00002-of-00002.safetensors"]);
    let map: Vec<String> = names.enumerate().map(|(key, name)| format!("\"{key}\": {name:?}")).collect();
    folder.file("model.safetensors.index.json", format!("{{\"weight_map\": {{{}}}}}", map.join(", ")));
    let other = r#"{"weight_map": {"w": "model-00001-of-00002.safetensors"}}"#;
    folder.file("other.safetensors.index.json", other);
    folder
}

/// A folder of all that a writer of an adapter, or of a model in one file, replaces.
pub(super) fn saved_before() -> Scratch {
    let folder = Scratch::in_memory();
    for name in ["model.safetensors", "adapters.safetensors", "adapter_model.safetensors"] {
        write(folder.join(name), two([1.0, 2.0]), &Metadata::new()).expect("writes");
    }
    for name in ["config.json", "adapter_config.json"] {
        folder.file(name, "{\"old\": true}");
    }
    folder
}

/// A folder in which a run that makes values one by one was interrupted.
pub(super) fn half_made() -> Scratch {
    let folder = Scratch::in_memory();
    let old: Parameters = two([1.0, 2.0]).into_iter().map(|(name, array)| (name, array.into())).collect();
    save_with(folder.join("model.safetensors"), &old, Writing { shard: Some(4), progress: None }).expect("saves");
    let mut work = Resumable::open(folder.join("model.safetensors"), Vec::<&Path>::new()).expect("begins");
    work.value("a.weight", "another", || Ok((Array::from_f32(1.0).into(), ()))).expect("makes");
    folder
}
