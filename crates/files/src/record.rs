//! What a save of several files writes before it gives them their names: `.tacit-save.json`.

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
    pub(crate) removed: Vec<String>,
}

/// A file that gets its name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Whether the one that has the name is away while the others get theirs.
    pub(crate) last: bool,
    /// By which the file is known again: no copy of it has the same number.
    inode: u64,
    pub(crate) bytes: u64,
    /// The time of its last change, in seconds and nanoseconds.
    modified: (i64, i64),
}

impl Moved {
    pub(crate) fn new(from: String, to: String, last: bool, own: &Metadata) -> Self {
        Self { from, to, last, inode: own.ino(), bytes: own.len(), modified: (own.mtime(), own.mtime_nsec()) }
    }

    /// Whether this is the very file.
    fn is(&self, own: &Metadata) -> bool {
        own.is_file()
            && (own.ino(), own.len(), (own.mtime(), own.mtime_nsec())) == (self.inode, self.bytes, self.modified)
    }
}

impl Record {
    pub(crate) fn new(files: Vec<Moved>, removed: Vec<String>) -> Self {
        Self { version: VERSION, files, removed }
    }

    /// The record of a save in this folder that has not come to its end; none in almost all folders.
    pub(crate) fn of(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join(RECORD);
        let text = match fs::read(&file) {
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
        let strange = record.files.iter().find(|moved| boot_of(&moved.from).is_none() || !is_plain(&moved.to));
        let strange = strange.map(|moved| &moved.to).or(record.removed.iter().find(|name| !is_plain(name)));
        match strange {
            Some(name) => Err(wrong(format!("it names {name:?}, which no save does"))),
            None => Ok(Some(record)),
        }
    }

    /// Whether the save that wrote it was in this very folder: a copy of the folder is not.
    pub(crate) fn is_of(&self, folder: &Path) -> bool {
        let own = |name: &str| fs::symlink_metadata(folder.join(name)).ok();
        let is = |moved: &Moved, name: &str| own(name).is_some_and(|own| moved.is(&own));
        self.files.iter().any(|moved| is(moved, &moved.from) || is(moved, &moved.to))
            && self.files.iter().all(|moved| own(&moved.from).is_none() || is(moved, &moved.from))
    }

    /// Gives the files their names, removes what goes, and the record last. What is done already is passed over.
    pub(crate) fn carry_out(&self, folder: &Path, synced: &fs::File) -> Result<()> {
        let failed = |action: &'static str, name: &str| {
            let path = folder.join(name);
            move |error| Error::File { action, path, source: error }
        };
        let waiting = |moved: &&Moved| fs::symlink_metadata(folder.join(&moved.from)).is_ok();
        for moved in self.files.iter().filter(|moved| moved.last).filter(waiting) {
            disk::remove(&folder.join(&moved.to)).map_err(failed("replace", &moved.to))?;
        }
        for moved in self.files.iter().filter(waiting) {
            let (from, to) = (folder.join(&moved.from), folder.join(&moved.to));
            disk::rename(&from, &to).map_err(failed("write", &moved.to))?;
        }
        for name in &self.removed {
            disk::remove(&folder.join(name)).map_err(failed("remove", name))?;
        }
        // The names are on the disk before what says them is gone.
        disk::sync(synced).map_err(failed("write", RECORD))?;
        disk::remove(&folder.join(RECORD)).map_err(failed("remove", RECORD))?;
        disk::sync(synced).map_err(failed("write", RECORD))
    }
}

/// Whether a name is that of a file in the folder itself, and none of those that a save gives to what is on its way.
pub(crate) fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
        && !name.starts_with(BEGIN)
}
