//! The one file that a program writes, or the device that takes its place.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use tacit_core::{Error, Result};

use crate::disk;
use crate::place::{Place, Standard, folder_of};
use crate::room::Room;
use crate::staged::Staged;

/// A file that is the old one until the new one is whole and on the disk; where the place is a device or a pipe, that is
/// given the bytes as they come. A file that is open as the standard output is written from where that stands.
#[derive(Debug)]
pub struct Output {
    place: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    File(Staged, Room),
    Stream(File),
}

impl Output {
    /// Begins a file.
    ///
    /// # Errors
    ///
    /// As for [`Place::at`], or the system refuses it.
    pub fn create(place: impl AsRef<Path>) -> Result<Self> {
        let place = place.as_ref();
        let to = match Place::at(place)? {
            Place::File => {
                let room = Room::at(folder_of(place));
                To::File(Staged::beside(place)?, room)
            }
            Place::Stream => To::Stream(stream(place).map_err(Error::file("write", place))?),
        };
        Ok(Self { place: place.to_owned(), to })
    }

    /// Puts the file in its place: when this returns it is on the disk, whatever happens then.
    ///
    /// # Errors
    ///
    /// As for [`Commit::finish`](crate::Commit::finish).
    pub fn finish(self) -> Result<()> {
        match self.to {
            To::File(mut staged, room) => {
                let failed = || Error::file("write", &self.place);
                staged.sync().map_err(failed())?;
                let name = self.place.file_name().ok_or_else(|| failed()(ErrorKind::InvalidFilename.into()))?;
                let mut commit = room.begin()?;
                commit.place(staged, name)?;
                commit.finish()
            }
            To::Stream(mut file) => file.flush().map_err(Error::file("write", &self.place)),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::File(staged, _) => staged.write(bytes),
            To::Stream(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::File(staged, _) => staged.flush(),
            To::Stream(file) => file.flush(),
        }
    }
}

/// Opens a device, a pipe or what is open already. A file that the shell has open may hold something: it is written behind that.
fn stream(place: &Path) -> io::Result<File> {
    disk::step()?;
    let open = match Standard::from_path(place) {
        // The stream itself, whose place in the file goes on with what is written.
        Some(Standard::Out) => {
            io::stdout().flush()?;
            io::stdout().as_fd().try_clone_to_owned()?
        }
        Some(Standard::Err) => io::stderr().as_fd().try_clone_to_owned()?,
        None => return File::options().append(true).open(place),
    };
    Ok(File::from(open))
}

/// Puts a file with this content in its place.
///
/// # Errors
///
/// As for [`Output`].
pub fn replace(place: impl AsRef<Path>, content: &[u8]) -> Result<()> {
    let place = place.as_ref();
    let mut output = Output::create(place)?;
    output.write_all(content).map_err(Error::file("write", place))?;
    output.finish()
}
