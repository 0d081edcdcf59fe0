//! A file on its way, under a name that nobody can guess.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tacit_core::{Error, Result};
use tempfile::TempPath;

use crate::disk;

/// A file that is written beside its place: hidden, of a random name, and gone when it is dropped or [abandoned](abandon).
///
/// It is locked while its program lives, so that another one can tell it from what a dead program left.
#[derive(Debug)]
pub struct Staged {
    pub(crate) file: File,
    path: Option<TempPath>,
    /// Whether all that it holds is on the disk.
    pub(crate) synced: bool,
}

/// How the name of a file on its way begins and ends.
pub(crate) const BEGIN: &str = ".tacit-";
pub(crate) const END: &str = ".partial";
/// The letters and digits of a name that are drawn.
const DRAWN: usize = 14;

impl Staged {
    /// Makes an empty file in the folder of `place`, which errors name.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub fn beside(place: &Path) -> Result<Self> {
        Self::in_folder(crate::folder_of(place)).map_err(Error::file("write", place))
    }

    pub(crate) fn in_folder(folder: &Path) -> io::Result<Self> {
        loop {
            disk::step()?;
            let mut live = live();
            let named = tempfile::Builder::new()
                .prefix(&format!("{BEGIN}{}-", boot()))
                .suffix(END)
                .rand_bytes(DRAWN)
                // As std makes any new file: others may read it, and an error is the system's own, without the hidden name.
                .make_in(folder, |path| File::options().read(true).write(true).create_new(true).open(path))?;
            let (file, path) = named.into_parts();
            // Between the two, another program may have taken it for a leftover: it has the lock until it has removed the file.
            // Where there are no locks, nobody takes it for one.
            if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) && disk::is_file_at(&file, &path) {
                live.insert(path.to_path_buf());
                #[cfg(feature = "faults")]
                crate::faults::made(&file);
                return Ok(Self { file, path: Some(path), synced: false });
            }
        }
    }

    /// Brings what is written to the disk, which takes the longest of a save.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub fn sync(&mut self) -> io::Result<()> {
        disk::sync(&self.file)?;
        self.synced = true;
        Ok(())
    }

    /// Where it is now.
    pub(crate) fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }

    /// Lets it be there when this is dropped: it has its name, or is in a record that gives it one.
    pub(crate) fn keep(&mut self) {
        if let Some(path) = self.path.take() {
            live().remove::<Path>(&path);
            // It fails on Windows only.
            drop(path.keep());
        }
    }
}

impl Write for Staged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        disk::step()?;
        self.synced = false;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if disk::ended() || disk::step().is_err() {
            self.keep();
        } else if let Some(path) = self.path.take() {
            live().remove::<Path>(&path);
        }
    }
}

/// What of this process is on its way, and folders that were made for it. Held, no file is made and none gets its name.
pub(crate) fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it is held no save of this process is given up, as one that gives files their names must not be.
pub(crate) fn committing() -> MutexGuard<'static, ()> {
    static COMMITTING: Mutex<()> = Mutex::new(());
    COMMITTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all files that are on their way in this process, which is to end at once: whoever would write another one, or
/// give it its name, waits from now on.
///
/// A save that is giving files their names is waited for. This is for what comes when a signal does, on a thread that writes
/// nothing.
pub fn abandon() {
    let committing = committing();
    let live = live();
    // Longer paths first: a folder is empty when what was in it is gone.
    for path in live.iter().rev() {
        drop(fs::remove_file(path));
        drop(fs::remove_dir(path));
    }
    mem::forget((committing, live));
}

/// What stands for this run of the machine in names, so that one knows for whom a lock speaks.
pub(crate) fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let id: String = id.chars().filter(char::is_ascii_hexdigit).take(8).collect();
        if id.len() == 8 { id } else { "00000000".to_owned() }
    })
}
