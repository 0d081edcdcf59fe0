//! The user's cache, where unpacked wheels outlive `cargo clean`.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, process};

use crate::failure::Failure;
use crate::{environment, leftovers};

/// The folder of the cache, which may not exist yet.
pub(crate) fn folder() -> Result<PathBuf, Failure> {
    if let Some(own) = environment::user("TACIT_CACHE_DIR").map(PathBuf::from) {
        return if own.is_absolute() { Ok(own) } else { Err(Failure::cache_dir_relative(&own)) };
    }
    // The specification of `XDG_CACHE_HOME` passes over a relative path.
    let absolute = |name| environment::user(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if cfg!(not(target_vendor = "apple"))
        && let Some(xdg) = absolute("XDG_CACHE_HOME")
    {
        return Ok(xdg.join("tacit"));
    }
    let home = absolute("HOME").ok_or_else(Failure::no_cache_dir)?;
    let caches = if cfg!(target_vendor = "apple") { "Library/Caches" } else { ".cache" };
    Ok(home.join(caches).join("tacit"))
}

/// Returns `folder()/name`, filling it first if it is not there.
///
/// `fill` gets an empty scratch folder and returns the folder inside it that becomes the entry. The entry appears by a
/// rename, so that builds at the same time neither see half of it nor disturb each other: the first one wins.
pub(crate) fn entry(name: &str, fill: impl FnOnce(&Path) -> Result<PathBuf, Failure>) -> Result<PathBuf, Failure> {
    let cache = folder()?;
    let entry = cache.join(name);
    if entry.is_dir() {
        return Ok(entry);
    }
    leftovers::sweep(&cache);
    let scratch = Scratch::create(&cache)?;
    let filled = fill(&scratch.0)?;
    match fs::rename(&filled, &entry) {
        Err(error) if !entry.is_dir() => Err(Failure::io("write", &entry, &error)),
        _ => Ok(entry),
    }
}

/// A folder of this process alone, removed when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn create(cache: &Path) -> Result<Self, Failure> {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        let path = cache.join(format!("{}{}-{nanos}", leftovers::BEGIN, process::id()));
        // What is unpacked here is loaded into programs: nobody else may write to it.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|error| Failure::io("create", &path, &error))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder left behind is only litter.
        let _ = fs::remove_dir_all(&self.0);
    }
}
