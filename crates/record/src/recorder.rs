//! Writing a record as the run goes.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use mlx_rs::{Array, memory};
use serde::de::IgnoredAny;
use tacit_core::{Error, Result, printable};
use tacit_files::{folder_of, make_folder, replace};

use crate::entry::entries;
use crate::{Entry, Histogram, Recorded};

/// Appends what a training run says of itself to a file, a line of JSON at a time.
///
/// A step's number is that of the steps that were made, so the first is 1, and a checkpoint that was saved after step 100 goes
/// with all entries up to 100. Each line is given to the system as it is recorded: of a run that is killed at most the last
/// is lost. What could not be written as a whole, because the disk was full, is taken back, so that later lines are whole.
///
/// The path may be that of a device or a pipe, which cannot be resumed. One recorder writes a file at a time: of several ranks one
/// records, or each into a file of its own.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_record::{Record, Recorder};
///
/// # let file = std::env::temp_dir().join(format!("tacit-recorder-{}.jsonl", std::process::id()));
/// let mut recorder = Recorder::create(&file)?;
/// for step in 1..=5 {
///     recorder.scalar(step, "loss", 0.5)?;
/// }
/// recorder.histogram(5, "scales", &Array::from_slice(&[0.1f32, 0.2], &[2]))?;
///
/// // .. killed here, and resumed from a checkpoint of step 3: what lies beyond it was another run's ..
/// drop(recorder);
/// let mut recorder = Recorder::resume(&file, 3)?;
/// recorder.scalar(4, "loss", 0.25)?;
/// assert_eq!(Record::read(&file)?.scalar("loss")?.points(), [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.25)]);
/// # std::fs::remove_file(file).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Recorder {
    /// Locked as long as it is open.
    file: File,
    path: PathBuf,
    /// The bytes of all lines that were written whole.
    whole: u64,
    /// Whether a part of a line may stand behind them.
    torn: bool,
}

/// The names under which [`Recorder::memory`] records.
const MEMORY: [&str; 3] = ["memory/active", "memory/peak", "memory/cache"];

