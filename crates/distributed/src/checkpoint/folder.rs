//! A save as the first rank keeps it in the folder: its number, what it replaces, and what is left of saves that were killed.
//!
//! Nothing in a folder is removed because of its name alone. Before any rank writes, the first one leaves a note there that
//! says which number the files of the save will have, a number that no file has yet. So whoever finds the note knows that files
//! of this number are those of the save, and as long as the save is under way the note is locked.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tacit_core::{Error, Result};
use tacit_files::make_folder;

use super::index::{INDEX, Index, save_of};

/// How often, and how long apart, a rank looks for the note of the first one: a file system between machines may be late.
const LOOKS: u32 = 40;
const APART: Duration = Duration::from_millis(50);

/// A save that is under way.
pub(super) struct Save {
    folder: PathBuf,
    id: u64,
    note: Note,
    /// The note, locked as long as it is open.
    file: File,
    /// Saves whose files are of no more use once this one is whole, with the ranks that they had.
    garbage: BTreeSet<(u64, usize)>,
    /// Notes of saves that were killed.
    notes: Vec<PathBuf>,
}

/// What the note of a save says.
#[derive(Serialize, Deserialize)]
struct Note {
    save: u64,
    size: usize,
    /// The save whose index was there before.
    replaces: Option<(u64, usize)>,
}

impl Save {
    /// Begins a save, and leaves its note. Files of saves that were killed go at once.
    ///
    /// # Errors
    ///
    /// The folder cannot be read or written, another save is under way, or the index that is there was not written by this crate.
    pub(super) fn begin(folder: &Path, size: usize) -> Result<Self> {
        // Gone again where the note cannot be left there.
        let _new = make_folder(folder)?;
        let id = RandomState::new().hash_one(std::process::id());
        let path = note_of(folder, id);
        let file = File::options().write(true).create_new(true).open(&path).map_err(Error::file("write", &path))?;
        Self::numbered(folder, id, size, file).inspect_err(|_| drop(fs::remove_file(&path)))
    }

    fn numbered(folder: &Path, id: u64, size: usize, file: File) -> Result<Self> {
        // Locked before others are looked for: of two that begin at once, one sees the other.
        let path = note_of(folder, id);
        let locked = lock(&file);
        if locked == Some(false) {
            // One that begins as well has just looked into it, and takes it for that of a dead save.
            return Err(under_way(folder));
        }
        let old = if folder.join(INDEX).exists() { Some(Index::read(folder)?.1) } else { None };
        let replaces = old.map(|index| (index.save, index.size));
        let mut this = Self {
            folder: folder.to_owned(),
            id,
            note: Note { save: 0, size, replaces },
            file,
            garbage: replaces.into_iter().collect(),
            notes: Vec::new(),
        };
        let mut last = replaces.map_or(0, |(save, _)| save);
        for name in names(folder)? {
            last = last.max(save_of(&name).map_or(0, |(save, _)| save));
            let other = folder.join(&name);
            if !is_note(&name) || other == path {
                continue;
            }
            match Found::read(&other).map_err(Error::file("read", &other))? {
                Found::UnderWay => return Err(under_way(folder)),
                // Without locks nobody can tell a save that was killed from one that is under way.
                Found::Dead(_) if locked.is_none() => {}
                Found::Dead(note) => {
                    last = last.max(note.as_ref().map_or(0, |note| note.save));
                    this.garbage.extend(note.and_then(|note| note.garbage(replaces)));
                    this.notes.push(other);
                }
                Found::Gone => {}
            }
        }
        this.note.save = last.checked_add(1).ok_or_else(|| {
            Error::checkpoint(folder, None, "it has a file of the last number of all", "save to another folder")
        })?;
        let text = serde_json::to_vec(&this.note).map_err(|error| Error::file("write", &path)(error.into()))?;
        this.file.write_all(&text).and_then(|()| this.file.sync_all()).map_err(Error::file("write", &path))?;
        // The disk may have room for two saves, and for no third.
        this.clear(|of| Some(of) != replaces);
        Ok(this)
    }

    /// The number of the save, which the names of its files have.
    pub(super) const fn number(&self) -> u64 {
        self.note.save
    }

    /// A number that no other save has.
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// Puts the index in its place, once every file that it names is in its own.
    ///
    /// # Errors
    ///
    /// A file is not there or not as the index says, or the index cannot be written.
    pub(super) fn commit(&self, index: &Index) -> Result<()> {
        index.check_files(&self.folder)?;
        index.write(&self.folder)
    }

    /// Removes the files of the saves before, now that the index names those of this one.
    pub(super) fn finish(self) {
        // What cannot be removed now goes with a later save, whose note is told of it, or stays: the save itself is whole.
        if self.clear(|_| true) {
            for note in self.notes.iter().chain([&note_of(&self.folder, self.id)]) {
                drop(fs::remove_file(note));
            }
        }
    }

    /// Removes the files of some of the saves that are of no more use, and tells whether none is left.
    fn clear(&self, is_meant: impl Fn((u64, usize)) -> bool) -> bool {
        let Ok(listed) = names(&self.folder) else { return false };
        let mut is_clear = true;
        for name in listed {
            let of = save_of(&name).filter(|of| self.garbage.contains(of) && of.0 != self.note.save && is_meant(*of));
            let path = self.folder.join(&name);
            if of.is_some() && fs::symlink_metadata(&path).is_ok_and(|file| file.is_file()) {
                is_clear &= fs::remove_file(&path).is_ok();
            }
        }
        is_clear
    }
}

