//! A folder before a save to it is written: what killed saves left there is cleared away.

use std::fs;
use std::path::{Path, PathBuf};

use tacit_core::Result;

use crate::commit::Commit;
use crate::leftovers::boot_of;
use crate::record::RECORD;

/// A folder that has the room of what killed saves left there, for a save that is about to be written.
///
/// It holds nobody else up: the folder is locked only where something is to be cleared away, and then by [`begin`](Self::begin).
#[derive(Debug)]
pub struct Room {
    folder: PathBuf,
    cleared: bool,
}

impl Room {
    /// Finishes what a save that was killed began, and clears away what dead ones left on their way. Why that cannot be is told by
    /// [`begin`](Self::begin).
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        let cleared = nothing_left(folder) || Commit::begin(folder).is_ok();
        Self { folder: folder.to_owned(), cleared }
    }

    /// Begins to give the files their names, as [`Commit::begin`] does. What a save left that died meanwhile stays for the next
    /// one, whose room it takes.
    ///
    /// # Errors
    ///
    /// As for [`Commit::begin`].
    pub fn begin(self) -> Result<Commit> {
        if self.cleared { Commit::in_cleared(&self.folder) } else { Commit::begin(&self.folder) }
    }
}

/// Whether the folder has no record of a save, and no file on its way, of a dead program or of one that lives.
fn nothing_left(folder: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(folder) else { return false };
    entries.all(|entry| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            name != RECORD && name.to_str().and_then(boot_of).is_none()
        })
    })
}
