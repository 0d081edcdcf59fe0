//! Folders for tests.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use tacit_core::Error;

/// An empty folder of its own, which is gone afterwards.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self::made_in(&env::temp_dir())
    }

    /// One in memory, where the system has a folder there: for thousands of files, which a disk is slow to make.
    pub(crate) fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::made_in(memory) } else { Self::new() }
    }

    fn made_in(base: &Path) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("tacit-io-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = base.join(name);
        fs::create_dir(&folder).expect("the folder is new");
        Self(folder)
    }

    /// A file of the folder with this content.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("writes");
        path
    }

    /// What the folder holds, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("reads");
        let name =
            |entry: std::io::Result<fs::DirEntry>| entry.expect("reads").file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    /// The message of an error, with the folder left out.
    pub(crate) fn message(&self, error: &Error) -> String {
        let folder = fs::canonicalize(&self.0).expect("is there");
        let short = |text: &str, folder: &Path| text.replace(&format!("{}", folder.display()), "FOLDER");
        short(&short(&error.to_string(), &folder), &self.0)
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
