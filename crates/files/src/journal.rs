//! Parts that are made one by one, many in a file, and the journal that says which are whole.
//!
//! The bytes of parts lie one behind the other in segments, `0.segment` and so on. The first line of the file `journal` says what the
//! parts are of, and each further line where a part is and what it is. A part goes to the disk before its line does, so that what a
//! line names is whole. A segment grows only in the program that began it, and its number is never given again: no later bytes take
//! the place of lost ones.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tacit_core::{Error, Result};

use crate::disk;
use crate::place::folder_of;
use crate::work::lock_work;

/// A folder of parts that are made one by one: a program that ends loses only the part that it was making.
///
/// ```
/// use tacit_files::Journal;
///
/// # fn main() -> tacit_core::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("tacit-journal-{}", std::process::id()));
/// # let output = folder.with_extension("out");
/// let (mut journal, parts) = Journal::open(&folder, "these inputs", &output)?.expect("nobody works here");
/// assert!(parts.is_empty());
/// let part = journal.append("the first", |file| Ok(file.write_all(b"..").unwrap()))?;
/// drop(journal);
/// // A later program goes on with it.
/// let (journal, parts) = Journal::open(&folder, "these inputs", &output)?.expect("nobody works here");
/// assert_eq!(parts, [(part, "the first".to_owned())]);
/// journal.remove();
/// assert!(!folder.exists());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    /// Locked while somebody works here.
    file: File,
    /// The bytes of its whole lines.
    length: u64,
    /// The segment that grows.
    segment: Option<Segment>,
    /// The number of the next segment, which none has had.
    next: u64,
}

/// Where a part is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The number of its segment.
    pub segment: u64,
    /// Its bytes there.
    pub bytes: Range<u64>,
}

/// Parts in the order in which they were made, each with what it is.
pub type NamedParts = Vec<(Part, String)>;

#[derive(Debug)]
struct Segment {
    number: u64,
    file: File,
    /// The bytes of its parts.
    length: u64,
}

/// A line of the journal.
#[derive(Serialize, Deserialize)]
struct Line {
    part: Part,
    says: String,
}

const JOURNAL: &str = "journal";

/// The version of the layout.
const VERSION: u32 = 1;

/// How the name of a segment ends.
const SEGMENT: &str = ".segment";

/// A segment of so many bytes or more does not grow.
const FULL: u64 = 1 << 30;

/// Each part begins at a multiple of so many bytes.
const ALIGNED: u64 = 64;

impl Journal {
    /// Begins the work on `output` in a folder, or goes on with what is there; `None` where another program works there.
    ///
    /// `of` says what the parts are made of: those of anything else are removed. The parts that are whole are returned in the
    /// order in which they were made, each with what it is.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, read or written, or is something else, such as a link; or a version of another layout began the
    /// work there.
    pub fn open(folder: &Path, of: &str, output: &Path) -> Result<Option<(Self, NamedParts)>> {
        let Some(mut file) = lock_work(folder, JOURNAL, output)? else { return Ok(None) };
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(Error::file("read", &folder.join(JOURNAL)))?;
        if is_of_another_version(&text) {
            let help = "let that version finish it, or remove the folder to begin anew";
            return Err(Error::checkpoint(folder, None, "another version of Tacit began the work there", help));
        }
        let mut journal = Self { folder: folder.to_owned(), file, length: 0, segment: None, next: 0 };
        let parts = journal.take_up(&text, of).map_err(Error::file("write", output))?;
        Ok(Some((journal, parts)))
    }

    /// Keeps the part that `write` writes; `says` is what it is. When this returns it is on the disk, whatever happens then.
    ///
    /// # Errors
    ///
    /// `write` fails, or the system refuses it. The parts before it are then kept.
    pub fn append(&mut self, says: &str, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<Part> {
        let mut segment = match self.segment.take() {
            Some(segment) if segment.length < FULL => segment,
            _ => self.begin().map_err(Error::file("write", &self.folder))?,
        };
        match self.write(&segment, says, write) {
            Ok(part) => {
                segment.length = part.bytes.end;
                self.segment = Some(segment);
                Ok(part)
            }
            Err(error) => {
                // A part that no line names takes no room. Where this fails too, the part goes with the folder.
                drop(match segment.length {
                    0 => disk::remove(&self.path(segment.number)),
                    length => disk::truncate(&segment.file, length),
                });
                Err(error)
            }
        }
    }

    /// The file of the segment of this number.
    #[must_use]
    pub fn path(&self, segment: u64) -> PathBuf {
        self.folder.join(format!("{segment}{SEGMENT}"))
    }

    /// The folder in which the parts are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes all parts, and the folder with them if nobody has put anything else into it.
    pub fn remove(self) {
        // No line is to name a segment that is gone.
        drop(disk::truncate(&self.file, 0));
        for number in self.segments().unwrap_or_default().into_keys() {
            drop(disk::remove(&self.path(number)));
        }
        // The journal goes last, with the folder: it is the lock.
    }

    /// Takes up the whole parts of the same inputs, of which the journal says this, and removes everything else.
    fn take_up(&mut self, text: &[u8], of: &str) -> io::Result<NamedParts> {
        let head = format!("{}\n", serde_json::to_string(&(VERSION, of))?);
        let mut said = Vec::new();
        if let Some(lines) = text.strip_prefix(head.as_bytes()) {
            self.length = head.len() as u64;
            for line in lines.split_inclusive(|&byte| byte == b'\n') {
                // The end of the program may have cut the last one.
                let whole = line.strip_suffix(b"\n").and_then(|line| serde_json::from_slice::<Line>(line).ok());
                let Some(whole) = whole else { break };
                self.length += line.len() as u64;
                said.push(whole);
            }
        }
        if self.length < text.len() as u64 {
            disk::truncate(&self.file, self.length)?;
            // What is of other inputs is gone for good before these are said to be the inputs.
            disk::sync(&self.file)?;
        }
        let lengths = self.segments()?;
        let numbers = said.iter().map(|line| line.part.segment).chain(lengths.keys().copied());
        self.next = numbers.max().map_or(0, |last| last.saturating_add(1));
        said.retain(|Line { part: Part { segment, bytes }, .. }| {
            !bytes.is_empty() && lengths.get(segment).is_some_and(|&length| bytes.end <= length)
        });
        let named: BTreeSet<u64> = said.iter().map(|line| line.part.segment).collect();
        for number in lengths.into_keys().filter(|number| !named.contains(number)) {
            drop(disk::remove(&self.path(number)));
        }
        if self.length == 0 {
            self.say(&head)?;
        }
        // Whoever made the folder may have ended before this.
        for folder in [&*self.folder, folder_of(&self.folder)] {
            disk::sync(&File::open(folder)?)?;
        }
        Ok(said.into_iter().map(|Line { part, says }| (part, says)).collect())
    }

    /// The segments that are there, with their lengths; 0 where one is no file.
    fn segments(&self) -> io::Result<BTreeMap<u64, u64>> {
        let mut lengths = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if let Some(number) = number_of(&entry.file_name()) {
                // It follows no link.
                let own = entry.metadata()?;
                lengths.insert(number, if own.is_file() { own.len() } else { 0 });
            }
        }
        Ok(lengths)
    }

