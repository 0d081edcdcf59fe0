//! Files that are mapped into memory.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tacit_bridge::{MappedFile, forget_bytes};
use tacit_core::{Error, Result};

/// A part of a mapped file, which stays mapped for as long.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) file: Arc<MappedFile>,
    pub(crate) place: Range<usize>,
}

impl Part {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.place.clone()]
    }

    /// Lets its memory go: it is read from the file again.
    pub(crate) fn forget(&self) {
        forget_bytes(self.bytes());
    }
}

/// The file `path`, whose content is in `held`, mapped into memory.
///
/// # Errors
///
/// It is not there, cannot be read, or is no regular file.
pub(crate) fn mapped(path: &Path, held: &Path) -> Result<MappedFile> {
    let file = MappedFile::open_file(held).map_err(Error::file("open", path))?;
    MappedFile::new(&file).map_err(|error| Error::file("map", path)(refused(error)))
}

/// The error of a mapping that the system refused. What it calls want of memory is a limit as a rule, and is named.
fn refused(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::OutOfMemory {
        return error;
    }
    let limits = "a process on Linux maps half of `vm.max_map_count` files, and no more bytes than `ulimit -v` says";
    io::Error::new(error.kind(), format!("{error}: {limits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_mapped_for_want_of_memory_names_the_limits() {
        let message = |error: io::Error| refused(error).to_string();
        expect_test::expect!["out of memory: a process on Linux maps half of `vm.max_map_count` files, and no more bytes than `ulimit -v` says"].assert_eq(&message(io::ErrorKind::OutOfMemory.into()));
        assert_eq!(message(io::ErrorKind::NotFound.into()), io::Error::from(io::ErrorKind::NotFound).to_string());
    }
}
