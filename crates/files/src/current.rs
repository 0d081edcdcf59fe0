//! The files of a folder, even if a save was killed before it gave all of them their names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tacit_core::{Error, Result};

use crate::folder_of;
use crate::record::{Moved, Record, Removed};

/// The files of a folder after the last save that was made there: those of a save whose program was killed while it gave them
/// their names are there under these.
#[derive(Debug, Default)]
pub struct Current {
    folder: PathBuf,
    /// Where files are that have not their names yet.
    moved: BTreeMap<String, String>,
    removed: BTreeSet<String>,
}

impl Current {
    /// Looks into a folder.
    ///
    /// # Errors
    ///
    /// It holds a record of a save that cannot be read, or of which some files are on their way and others are gone.
    pub fn read(folder: &Path) -> Result<Self> {
        match Record::read(folder)? {
            Some(record) => Self::by(record, folder),
            None => Ok(Self { folder: folder.to_owned(), ..Self::default() }),
        }
    }

    fn by(record: Record, folder: &Path) -> Result<Self> {
        let whole = record.is_whole(folder);
        let waits = |moved: &Moved| moved.identity.is_like_at(folder, &moved.from);
        let moved: BTreeMap<_, _> =
            record.files.into_iter().filter(waits).map(|moved| (moved.to, moved.from)).collect();
        if !whole && !moved.is_empty() {
            return Err(Record::changed(folder));
        }
        let removed = record.removed.into_iter().filter(|Removed { name, identity }| identity.is_like_at(folder, name));
        Ok(Self { folder: folder.to_owned(), moved, removed: removed.map(|removed| removed.name).collect() })
    }

    /// Where the content of a file is, which need not be in the folder.
    #[must_use]
    pub fn path(&self, file: &Path) -> PathBuf {
        let name = file.file_name().and_then(|name| name.to_str()).filter(|_| folder_of(file) == self.folder);
        match name.and_then(|name| self.moved.get(name)) {
            Some(from) => self.folder.join(from),
            None => file.to_owned(),
        }
    }

    /// Whether the save was to remove a file that is still there.
    fn is_removed(&self, file: &Path) -> bool {
        let name = file.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| !self.moved.contains_key(name) && self.removed.contains(name))
    }

    /// The names that are there, sorted; those of hidden files are left out.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names: BTreeSet<String> = self.moved.keys().cloned().collect();
        for entry in fs::read_dir(&self.folder).map_err(Error::file("read", &self.folder))? {
            let name = entry.map_err(Error::file("read", &self.folder))?.file_name().into_string();
            names.extend(name.ok().filter(|name| !name.starts_with('.')));
        }
        names.retain(|name| self.moved.contains_key(name) || !self.removed.contains(name));
        Ok(names.into_iter().collect())
    }
}

/// Where the content of a file is: at its place, but where a save that was killed left it on its way there.
///
/// # Errors
///
/// As for [`Current::read`].
pub fn current(file: &Path) -> Result<PathBuf> {
    Ok(recorded(file)?.map_or_else(|| file.to_owned(), |current| current.path(file)))
}

/// As [`current`] of a file that need not be there: none where there is none, and where a save that was killed was to remove it.
///
/// # Errors
///
/// As for [`current`], or the system does not tell whether it is there.
pub fn current_if_there(file: &Path) -> Result<Option<PathBuf>> {
    let recorded = recorded(file)?;
    if recorded.as_ref().is_some_and(|current| current.is_removed(file)) {
        return Ok(None);
    }
    let at = recorded.map_or_else(|| file.to_owned(), |current| current.path(file));
    Ok(at.try_exists().map_err(Error::file("read", file))?.then_some(at))
}

/// What the folder of a file holds, where a save that was killed says something of the file. One that nobody can finish says nothing
/// of the other files of its folder.
fn recorded(file: &Path) -> Result<Option<Current>> {
    let folder = folder_of(file);
    match (Record::read(folder)?, file.file_name()) {
        (Some(record), Some(name)) if record.names(name) => Current::by(record, folder).map(Some),
        _ => Ok(None),
    }
}
