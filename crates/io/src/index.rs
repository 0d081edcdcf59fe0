//! Which files a checkpoint is made of: one, those that an index names, or what a folder holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use tacit_core::{Error, Result};
use tacit_files::{Current, current, folder_of};

use crate::header::Unique;

/// How the name of an index ends.
pub(crate) const INDEX: &str = ".safetensors.index.json";

/// How the name of a file of tensors ends.
pub(crate) const TENSORS: &str = ".safetensors";

/// The folder of Hugging Face's cache in which the content of files is.
const BLOBS: &str = "blobs";

pub(crate) struct Files {
    /// The file or the index that was opened.
    pub(crate) path: PathBuf,
    /// The files with tensors, by their names.
    pub(crate) parts: Vec<PathBuf>,
    /// The file of each tensor, as an index says.
    pub(crate) index: Option<BTreeMap<String, PathBuf>>,
    /// What the index says besides, in words.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Where they are, if a save that was killed left them on their way.
    pub(crate) current: Current,
}

/// An index in JSON, as Hugging Face writes it.
#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    metadata: Option<Unique<serde_json::Value>>,
    weight_map: Unique<String>,
}

impl Files {
    /// The files that `path` means: a file, an index or a folder.
    pub(crate) fn find(path: &Path) -> Result<Self> {
        if path.is_dir() {
            let current = Current::read(path)?;
            return Self::from_current(&in_folder(path, &current)?, current);
        }
        Self::from_current(path, Current::read(folder_of(path))?)
    }

    fn from_current(path: &Path, current: Current) -> Result<Self> {
        fs::metadata(current.path(path)).map_err(Error::file("open", path))?;
        if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(INDEX)) {
            return Self::of_index(path, current);
        }
        let parts = vec![path.to_owned()];
        Ok(Self { path: path.to_owned(), parts, index: None, metadata: BTreeMap::new(), current })
    }

    fn of_index(path: &Path, current: Current) -> Result<Self> {
        let wrong = |key: Option<&str>, reason: String, help: &str| Error::checkpoint(path, key, reason, help);
        let text = fs::read(current.path(path)).map_err(Error::file("read", path))?;
        let index: Index = serde_json::from_slice(&text)
            .map_err(|error| wrong(None, format!("it is no index: {error}"), "fetch or write it again"))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut known: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut of = BTreeMap::new();
        for (key, name) in index.weight_map.0 {
            let file = match known.get(&name) {
                Some(file) => file.clone(),
                None => within(folder, &name, &current).map_err(|reason| {
                    wrong(Some(&key), reason, "an index names files of its own folder: open such a file by itself")
                })?,
            };
            known.insert(name, file.clone());
            of.insert(key, file);
        }
        let text = |value| if let serde_json::Value::String(text) = value { text } else { value.to_string() };
        let metadata = index.metadata.map(|metadata| metadata.0).unwrap_or_default();
        Ok(Self {
            path: path.to_owned(),
            parts: known.into_values().collect(),
            index: Some(of),
            metadata: metadata.into_iter().map(|(key, value)| (key, text(value))).collect(),
            current,
        })
    }
}

/// The file that an index means by a name, which must be in the index's folder, links followed.
fn within(folder: &Path, name: &str, current: &Current) -> Result<PathBuf, String> {
    let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !plain {
        return Err(format!("its file {name:?} is not in the folder of the index"));
    }
    let file = folder.join(name);
    let real = |path: &Path| fs::canonicalize(path).map_err(|error| format!("its file {name:?} is not there: {error}"));
    let (target, folder) =
        (real(&current.path(&file))?, real(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })?);
    // The files of a snapshot in Hugging Face's cache really are in `blobs`, beside `snapshots`, or in those that all models share.
    let model = folder.ancestors().skip(1).find(|above| above.ends_with("snapshots")).and_then(Path::parent);
    let shared = model.and_then(Path::parent).map(|cache| cache.join(BLOBS));
    let shared = shared.filter(|blobs| blobs.join(".huggingface-shared-blobs").is_file());
    let mut blobs = model.map(|model| model.join(BLOBS)).into_iter().chain(shared);
    if target.starts_with(&folder) || blobs.any(|blobs| target.starts_with(blobs)) {
        Ok(file)
    } else {
        Err(format!("its file {name:?} is a link out of the folder of the index"))
    }
}

/// The names that an index has for files, which may be any; none where it cannot be read.
pub(crate) fn named(index: &Path) -> Option<BTreeSet<String>> {
    let text = fs::read(current(index).ok()?).ok()?;
    let index: Index = serde_json::from_slice(&text).ok()?;
    Some(index.weight_map.0.into_values().collect())
}

/// The file or the index of a folder: the one that Hugging Face's libraries take, or the only one.
fn in_folder(folder: &Path, current: &Current) -> Result<PathBuf> {
    let names = current.names()?;
    let ending = |end: &str| names.iter().filter(|name| name.ends_with(end)).collect::<Vec<_>>();
    let (files, indexes) = (ending(TENSORS), ending(INDEX));
    let usual = ["model.safetensors", "model.safetensors.index.json"];
    let name = usual.iter().find(|usual| names.iter().any(|name| name == *usual)).copied();
    let name = name.or(match (&*indexes, &*files) {
        ([index], _) => Some(index.as_str()),
        ([], [file]) => Some(file.as_str()),
        _ => None,
    });
    name.map(|name| folder.join(name)).ok_or_else(|| {
        let names: Vec<&str> = indexes.iter().chain(&files).map(|name| name.as_str()).collect();
        let (reason, help) = if names.is_empty() {
            ("no file of the folder ends in .safetensors".to_owned(), "open another folder")
        } else {
            (format!("the folder has {}, and none of them is its model", names.join(", ")), "open one of them")
        };
        Error::checkpoint(folder, None, reason, help)
    })
}