impl Drop for Save {
    fn drop(&mut self) {
        // A save that failed and wrote nothing leaves nothing: what ranks have written, the next save finds by the note.
        if self.note.save == 0 || wrote_nothing(names(&self.folder), self.note.save) {
            drop(fs::remove_file(note_of(&self.folder, self.id)));
        }
    }
}

/// Whether no file of a save is among these names of a folder. Where they could not be read, one may be.
fn wrote_nothing(names: Result<Vec<String>>, save: u64) -> bool {
    names.is_ok_and(|names| names.iter().all(|name| save_of(name).is_none_or(|(of, _)| of != save)))
}

/// Whether this process sees the note that the first rank left.
pub(super) fn is_seen(folder: &Path, id: u64) -> bool {
    (0..LOOKS).any(|look| {
        if look > 0 {
            thread::sleep(APART);
        }
        note_of(folder, id).exists()
    })
}

fn note_of(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!(".run.{id:016x}.saving"))
}

fn is_note(name: &str) -> bool {
    name.strip_prefix(".run.")
        .and_then(|rest| rest.strip_suffix(".saving"))
        .is_some_and(|id| id.len() == 16 && id.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// What becomes of a note that is found.
enum Found {
    /// Its save is under way.
    UnderWay,
    /// Its save was killed or failed. What is cut off says nothing: it was left before any rank wrote.
    Dead(Option<Note>),
    /// It was taken away meanwhile.
    Gone,
}

impl Found {
    fn read(path: &Path) -> io::Result<Self> {
        let mut file = match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Gone),
            file => file?,
        };
        if lock(&file) == Some(false) {
            return Ok(Self::UnderWay);
        }
        let mut text = String::new();
        Ok(Self::Dead(file.read_to_string(&mut text).ok().and_then(|_| serde_json::from_str(&text).ok())))
    }
}

impl Note {
    /// The save that nobody needs any more, where this one is dead and the index names `current`.
    fn garbage(self, current: Option<(u64, usize)>) -> Option<(u64, usize)> {
        let is_whole = current.is_some_and(|(save, _)| save == self.save);
        if is_whole { self.replaces } else { Some((self.save, self.size)) }
    }
}

fn under_way(folder: &Path) -> Error {
    let help = "let it come to its end, or save to another folder";
    Error::checkpoint(folder, None, "another program saves into it", help)
}

/// Whether the lock of a file was free, and is this process's now; nothing in a file system without locks.
fn lock(file: &File) -> Option<bool> {
    was_free(&file.try_lock())
}

fn was_free(tried: &Result<(), TryLockError>) -> Option<bool> {
    match tried {
        Ok(()) => Some(true),
        Err(TryLockError::WouldBlock) => Some(false),
        // File systems without locks say so in several ways, such as ENOLCK over a network.
        Err(TryLockError::Error(_)) => None,
    }
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(Error::file("read", folder))?;
    let entries = entries.collect::<io::Result<Vec<_>>>().map_err(Error::file("read", folder))?;
    // A name that is not UTF-8 was not given by a save.
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use tacit_files::faults::{Fault, inject};

    use super::super::index::file_of;
    use super::*;
    use crate::layout::Place;

    #[test]
    fn a_save_whose_note_another_one_holds_does_not_begin() {
        let folder = std::env::temp_dir().join(format!("tacit-ranks-held-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("makes");
        let file = File::create(note_of(&folder, 7)).expect("makes");
        let other = File::open(note_of(&folder, 7)).expect("opens");
        other.try_lock().expect("is free");
        let error = Save::numbered(&folder, 7, 1, file).err().expect("another has the lock").to_string();
        expect![[r"
            FOLDER: another program saves into it
            help: let it come to its end, or save to another folder"]]
        .assert_eq(&error.replace(&*folder.to_string_lossy(), "FOLDER"));
        fs::remove_dir_all(&folder).expect("removes");
    }

    #[test]
    fn a_folder_whose_name_does_not_reach_the_disk_is_an_error_and_goes() {
        let outer = std::env::temp_dir().join(format!("tacit-ranks-made-{}", std::process::id()));
        fs::create_dir_all(&outer).expect("makes");
        let folder = outer.join("run");
        let (begun, steps) = inject(1, Fault::Fails(5), || Save::begin(&folder, 1).map(drop));
        assert!(matches!(begun, Err(Error::File { .. })), "{begun:?}");
        assert_eq!((steps, fs::read_dir(&outer).expect("is there").count()), (2, 0));
        fs::remove_dir_all(&outer).expect("removes");
    }

    #[test]
    fn a_note_goes_only_where_nothing_was_written() {
        let folder = std::env::temp_dir().join(format!("tacit-ranks-no-folder-{}", std::process::id()));
        assert!(names(&folder).is_err() && !wrote_nothing(names(&folder), 3));
        let file = file_of(Path::new(""), 3, Place { rank: 0, size: 2 });
        let listed = || Ok(vec!["notes.txt".to_owned(), file.to_string_lossy().into_owned()]);
        assert!(!wrote_nothing(listed(), 3) && wrote_nothing(listed(), 4));
    }

    #[test]
    fn a_file_system_that_refuses_to_lock_has_no_locks() {
        for kind in [io::ErrorKind::Unsupported, io::ErrorKind::InvalidInput, io::ErrorKind::Other] {
            assert_eq!(was_free(&Err(TryLockError::Error(kind.into()))), None);
        }
        assert_eq!((was_free(&Ok(())), was_free(&Err(TryLockError::WouldBlock))), (Some(true), Some(false)));
    }
}
