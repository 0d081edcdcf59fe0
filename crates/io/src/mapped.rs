//! Files that are mapped into memory.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use tacit_bridge::MappedFile;
use tacit_core::{Error, Result};

/// The file `path`, whose content is in `held`, mapped into memory.
///
/// # Errors
///
/// It is not there, cannot be read, or is no regular file.
pub(crate) fn mapped(path: &Path, held: &Path) -> Result<MappedFile> {
    // A pipe to which nobody writes would be waited for.
    if fs::metadata(held).is_ok_and(|own| !own.is_file()) {
        let reason = io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
        return Err(Error::file("map", path)(reason));
    }
    let file = File::open(held).map_err(Error::file("open", path))?;
    MappedFile::new(&file).map_err(Error::file("map", path))
}
