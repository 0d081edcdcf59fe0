//! Locks of folders that interrupted work leaves: one program at a time has one.

use std::fs::{self, File, FileType, TryLockError};
use std::io;
use std::path::Path;

use tacit_core::{Error, Result};

use crate::disk::is_file_at;

/// Locks the file of this name in a folder of work on `output`, and makes both where they are not there: no other program works
/// there as long as the file is open. Nothing where one does.
///
/// Where the file system has no locks, it keeps nobody away.
///
/// # Errors
///
/// The folder or the file is something else, such as a link, or cannot be made.
pub fn lock_work(folder: &Path, name: &str, output: &Path) -> Result<Option<File>> {
    let failed = |error| Error::file("write", output)(error);
    let place = folder.join(name);
    loop {
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        // Whoever follows a link writes, and removes, elsewhere.
        for (path, expected) in [(folder, FileType::is_dir as fn(&FileType) -> bool), (&place, FileType::is_file)] {
            if fs::symlink_metadata(path).is_ok_and(|own| !expected(&own.file_type())) {
                let help = "remove it, or write to another place";
                return Err(Error::checkpoint(path, None, "it is not what an interrupted run leaves there", help));
            }
        }
        let file = match File::options().read(true).write(true).create(true).truncate(false).open(&place) {
            // Another program has come to its end, and removed the folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.map_err(failed)?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            // A file system without locks: two programs at once are then the user's to avoid.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Between opening and locking, another program may have come to its end.
        if is_file_at(&file, &place) {
            return Ok(Some(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_program_at_a_time_works_in_a_folder_and_none_behind_a_link() {
        let folder = std::env::temp_dir().join(format!("tacit-work-{}", std::process::id()));
        let (output, lock) = (folder.with_extension("out"), || lock_work(&folder, "lock", &folder).expect("no link"));
        let held = lock().expect("nobody works here");
        assert!(lock().is_none());
        drop(held);
        // A program that has come to its end removes the folder, and one that waited begins another.
        fs::remove_dir_all(&folder).expect("removes");
        assert!(lock().is_some());
        std::os::unix::fs::symlink(&folder, &output).expect("links");
        let error = lock_work(&output, "lock", &folder).expect_err("it is a link");
        assert!(error.to_string().contains("it is not what an interrupted run leaves there"), "{error}");
        fs::remove_file(output).expect("removes");
        fs::remove_dir_all(folder).expect("removes");
    }
}
