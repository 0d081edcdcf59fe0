//! Gives files their names, all or none.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tacit_core::{Error, Result};

use crate::disk;
use crate::leftovers;
use crate::lock::Locked;
use crate::place::Place;
use crate::record::{Identity, Moved, RECORD, Record, Removed, is_plain, may_replace, own};
use crate::staged::{Staged, committing};

/// The files that a save puts into a folder at once, and those that go then.
///
/// From its beginning to its end no other save changes the folder, so it is begun when everything is written:
///
/// ```
/// use std::io::Write;
/// use std::path::Path;
/// use tacit_files::{Commit, Staged};
///
/// # fn main() -> tacit_core::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("tacit-commit-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let place = folder.join("model.safetensors");
/// let mut tensors = Staged::beside(&place)?;
/// tensors.write_all(b"..").unwrap();
/// let mut commit = Commit::begin(&folder)?;
/// commit.place(tensors, "model.safetensors")?;
/// commit.place_last("config.json", b"{}")?;
/// commit.finish()?;
/// assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), b"{}");
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Commit {
    folder: PathBuf,
    locked: Locked,
    /// The record of a save that cannot be finished here.
    unfinished: Option<Record>,
    files: Vec<Placed>,
    removed: Vec<String>,
}

#[derive(Debug)]
struct Placed {
    staged: Staged,
    name: OsString,
    last: bool,
}

impl Commit {
    /// Begins: finishes what a save that was killed began in this folder, and clears away what dead ones left on their way.
    ///
    /// # Errors
    ///
    /// The folder cannot be read, another save holds it for long, or it holds a record of a save that cannot be read.
    pub fn begin(folder: &Path) -> Result<Self> {
        let commit = Self::in_cleared(folder)?;
        // What an unfinished save has on its way looks like what a dead one left.
        if commit.unfinished.is_none() {
            leftovers::clear(folder);
        }
        Ok(commit)
    }

    /// The same in a folder where nobody looks for what dead saves left.
    pub(crate) fn in_cleared(folder: &Path) -> Result<Self> {
        let locked = Locked::folder(folder)?;
        let unfinished = match Record::read(folder)? {
            Some(record) if record.is_of(folder) => {
                let _committing = committing();
                record.carry_out(folder, &locked.0)?;
                None
            }
            unfinished => unfinished,
        };
        Ok(Self { folder: folder.to_owned(), locked, unfinished, files: Vec::new(), removed: Vec::new() })
    }

    /// Gives a file this name in the folder.
    ///
    /// # Errors
    ///
    /// What has the name is no regular file; the file is gone, or in another folder; or an interrupted save names it that cannot
    /// be finished, because the folder is a copy or was changed.
    pub fn place(&mut self, staged: Staged, name: impl AsRef<OsStr>) -> Result<()> {
        self.add(staged, name.as_ref(), false)
    }

    /// A file with this content under this name, which is given last.
    ///
    /// It is one without which other programs read nothing, such as a configuration: while the other files change, there is
    /// none, so that nobody takes the new ones for what an old configuration says.
    ///
    /// # Errors
    ///
    /// It cannot be written, or as for [`place`](Self::place).
    pub fn place_last(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let staged = self.written(name, content)?;
        self.add(staged, name.as_ref(), true)
    }

    /// A file with this content under this name.
    ///
    /// # Errors
    ///
    /// As for [`place_last`](Self::place_last).
    pub fn place_content(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let staged = self.written(name, content)?;
        self.add(staged, name.as_ref(), false)
    }

    /// Removes a file when everything new is in its place.
    pub fn remove(&mut self, name: &str) {
        if is_plain(name) && !self.removed.iter().any(|other| other == name) {
            self.removed.push(name.to_owned());
        }
    }

    fn written(&self, name: &str, content: &[u8]) -> Result<Staged> {
        let place = self.folder.join(name);
        let mut staged = Staged::beside(&place)?;
        staged.write_all(content).map_err(Error::file("write", &place))?;
        Ok(staged)
    }

