//! The files outside of its folder that a run has begun.
//!
//! An interrupted run has left a record, and perhaps a drawing and the output. The same command goes on with them;
//! other files that are there it replaces only with `--force`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf, absolute};

use tacit_core::{Error, Result};
use tacit_files::replace;

/// The files that a run has begun, as a file in its folder says.
pub(super) struct Own {
    place: PathBuf,
    files: BTreeSet<PathBuf>,
}

/// Paths from the root on, each with this behind it, which no path holds.
const END: u8 = 0;

impl Own {
    /// The files of the run in this folder, if there is one.
    pub(super) fn read(folder: &Path) -> Self {
        let place = folder.join("own");
        let text = fs::read(&place).unwrap_or_default();
        let paths = text.split(|&byte| byte == END).filter(|path| !path.is_empty());
        let files = paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
        Self { place, files }
    }

    /// Whether the run has begun this file.
    pub(super) fn has(&self, file: &Path) -> bool {
        absolute(file).is_ok_and(|file| self.files.contains(&file))
    }

    /// Says of files that the run has begun them, which comes before it writes any of them.
    pub(super) fn add<P: AsRef<Path>>(&mut self, files: impl IntoIterator<Item = P>) -> Result<()> {
        for file in files {
            let file = file.as_ref();
            self.files.insert(absolute(file).map_err(Error::file("open", file))?);
        }
        let mut text = Vec::new();
        for file in &self.files {
            text.extend_from_slice(file.as_os_str().as_bytes());
            text.push(END);
        }
        replace(&self.place, &text)
    }

    /// Leaves all files to whoever gave the command: the run is complete.
    pub(super) fn forget(self) -> Result<()> {
        fs::remove_file(&self.place).map_err(Error::file("remove", &self.place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_knows_its_files_again_whatever_they_are_called() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("tacit-own-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(Error::file("make", &folder))?;
        let names = [&b"record.jsonl"[..], b"./two\nlines", b"no text \xff"];
        let files = names.map(|name| PathBuf::from(OsStr::from_bytes(name)));
        let mut own = Own::read(&folder);
        assert!(files.iter().all(|file| !own.has(file)));
        own.add(&files)?;
        let again = Own::read(&folder);
        assert!(files.iter().all(|file| again.has(file)));
        assert!(again.has(Path::new("two\nlines")) && !again.has(Path::new(OsStr::from_bytes(b"no text \xfe"))));
        again.forget()?;
        assert!(!Own::read(&folder).has(&files[0]));
        fs::remove_dir_all(&folder).map_err(Error::file("remove", &folder))
    }
}
