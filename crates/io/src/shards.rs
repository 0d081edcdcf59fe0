//! The files of a checkpoint of several: what they are called, and which of an old one go.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use tacit_files::{Current, folder_of};

use crate::index::{INDEX, TENSORS, named};

/// The files that are saved as `stem.safetensors`.
#[derive(Clone, Copy)]
pub(crate) struct Family<'f> {
    pub(crate) folder: &'f Path,
    pub(crate) stem: &'f str,
}

/// What an old index says.
#[derive(Default)]
pub(crate) struct Old {
    pub(crate) is_there: bool,
    /// All that it names.
    named: BTreeSet<String>,
    /// The files of the family that it alone names.
    pub(crate) shards: Vec<String>,
}

impl Old {
    pub(crate) fn names(&self, name: &str) -> bool {
        self.named.contains(name)
    }
}

impl Family<'_> {
    pub(crate) fn index(self) -> String {
        format!("{}{INDEX}", self.stem)
    }

    /// Names for so many files, none of which is taken.
    pub(crate) fn free_names(self, count: usize) -> Vec<String> {
        let names = |save| -> Vec<String> {
            let name = |part| format!("{}-{part:05}-of-{count:05}{TENSORS}", prefix(self.stem, save));
            (1..=count).map(name).collect()
        };
        let taken = |name: &String| fs::symlink_metadata(self.folder.join(name)).is_ok();
        let mut save = 1;
        while names(save).iter().any(taken) {
            save += 1;
        }
        names(save)
    }

    /// What the index that is there says, and which files it leaves behind.
    ///
    /// An index may have been downloaded, and names what it likes. So a file is left behind only if it is in the index's own
    /// folder, has the name that a save of this family gives, and no other index names it.
    pub(crate) fn old(self) -> Old {
        let index = self.index();
        let is_there = fs::symlink_metadata(self.folder.join(&index)).is_ok();
        let Some(indexed) = named(&self.folder.join(&index)).filter(|_| is_there) else {
            return Old { is_there, ..Old::default() };
        };
        let mut others = BTreeSet::new();
        for other in Current::read(self.folder).and_then(|current| current.names()).unwrap_or_default() {
            if other.ends_with(INDEX) && other != index {
                match named(&self.folder.join(other)) {
                    Some(names) => others.extend(names),
                    // Nobody knows what it names.
                    None => return Old { is_there, named: indexed, shards: Vec::new() },
                }
            }
        }
        let is_file =
            |name: &&String| fs::symlink_metadata(self.folder.join(name)).is_ok_and(|metadata| metadata.is_file());
        let ours = indexed.iter().filter(|name| save_of(name, self.stem).is_some() && !others.contains(*name));
        let shards = ours.filter(is_file).cloned().collect();
        Old { is_there, named: indexed, shards }
    }
}

/// What is there of an old checkpoint that a save at `path`, in one file or in several, replaces or removes.
///
/// ```
/// let nothing = tacit_io::replaced(std::env::temp_dir().join("tacit-no-such-file.safetensors"));
/// assert!(nothing.is_empty());
/// ```
#[must_use]
pub fn replaced(path: impl AsRef<Path>) -> Vec<PathBuf> {
    let path = path.as_ref();
    let mut files = vec![path.to_owned()];
    // Indexes have names in UTF-8.
    if let Some(stem) = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_suffix(TENSORS)) {
        let family = Family { folder: folder_of(path), stem };
        let names = std::iter::once(family.index()).chain(family.old().shards);
        files.extend(names.map(|name| path.with_file_name(name)));
    }
    files.retain(|file| fs::symlink_metadata(file).is_ok());
    files
}

/// The name of the files of a save: the first takes Hugging Face's names, a later one a number.
fn prefix(stem: &str, save: usize) -> String {
    if save == 1 { stem.to_owned() } else { format!("{stem}.{save}") }
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
        rest => {
            let save = rest.strip_prefix('.').filter(|save| save.bytes().all(|digit| digit.is_ascii_digit()));
            save?.parse().ok().filter(|&save| save > 1)
        }
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
        for other in [
            "model",
            "model-1-of-2",
            "model.x-00001-of-00002",
            "models-00001-of-00002",
            "model.1-00001-of-00002",
            "model.+2-00001-of-00002",
            "sub/model-00001-of-00002",
            "../model-00001-of-00002",
        ] {
            assert_eq!(save(other), None, "{other}");
        }
    }
}
