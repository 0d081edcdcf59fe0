//! Every operation by which a save or a journal changes a folder, where tests let them fail one by one.

use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Comes before each operation: an error where a test wants it to fail.
pub(crate) fn step() -> io::Result<()> {
    #[cfg(feature = "faults")]
    crate::faults::step()?;
    Ok(())
}

/// Whether a test has the program end here, after which nothing changes the folder any more.
pub(crate) fn ended() -> bool {
    #[cfg(feature = "faults")]
    return crate::faults::ended();
    #[cfg(not(feature = "faults"))]
    false
}

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step()?;
    fs::rename(from, to)
}

/// Removes a file; one that is not there is removed already.
pub(crate) fn remove(file: &Path) -> io::Result<()> {
    step()?;
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Cuts a file to so many bytes.
pub(crate) fn truncate(file: &File, length: u64) -> io::Result<()> {
    step()?;
    file.set_len(length)
}

/// Brings what a file holds, or the names of a folder, to the disk.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    step()?;
    #[cfg(feature = "faults")]
    if crate::faults::synced(file) {
        return Ok(());
    }
    match file.sync_all() {
        // Some file systems have nothing to do for a folder, and say so.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && file.metadata().is_ok_and(|own| own.is_dir()) => {
            Ok(())
        }
        synced => synced,
    }
}

/// Whether `path` is this very file, and no link to it.
#[must_use]
pub fn is_file_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().ok().map(id) == fs::symlink_metadata(path).ok().map(id)
}
