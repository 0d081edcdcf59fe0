//! What is at the path where a file is to be.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use tacit_core::{Error, Result};

/// What a file that is written becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file under this name, in the place of a regular file or of nothing.
    File,
    /// What a device or a pipe is given, such as `/dev/null` or `/dev/stdout`.
    Stream,
}

/// Where the system has names for what is open; `/dev/stdout` is a link, too.
const OPENED: [&str; 3] = ["/dev", "/dev/fd", "/proc/self/fd"];

impl Place {
    /// Looks at the place of a file that must not be a device or a pipe, as one of several files.
    ///
    /// # Errors
    ///
    /// As for [`Place::at`], or it is a device or a pipe.
    pub fn of_file(path: &Path) -> Result<()> {
        match Self::at(path)? {
            Self::File => Ok(()),
            Self::Stream => Err(Error::invalid(
                format!("{} is a device or a pipe, which is not replaced", path.display()),
                "name a file, or remove what is there",
            )),
        }
    }

    /// Looks at a place before anything is written.
    ///
    /// ```
    /// use tacit_files::Place;
    ///
    /// assert_eq!(Place::at("/dev/null".as_ref()).unwrap(), Place::Stream);
    /// assert!(Place::at("/".as_ref()).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// It is a folder, a link or a disk, which are not replaced; it has the name of a folder, which ends with `/`; or its folder is
    /// not there.
    pub fn at(path: &Path) -> Result<Self> {
        let refused =
            |reason: String, help: &str| Err(Error::invalid(format!("{} {reason}", path.display()), help.to_owned()));
        let own = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if path.file_name().is_none() {
                    return Err(Error::file("write", path)(io::ErrorKind::InvalidFilename.into()));
                }
                // A path drops the end that says so.
                if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
                    return refused("is the name of a folder, and a file is written".to_owned(), "leave the `/` out");
                }
                let folder = folder_of(path);
                return match fs::metadata(folder) {
                    Ok(own) if own.is_dir() => Ok(Self::File),
                    Ok(_) => Err(Error::file("write", path)(io::ErrorKind::NotADirectory.into())),
                    Err(error) => Err(Error::file("write", path)(error)),
                };
            }
            own => own.map_err(Error::file("write", path))?,
        };
        // What these link to is open already, such as a file that the shell made for the standard output.
        let opened = own.is_symlink() && OPENED.iter().any(|folder| path.parent() == Some(Path::new(folder)));
        let kind = if opened { fs::metadata(path).map_err(Error::file("write", path))? } else { own }.file_type();
        // Nobody opens a socket by its name, which the two standard streams need not.
        let is_stream = (opened && kind.is_file()) || (kind.is_socket() && Standard::from_path(path).is_some());
        if kind.is_char_device() || kind.is_fifo() || is_stream {
            Ok(Self::Stream)
        } else if kind.is_file() {
            Ok(Self::File)
        } else if kind.is_symlink() {
            let to = fs::read_link(path).unwrap_or_default();
            refused(format!("is a link to {}, and links are not replaced", to.display()), "name the file itself")
        } else if kind.is_dir() {
            refused("is a folder".to_owned(), "name a file in it")
        } else {
            refused("is no file".to_owned(), "name a file, or remove what is there")
        }
    }
}

/// A stream that this process was started with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standard {
    Out,
    Err,
}

impl Standard {
    /// The stream for which the system has this name.
    pub(crate) fn from_path(path: &Path) -> Option<Self> {
        let names = [
            (Self::Out, ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"]),
            (Self::Err, ["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"]),
        ];
        names.into_iter().find(|(_, names)| names.iter().any(|name| Path::new(name) == path)).map(|(stream, _)| stream)
    }
}

/// Whether a file that is written there goes to the standard output, where nothing else should then go.
#[must_use]
pub fn is_stdout(path: &Path) -> bool {
    Standard::from_path(path) == Some(Standard::Out)
}

/// The folder that a file is in: `.` for a name alone.
#[must_use]
pub fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
