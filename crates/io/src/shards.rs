//! Writes a checkpoint as several files under an index, of which there is a whole one at every moment.
//!
//! The files are written beside the old ones, under names of their own, and the new index takes the place of the old one when
//! they are all on the disk. While its own file is written, the index keeps other writers away.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use mlx_rs::Array;
use serde_json::{Map, Value as Json, json};
use tacit_core::{Error, Result};

use crate::atomic::Pending;
use crate::index::{Files, INDEX, TENSORS};
use crate::write::Writer;

impl Writer<'_, '_> {
    pub(crate) fn sharded(&mut self, path: &Path, tensors: Vec<(String, Array)>, limit: usize) -> Result<()> {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let stem = name.strip_suffix(TENSORS).ok_or_else(|| {
            let help = "give the place of a single file, such as model.safetensors";
            Error::checkpoint(path, None, "the name does not end in .safetensors", help)
        })?;
        let index = path.with_file_name(format!("{stem}{INDEX}"));
        let mut file = Pending::create(&index)?;
        let old = parts_of(&index);
        if let Some(old) = &old {
            remove(&leftovers(path, stem), old);
        }
        let old = old.unwrap_or_default();
        let mut groups = grouped(tensors, limit);
        if groups.len() <= 1 {
            self.whole(path, groups.pop().unwrap_or_default())?.commit()?;
            // The single file is what is opened from now on.
            let _ = fs::remove_file(&index);
            remove(&old, &BTreeSet::new());
            return Ok(());
        }
        let mut map = BTreeMap::new();
        let mut pending = Vec::new();
        let names = free_names(path, stem, groups.len());
        for (group, name) in groups.into_iter().zip(&names) {
            map.extend(group.iter().map(|(key, _)| (key.clone(), name.clone())));
            let place = path.with_file_name(name);
            pending.push((self.whole(&place, group)?, place));
        }
        let mut written = Written(BTreeSet::new());
        for (file, place) in pending {
            file.commit()?;
            written.0.insert(place);
        }
        let mut said: Map<String, Json> =
            self.metadata.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
        said.insert("total_size".to_owned(), self.total.into());
        let text = serde_json::to_vec_pretty(&json!({ "metadata": said, "weight_map": map }));
        text.map_err(Into::into).and_then(|text| file.write_all(&text)).map_err(Error::file("write", &index))?;
        file.commit()?;
        let written = std::mem::take(&mut written.0);
        // It would be taken before the index.
        let _ = fs::remove_file(path);
        remove(&old, &written);
        Ok(())
    }
}

/// Files of a checkpoint that is not complete: gone if it never is.
struct Written(BTreeSet<PathBuf>);

impl Drop for Written {
    fn drop(&mut self) {
        remove(&self.0, &BTreeSet::new());
    }
}

fn remove(files: &BTreeSet<PathBuf>, but: &BTreeSet<PathBuf>) {
    for file in files.difference(but) {
        let _ = fs::remove_file(file);
    }
}

/// The tensors in groups of at most `limit` bytes, or of one tensor that has more.
fn grouped(tensors: Vec<(String, Array)>, limit: usize) -> Vec<Vec<(String, Array)>> {
    let mut groups: Vec<Vec<(String, Array)>> = Vec::new();
    let mut bytes = 0;
    for (name, array) in tensors {
        bytes += array.nbytes();
        match groups.last_mut() {
            Some(group) if bytes <= limit => group.push((name, array)),
            _ => {
                bytes = array.nbytes();
                groups.push(vec![(name, array)]);
            }
        }
    }
    groups
}

/// The files that an index names; none where there is no index, and nothing is known where it cannot be read.
fn parts_of(index: &Path) -> Option<BTreeSet<PathBuf>> {
    if fs::symlink_metadata(index).is_err() {
        return Some(BTreeSet::new());
    }
    Files::find(index).ok().map(|files| files.parts.into_iter().collect())
}

/// The name of the files of a save: the first takes Hugging Face's names, a later one a number.
fn prefix(stem: &str, save: usize) -> String {
    if save == 1 { stem.to_owned() } else { format!("{stem}.{save}") }
}

/// Names for so many files, none of which is taken.
fn free_names(path: &Path, stem: &str, count: usize) -> Vec<String> {
    let names = |save| -> Vec<String> {
        let name = |part| format!("{}-{part:05}-of-{count:05}{TENSORS}", prefix(stem, save));
        (1..=count).map(name).collect()
    };
    let taken = |name: &String| fs::symlink_metadata(path.with_file_name(name)).is_ok();
    (1..).map(names).find(|names| !names.iter().any(taken)).unwrap_or_default()
}

/// What saves that were killed may have left: files that are not whole, and whole ones of a later save. Those of the first
/// have names that other programs give too.
fn leftovers(path: &Path, stem: &str) -> BTreeSet<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let left = |name: &str| match name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial")) {
        Some(name) => save_of(name, stem).is_some(),
        None => save_of(name, stem).is_some_and(|save| save > 1),
    };
    let ours = entries.filter(|entry| entry.file_name().to_str().is_some_and(left));
    ours.map(|entry| path.with_file_name(entry.file_name())).collect()
}

/// Which save of `stem` gave a file this name.
fn save_of(name: &str, stem: &str) -> Option<usize> {
    let (front, count) = name.strip_suffix(TENSORS)?.rsplit_once("-of-")?;
    let (front, part) = front.rsplit_once('-')?;
    let number = |digits: &str| digits.len() >= 5 && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !number(count) || !number(part) {
        return None;
    }
    match front.strip_prefix(stem)? {
        "" => Some(1),
        rest => rest.strip_prefix('.')?.parse().ok().filter(|&save| save > 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_which_save_gave_it() {
        let save = |name: &str| save_of(&format!("{name}.safetensors"), "model");
        assert_eq!(save("model-00001-of-00002"), Some(1));
        assert_eq!(save("model.7-00001-of-00002"), Some(7));
        for other in
            ["model", "model-1-of-2", "model.x-00001-of-00002", "models-00001-of-00002", "model.1-00001-of-00002"]
        {
            assert_eq!(save(other), None, "{other}");
        }
    }
}
