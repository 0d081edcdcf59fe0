//! Folders for tests.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, process};

use tacit_core::Error;
use tacit_files::Current;

/// An empty folder of its own, which is gone afterwards.
pub(crate) struct Folder(PathBuf);

/// What files hold, by name.
pub(crate) type Held = BTreeMap<String, Vec<u8>>;

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("tacit-files-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Thousands of files are made faster in memory.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.join(name) } else { env::temp_dir().join(name) };
        fs::create_dir(&folder).expect("the folder is new");
        Self(fs::canonicalize(folder).expect("is there"))
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self::new();
        for (name, text) in files {
            fs::write(folder.join(name), text).expect("writes");
        }
        folder
    }

    /// What is there under its own name, hidden files too.
    pub(crate) fn raw(&self) -> Held {
        let entries = fs::read_dir(&self.0).expect("reads").map(|entry| entry.expect("reads"));
        entries
            .map(|entry| {
                let name = entry.file_name().into_string().expect("text");
                (name, fs::read(entry.path()).unwrap_or_default())
            })
            .collect()
    }

    /// What is there for whoever reads through [`Current`].
    pub(crate) fn current(&self) -> Held {
        let current = Current::read(&self.0).expect("reads");
        let read = |name: String| {
            let held = fs::read(current.path(&self.0.join(&name))).expect("is there");
            (name, held)
        };
        current.names().expect("reads").into_iter().map(read).collect()
    }

    pub(crate) fn message(&self, error: &Error) -> String {
        error.to_string().replace(&self.0.display().to_string(), "FOLDER")
    }
}

pub(crate) fn held(files: &[(&str, &str)]) -> Held {
    files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}
