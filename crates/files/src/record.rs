//! The record that a save of several files writes before it gives them their names: `.tacit-save.json`.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use tacit_core::{Error, Result};

use crate::disk;
use crate::leftovers::boot_of;
use crate::staged::BEGIN;

pub(crate) const RECORD: &str = ".tacit-save.json";

const VERSION: u32 = 1;

/// Which hidden files get which names, and which files go.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(expecting = "what a save wrote")]
pub(crate) struct Record {
    version: u32,
    pub(crate) files: Vec<Moved>,
    pub(crate) removed: Vec<Removed>,
}

/// A file that gets its name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Whether the one that has the name is away while the others get theirs.
    pub(crate) last: bool,
    #[serde(flatten)]
    pub(crate) identity: Identity,
}

/// A file that goes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Removed {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) identity: Identity,
}

/// What a file is known by: no copy of it has the same number.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    inode: u64,
    bytes: u64,
    /// The time of its last change, in seconds and nanoseconds.
    modified: (i64, i64),
}

impl Identity {
    pub(crate) fn from_metadata(own: &Metadata) -> Self {
        Self { inode: own.ino(), bytes: own.len(), modified: (own.mtime(), own.mtime_nsec()) }
    }

    /// Whether this is the very file.
    fn is(&self, own: &Metadata) -> bool {
        own.is_file() && Self::from_metadata(own) == *self
    }

    /// Whether this may be the file or a copy of it.
    fn is_like(&self, own: &Metadata) -> bool {
        own.is_file() && own.len() == self.bytes
    }

    /// Whether the very file has this name.
    fn is_at(&self, folder: &Path, name: &str) -> bool {
        own(folder, name).is_some_and(|own| self.is(&own))
    }

    /// Whether the file, or a copy of it, has this name.
    pub(crate) fn is_like_at(&self, folder: &Path, name: &str) -> bool {
        own(folder, name).is_some_and(|own| self.is_like(&own))
    }
}

/// What has a name in a folder, links not followed.
pub(crate) fn own(folder: &Path, name: &str) -> Option<Metadata> {
    fs::symlink_metadata(folder.join(name)).ok()
}

/// Whether the system lets a user replace or remove a file of a folder that the user may write to: in one that everybody shares,
/// such as `/tmp`, each file is its owner's.
pub(crate) fn may_replace(user: u32, folder: &Metadata, file: &Metadata) -> bool {
    const STICKY: u32 = 0o1000;
    const ROOT: u32 = 0;
    folder.mode() & STICKY == 0 || [ROOT, folder.uid(), file.uid()].contains(&user)
}

impl Record {
    pub(crate) fn new(files: Vec<Moved>, removed: Vec<Removed>) -> Self {
        Self { version: VERSION, files, removed }
    }

