//! A file that is the old one until the new one is whole.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tacit_core::{Error, Result};

/// A file on its way: written beside its place, and put there by [`commit`](Self::commit).
///
/// What a program that was killed left of one is written over by the next.
pub(crate) struct Pending {
    file: File,
    beside: PathBuf,
    place: PathBuf,
}

impl Pending {
    pub(crate) fn create(place: &Path) -> Result<Self> {
        let failed = |error| Error::file("write", place)(error);
        let name = place.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
        let beside = place.with_file_name(format!(".{}.partial", name.to_string_lossy()));
        loop {
            let file = File::options().write(true).create(true).truncate(false).open(&beside).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::checkpoint(
                        place,
                        None,
                        "it is being written already",
                        "let the other save come to its end, or save to another place",
                    ));
                }
                // A file system without locks: two writers at once are then the user's to avoid.
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // Between opening and locking, another writer may have put this very file in its place.
            if is(&file, &beside) {
                file.set_len(0).map_err(failed)?;
                // What only its owner may read stays so.
                if let Ok(old) = fs::metadata(place) {
                    file.set_permissions(old.permissions()).map_err(failed)?;
                }
                return Ok(Self { file, beside, place: place.to_owned() });
            }
        }
    }

    /// Puts the file in its place: when this returns it is on the disk, whatever happens then.
    pub(crate) fn commit(self) -> Result<()> {
        let failed = |error| Error::file("write", &self.place)(error);
        self.file.sync_all().map_err(failed)?;
        fs::rename(&self.beside, &self.place).map_err(failed)?;
        let folder = self.place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
    }
}

/// Puts a file with this content in its place.
pub(crate) fn replace(place: &Path, content: &[u8]) -> Result<()> {
    let mut file = Pending::create(place)?;
    file.write_all(content).map_err(Error::file("write", place))?;
    file.commit()
}

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // After a commit another writer may have a file there.
        if is(&self.file, &self.beside) {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

/// Whether `path` is this very file.
pub(crate) fn is(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().ok().map(id) == fs::symlink_metadata(path).ok().map(id)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use expect_test::expect;

    use super::*;

    #[test]
    fn one_writer_at_a_time_and_what_a_dead_one_left_is_written_over() {
        let folder = std::env::temp_dir().join(format!("tacit-atomic-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("makes a folder");
        let place = folder.join("file");
        fs::write(&place, "old").expect("writes");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).expect("is ours");
        fs::write(folder.join(".file.partial"), "left by one that was killed").expect("writes");
        let mut first = Pending::create(&place).expect("nobody writes");
        first.write_all(b"new").expect("writes");
        let second = Pending::create(&place).err().expect("somebody writes").to_string();
        expect![[r"
            FILE: it is being written already
            help: let the other save come to its end, or save to another place"]]
        .assert_eq(&second.replace(&format!("{}", place.display()), "FILE"));
        assert_eq!(fs::read(&place).expect("reads"), b"old");
        first.commit().expect("takes its place");
        assert_eq!(fs::read(&place).expect("reads"), b"new");
        assert_eq!(fs::metadata(&place).expect("is there").permissions().mode() & 0o777, 0o600);
        drop(Pending::create(&place).expect("nobody writes"));
        assert_eq!(fs::read_dir(&folder).expect("reads").count(), 1, "nothing is left beside it");
        fs::remove_dir_all(&folder).expect("removes");
    }
}
