//! What builds that were killed left in the cache.

use std::fs::{self, Metadata};
use std::path::Path;
use std::time::Duration;

/// How the name of a folder begins in which a build unpacks a wheel.
pub(crate) const BEGIN: &str = ".unpacking-";

/// No build takes as long to fetch and unpack one.
const OLD: Duration = Duration::from_hours(24);

/// Removes the folders in which builds unpacked that were killed: each holds a wheel, and nobody looks for it.
pub(crate) fn sweep(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let is_scratch = entry.file_name().to_string_lossy().starts_with(BEGIN);
        // Of a link this is the link's own.
        let own = entry.metadata().ok().filter(Metadata::is_dir);
        let age = own.and_then(|own| own.modified().ok()?.elapsed().ok());
        if is_scratch && age.is_some_and(|age| age > OLD) {
            // What stays goes with a later build.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