    fn add(&mut self, mut staged: Staged, name: &OsStr, last: bool) -> Result<()> {
        let place = self.folder.join(name);
        Place::of_file(&place)?;
        if self.unfinished.as_ref().is_some_and(|record| record.names(name)) {
            return Err(Record::changed(&self.folder));
        }
        // Its name is one that no other file has.
        if !staged.path().file_name().is_some_and(|name| disk::is_file_at(&staged.file, &self.folder.join(name))) {
            let reason = "what was written for it is gone, or in another folder";
            return Err(Error::checkpoint(&place, None, reason, "save it again, and let nothing remove hidden files"));
        }
        let failed = |error| Error::file("write", &place)(error);
        if let Ok(old) = fs::symlink_metadata(&place) {
            let new = staged.file.metadata().map_err(failed)?;
            // Later it would fail in the middle.
            if !may_replace(new.uid(), &self.locked.0.metadata().map_err(failed)?, &old) {
                return Err(failed(ErrorKind::PermissionDenied.into()));
            }
            // What only its owner may read stays so.
            if new.permissions() != old.permissions() {
                disk::step().and_then(|()| staged.file.set_permissions(old.permissions())).map_err(failed)?;
                staged.synced = false;
            }
        }
        if !staged.synced {
            staged.sync().map_err(failed)?;
        }
        self.files.push(Placed { staged, name: name.to_owned(), last });
        Ok(())
    }

    /// Puts the files in their places: when this returns they are on the disk, whatever happens then.
    ///
    /// # Errors
    ///
    /// The system refuses it. The folder then holds the old files, or the new ones for whoever reads through
    /// [`Current`](crate::Current), and the next save there finishes this one. Or there is an interrupted save that cannot be
    /// finished, and these are several files.
    pub fn finish(mut self) -> Result<()> {
        let _committing = committing();
        let removed = self.removed.iter().filter(|name| !self.files.iter().any(|placed| placed.name == ***name));
        let removed = removed.filter_map(|name| {
            let own = own(&self.folder, name).filter(Metadata::is_file)?;
            Some(Removed { name: name.clone(), identity: Identity::from_metadata(&own) })
        });
        let removed: Vec<Removed> = removed.collect();
        match &mut self.files[..] {
            [] if removed.is_empty() => return Ok(()),
            [placed] if removed.is_empty() => {
                let place = self.folder.join(&placed.name);
                disk::rename(placed.staged.path(), &place).map_err(Error::file("write", &place))?;
                placed.staged.keep();
                return disk::sync(&self.locked.0).map_err(Error::file("write", &place));
            }
            // There is one record in a folder.
            _ if self.unfinished.is_some() => return Err(Record::changed(&self.folder)),
            _ => {}
        }
        let path = self.folder.join(RECORD);
        let failed = |error| Error::file("write", &path)(error);
        let mut moved = Vec::new();
        for Placed { staged, name, last } in &self.files {
            let own = staged.file.metadata().map_err(failed)?;
            let from = staged.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
            // The record is text.
            let name = name.to_str().ok_or_else(|| failed(ErrorKind::InvalidFilename.into()))?;
            moved.push(Moved {
                from: from.to_owned(),
                to: name.to_owned(),
                last: *last,
                identity: Identity::from_metadata(&own),
            });
        }
        // Those that are away come back last.
        moved.sort_by_key(|moved| moved.last);
        let record = Record::new(moved, removed);
        let text = serde_json::to_vec(&record).map_err(|error| failed(error.into()))?;
        let mut staged = self.written(RECORD, &text)?;
        staged.sync().map_err(failed)?;
        // The hidden names too, before anything says them.
        disk::sync(&self.locked.0).map_err(failed)?;
        disk::rename(staged.path(), &path).map_err(failed)?;
        // From here on the save is made.
        staged.keep();
        for placed in &mut self.files {
            placed.staged.keep();
        }
        disk::sync(&self.locked.0).map_err(failed)?;
        record.carry_out(&self.folder, &self.locked.0)
    }
}