    fn begin(&mut self) -> io::Result<Segment> {
        let number = self.next;
        self.next = number.saturating_add(1);
        disk::step()?;
        let file = File::options().read(true).write(true).create_new(true).open(self.path(number))?;
        Ok(Segment { number, file, length: 0 })
    }

    /// Writes a part behind those of a segment, and its line.
    fn write(
        &mut self,
        segment: &Segment,
        says: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<Part> {
        let failed = || Error::file("write", &self.folder);
        let Segment { number, file, length } = segment;
        #[cfg(feature = "faults")]
        crate::faults::grows(file, *length);
        let start = length.next_multiple_of(ALIGNED);
        let mut behind = Behind { file, at: start };
        write(&mut behind)?;
        disk::sync(file).map_err(failed())?;
        if *length == 0 {
            File::open(&self.folder).and_then(|folder| disk::sync(&folder)).map_err(failed())?;
        }
        let part = Part { segment: *number, bytes: start..behind.at };
        let line = serde_json::to_string(&Line { part: part.clone(), says: says.to_owned() });
        let line = line.map_err(|error| failed()(error.into()))?;
        self.say(&format!("{line}\n")).map_err(Error::file("write", &self.folder))?;
        Ok(part)
    }

    /// Adds a line to the journal.
    fn say(&mut self, line: &str) -> io::Result<()> {
        #[cfg(feature = "faults")]
        crate::faults::grows(&self.file, self.length);
        let said = disk::step().and_then(|()| self.file.write_all_at(line.as_bytes(), self.length));
        match said.and_then(|()| disk::sync(&self.file)) {
            Ok(()) => {
                self.length += line.len() as u64;
                Ok(())
            }
            Err(error) => {
                drop(disk::truncate(&self.file, self.length));
                Err(error)
            }
        }
    }
}

impl Drop for Journal {
    /// Removes the folder while it is locked, where it holds no part. It stays where somebody else has put something into it.
    fn drop(&mut self) {
        let is_journal = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() == JOURNAL);
        if !disk::ended() && fs::read_dir(&self.folder).is_ok_and(|mut entries| entries.all(is_journal)) {
            drop(fs::remove_file(self.folder.join(JOURNAL)));
            drop(fs::remove_dir(&self.folder));
        }
    }
}

/// Whether the first line of a journal is whole and of another version, whatever else stands there in its layout.
fn is_of_another_version(text: &[u8]) -> bool {
    let Some(end) = text.iter().position(|&byte| byte == b'\n') else { return false };
    let head: Vec<serde_json::Value> = serde_json::from_slice(&text[..end]).unwrap_or_default();
    head.first().is_some_and(|version| *version != VERSION)
}

/// The number of a segment, by the name of its file.
fn number_of(name: &OsStr) -> Option<u64> {
    let digits = name.to_str()?.strip_suffix(SEGMENT)?;
    digits.parse().ok().filter(|number: &u64| number.to_string() == digits)
}

/// Writes to a file behind what is there.
struct Behind<'f> {
    file: &'f File,
    at: u64,
}

impl Write for Behind<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        disk::step()?;
        let written = self.file.write_at(bytes, self.at)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_a_full_segment_another_one_grows() {
        let scratch = tempfile::tempdir().expect("makes a folder");
        let folder = scratch.path().join("work");
        let open = || Journal::open(&folder, "these", &folder).expect("opens").expect("nobody works here");
        let (mut journal, _) = open();
        let append = |journal: &mut Journal| {
            journal
                .append("a part", |file| file.write_all(b"..").map_err(Error::file("write", &folder)))
                .expect("is kept")
        };
        let parts = [append(&mut journal), append(&mut journal)];
        assert_eq!(parts.each_ref().map(|part| part.segment), [0, 0]);
        // As if its parts had so many bytes.
        if let Some(segment) = &mut journal.segment {
            segment.length = FULL;
        }
        let next = append(&mut journal);
        assert_eq!(next, Part { segment: 1, bytes: 0..2 });
        drop(journal);
        let (journal, found) = open();
        assert!(found.into_iter().map(|(part, _)| part).eq(parts.into_iter().chain([next])));
        journal.remove();
        assert!(!folder.exists());
    }
}