impl Recorder {
    /// Begins a record.
    ///
    /// An old record at the path is replaced, and the folder is made where it does not exist.
    ///
    /// # Errors
    ///
    /// The file is no record, the system refuses to write there, or another recorder does; it is then what it was.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if fs::metadata(path).is_ok_and(|own| own.is_file()) {
            check_first(path)?;
        }
        let _new = make_folder(folder_of(path))?;
        let file = File::options().create(true).append(true).open(path).map_err(Error::file("write", path))?;
        // Before what another one writes is gone.
        lock(&file, path)?;
        cut(&file, 0).map_err(Error::file("write", path))?;
        Ok(Self { file, path: path.to_owned(), whole: 0, torn: false })
    }

    /// Continues a record after `made` steps: entries of later steps are dropped, and so is a line that was not written to its end.
    ///
    /// Where there is no file a record is begun, so that a program can always resume.
    ///
    /// # Errors
    ///
    /// The file is no record, the system refuses to write it, or another recorder writes it; it is then what it was.
    pub fn resume(path: impl AsRef<Path>, made: u64) -> Result<Self> {
        let path = path.as_ref();
        // A device or a pipe holds nothing to continue, and is not opened for reading: it may wait for its reader.
        if fs::metadata(path).is_ok_and(|own| !own.is_file()) {
            return Self::create(path);
        }
        let file = match File::options().read(true).append(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::create(path),
            Err(error) => return Err(Error::file("open", path)(error)),
        };
        lock(&file, path)?;
        check_first(path)?;
        let bytes = fs::read(path).map_err(Error::file("read", path))?;
        let mut kept = Vec::with_capacity(bytes.len());
        let mut at = 0;
        for (entry, length) in entries(path, &bytes)? {
            if entry.step <= made {
                kept.extend_from_slice(&bytes[at..at + length]);
            }
            at += length;
        }
        let whole = kept.len() as u64;
        let file = if bytes.starts_with(&kept) {
            cut(&file, whole).map_err(Error::file("write", path))?;
            file
        } else {
            replace(path, &kept)?;
            let file = File::options().append(true).open(path).map_err(Error::file("write", path))?;
            lock(&file, path)?;
            file
        };
        Ok(Self { file, path: path.to_owned(), whole, torn: false })
    }

    /// Records a number, such as a loss or a learning rate.
    ///
    /// # Errors
    ///
    /// The system refuses to write.
    pub fn scalar(&mut self, step: u64, name: &str, value: impl Into<f64>) -> Result<()> {
        self.record(step, name, Recorded::Value(value.into()))
    }

    /// Records the histogram of an array's elements.
    ///
    /// The array is evaluated.
    ///
    /// # Errors
    ///
    /// As for [`Histogram::from_array`], or the system refuses to write.
    pub fn histogram(&mut self, step: u64, name: &str, array: &Array) -> Result<()> {
        self.record(step, name, Recorded::Histogram(Histogram::from_array(array)?))
    }

    /// Records the bytes that MLX holds now, those that it held at most since this was last called, and those that it keeps for
    /// reuse: `memory/active`, `memory/peak` and `memory/cache`.
    ///
    /// These are arrays alone. A file that is mapped, and what MLX did not allocate itself, are not among them.
    ///
    /// # Errors
    ///
    /// MLX cannot say, or the system refuses to write.
    pub fn memory(&mut self, step: u64) -> Result<()> {
        let bytes = [memory::active_memory()?, memory::peak_memory()?, memory::cache_memory()?];
        memory::reset_peak_memory()?;
        for (name, bytes) in MEMORY.into_iter().zip(bytes) {
            self.scalar(step, name, bytes as f64)?;
        }
        Ok(())
    }

    /// Where the record is written.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn record(&mut self, step: u64, name: &str, recorded: Recorded) -> Result<()> {
        let line = Entry { step, name: name.to_owned(), recorded }.to_line(&self.path)?;
        // In one call, so that what a killed program leaves is at most one line without its end.
        let written = self.mended().and_then(|()| self.file.write_all(line.as_bytes()));
        if written.is_ok() {
            self.whole += line.len() as u64;
        } else {
            self.torn = true;
            // The next line tries again; who reads the record until then sees one without its end.
            let _ = self.mended();
        }
        written.map_err(Error::file("write", &self.path))
    }

    /// Takes back the part of a line that was not written to its end.
    fn mended(&mut self) -> io::Result<()> {
        if self.torn {
            cut(&self.file, self.whole)?;
            self.torn = false;
        }
        Ok(())
    }
}

/// Whether it is no device or pipe, which keeps nothing that could be read again or taken back.
fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|own| own.is_file())
}

/// Takes back what a file holds behind so many bytes.
fn cut(file: &File, length: u64) -> io::Result<()> {
    if is_regular(file) { file.set_len(length) } else { Ok(()) }
}

/// Lets no other recorder write the file, on this machine, as long as it is open. Any number of them write to a device.
fn lock(file: &File, path: &Path) -> Result<()> {
    if !is_regular(file) {
        return Ok(());
    }
    match file.try_lock() {
        // Not every file system has locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::invalid(
            format!("another recorder writes {}", printable::name(&path.to_string_lossy())),
            "let one rank record, or give each a file of its own",
        )),
    }
}

/// No entry of a record has more bytes.
const LONGEST: u64 = 1 << 24;

/// Checks that a file begins as a record, or not at all.
fn check_first(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(Error::file("open", path))?;
    let mut line = Vec::new();
    BufReader::new(file.take(LONGEST)).read_until(b'\n', &mut line).map_err(Error::file("read", path))?;
    // The first line may not have been written to its end; any other text is one that ends here.
    if !is_begun(&line) {
        line.push(b'\n');
    }
    entries(path, &line).map(drop)
}

/// Whether a line may be an entry, or the beginning of one.
fn is_begun(line: &[u8]) -> bool {
    const BEGIN: &[u8] = b"{\"step\":";
    // What is whole is an entry, or another program's JSON.
    let is_whole = || serde_json::from_slice::<IgnoredAny>(line).is_ok();
    BEGIN.starts_with(line) || line.starts_with(BEGIN) && (serde_json::from_slice::<Entry>(line).is_ok() || !is_whole())
}
