//! Locks of a folder: one save at a time writes to it, and whoever reads several files reads those of one save.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tacit_core::{Error, Result};

use crate::disk;

/// How long a save waits for another to give its files their names, which takes moments.
const LONGEST: Duration = Duration::from_secs(30);
const ROUND: Duration = Duration::from_millis(2);

/// A folder that no other save changes, as long as this is there.
#[derive(Debug)]
pub(crate) struct Locked(pub(crate) File);

impl Locked {
    pub(crate) fn folder(folder: &Path) -> Result<Self> {
        Self::within(folder, LONGEST)
    }

    /// Waits for other saves no longer than this.
    fn within(folder: &Path, longest: Duration) -> Result<Self> {
        let failed = |error| Error::file("write", folder)(error);
        let file = disk::step().and_then(|()| File::open(folder)).map_err(failed)?;
        if waited(&file, longest, File::try_lock) {
            return Ok(Self(file));
        }
        let help = "let the other save come to its end, or save into another folder";
        Err(Error::checkpoint(folder, None, "it is being written already", help))
    }
}

/// A folder that no save changes, as long as this is there: what is read of several files is of one save.
///
/// Where the file system has no locks, or a save holds the folder for very long, it keeps nobody away.
#[derive(Debug)]
pub struct Steady(#[expect(dead_code, reason = "it is held")] Option<File>);

impl Steady {
    /// Waits until no save gives files of this folder their names.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        let file = File::open(folder).ok();
        Self(file.filter(|file| waited(file, LONGEST, File::try_lock_shared)))
    }
}

/// Locks a file once nobody else has it; false where somebody has it for so long.
fn waited(file: &File, longest: Duration, lock: impl Fn(&File) -> Result<(), TryLockError>) -> bool {
    let begin = Instant::now();
    loop {
        match lock(file) {
            Err(TryLockError::WouldBlock) if begin.elapsed() > longest => return false,
            Err(TryLockError::WouldBlock) => sleep(ROUND),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            // A file system without locks, or without such of folders: two saves at once are then the user's to avoid.
            Ok(()) | Err(TryLockError::Error(_)) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use expect_test::expect;

    use super::*;

    #[test]
    fn a_folder_that_another_save_holds_is_told() {
        let folder = env::temp_dir().join(format!("tacit-lock-{}", process::id()));
        fs::create_dir_all(&folder).expect("makes");
        let held = Locked::folder(&folder).expect("nobody else has it");
        let error = Locked::within(&folder, Duration::ZERO).expect_err("somebody has it");
        drop(held);
        Locked::within(&folder, Duration::ZERO).expect("nobody has it any more");
        fs::remove_dir(&folder).expect("is empty");
        expect![[r#"
            FOLDER: it is being written already
            help: let the other save come to its end, or save into another folder"#]]
        .assert_eq(&error.to_string().replace(&folder.display().to_string(), "FOLDER"));
    }
}