    /// The record of a save in this folder that has not come to its end; none in almost all folders, and none where it names
    /// files that its owner may not replace, and whoever finished it might.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join(RECORD);
        // A pipe to which nobody writes would be waited for.
        let read = |own: Metadata| {
            if !own.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
            }
            Ok((own.uid(), fs::read(&file)?))
        };
        let (owner, text) = match fs::symlink_metadata(&file).and_then(read) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            text => text.map_err(Error::file("read", &file))?,
        };
        let help = "remove it if no save of Tacit's was interrupted here";
        let wrong = |reason: String| Error::checkpoint(&file, None, reason, help);
        let record: Self =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("it is no record of a save: {error}")))?;
        if record.version != VERSION {
            let reason =
                format!("it has version {} of records of saves, and this program reads {VERSION}", record.version);
            return Err(Error::checkpoint(&file, None, reason, "use a newer Tacit"));
        }
        let strange = record.files.iter().filter(|moved| boot_of(&moved.from).is_none() || !is_plain(&moved.to));
        let removed = record.removed.iter().map(|removed| &removed.name).filter(|name| !is_plain(name));
        match strange.map(|moved| &moved.to).chain(removed).next() {
            Some(name) => Err(wrong(format!("it names {name:?}, which no save does"))),
            None => Ok(Some(record).filter(|record| record.is_owned(owner, folder))),
        }
    }

    /// Whether its owner may do what it says.
    fn is_owned(&self, owner: u32, folder: &Path) -> bool {
        let moved = self.files.iter().flat_map(|moved| [&moved.from, &moved.to]);
        let mut names = moved.chain(self.removed.iter().map(|removed| &removed.name));
        let may =
            |shared: Metadata| names.all(|name| own(folder, name).is_none_or(|own| may_replace(owner, &shared, &own)));
        fs::metadata(folder).is_ok_and(may)
    }

    /// Whether what the save began can be finished: nothing is left to be done; all files are the very ones that it wrote; or
    /// all have their names, and only old ones are left to go.
    ///
    /// In a copy of the folder none is the very one, and of what somebody has changed on its way nobody knows what belongs
    /// together.
    pub(crate) fn is_of(&self, folder: &Path) -> bool {
        let placed = self.files.iter().all(|moved| own(folder, &moved.from).is_none());
        let gone = self.removed.iter().all(|removed| own(folder, &removed.name).is_none());
        placed && (gone || self.files.iter().any(|moved| moved.identity.is_at(folder, &moved.to)))
            || self.files.iter().all(|moved| at(folder, moved).is_some_and(|own| moved.identity.is(&own)))
    }

    /// Whether what is on its way goes together with what has its name: each file is in one of its two places, in a copy of
    /// the folder as far as sizes tell.
    pub(crate) fn is_whole(&self, folder: &Path) -> bool {
        let is_own = |moved: &Moved| moved.identity.is_at(folder, &moved.from);
        let is = if self.files.iter().any(is_own) { Identity::is } else { Identity::is_like };
        self.files.iter().all(|moved| at(folder, moved).is_some_and(|own| is(&moved.identity, &own)))
    }

    /// Whether it says something of a file of this name.
    pub(crate) fn names(&self, name: &OsStr) -> bool {
        self.files.iter().any(|moved| *moved.to == *name) || self.removed.iter().any(|removed| *removed.name == *name)
    }

    /// The error of a save that can neither be finished nor be read.
    pub(crate) fn changed(folder: &Path) -> Error {
        let reason =
            "files of the save that it records are gone, or are others: this is a copy, or something changed them";
        let help = "open what is here and save it into another folder, or remove this file, and what is read is what the \
                    files are named";
        Error::checkpoint(&folder.join(RECORD), None, reason, help)
    }

    /// Gives the files their names, removes what goes, and the record last. What is done already is passed over.
    pub(crate) fn carry_out(&self, folder: &Path, synced: &fs::File) -> Result<()> {
        let failed = |action: &'static str, name: &str| {
            let path = folder.join(name);
            move |error| Error::File { action, path, source: error }
        };
        let waiting = |moved: &&Moved| own(folder, &moved.from).is_some();
        for moved in self.files.iter().filter(|moved| moved.last).filter(waiting) {
            disk::remove(&folder.join(&moved.to)).map_err(failed("replace", &moved.to))?;
        }
        for moved in self.files.iter().filter(waiting) {
            let (from, to) = (folder.join(&moved.from), folder.join(&moved.to));
            disk::rename(&from, &to).map_err(failed("write", &moved.to))?;
        }
        for Removed { name, identity } in &self.removed {
            // Whoever has put another file there since keeps it.
            if identity.is_at(folder, name) {
                disk::remove(&folder.join(name)).map_err(failed("remove", name))?;
            }
        }
        // The names are on the disk before what says them is gone.
        disk::sync(synced).map_err(failed("write", RECORD))?;
        disk::remove(&folder.join(RECORD)).map_err(failed("remove", RECORD))?;
        disk::sync(synced).map_err(failed("write", RECORD))
    }
}

/// Where a file is: on its way, or behind it.
fn at(folder: &Path, moved: &Moved) -> Option<Metadata> {
    own(folder, &moved.from).or_else(|| own(folder, &moved.to))
}

/// Whether a name is that of a file in the folder itself, and none of those that a save gives to what is on its way.
pub(crate) fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
        && !name.starts_with(BEGIN)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn in_a_folder_that_all_share_a_file_is_its_owner_s() {
        let folder = tempfile::tempdir().expect("makes a folder");
        fs::write(folder.path().join("a"), "ours").expect("writes");
        let file = own(folder.path(), "a").expect("is there");
        let may = |mode: u32| {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).expect("is ours");
            let folder = fs::metadata(folder.path()).expect("is there");
            [0, file.uid(), file.uid() + 1].map(|user| may_replace(user, &folder, &file))
        };
        assert_eq!((may(0o777), may(0o1777)), ([true; 3], [true, true, false]));
    }
}
