//! Values that are made one by one, of which an interruption loses none but the one at hand.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tacit_core::{Error, Result, Value};
use tacit_files::{Place, lock_work};
use tacit_nn::Parameters;

use crate::checkpoint::{metadata, values};
use crate::index::TENSORS;
use crate::sources::{FileState, sources};
use crate::structure::take_apart;
use crate::write::write;
use crate::{Tensors, Writing, save_with};

/// A checkpoint whose values take long to make, such as those that a calibration quantizes.
///
/// Each value is kept on the disk when it is made, in a folder beside the output: `.model.safetensors.parts` for
/// `model.safetensors`. A program that was killed and is called again with the same inputs finds what was made, and what it
/// writes in the end is the same, byte by byte, as without the interruption. The output itself is the old one until
/// [`finish`](Self::finish) has put the new one in its place; the folder is then gone, as it is where no value could be made. So
/// the disk needs room for the output twice, and the memory for one value: those that were made are parts of files, as
/// [`load`](crate::load()) has them, of which Linux lets a process have some 32,000, or half of what `vm.max_map_count` says. Where
/// the output is a device or a pipe, nothing is kept on the disk.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("tacit-resumable-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).ok();
/// # let (input, output) = (folder.join("model.safetensors"), folder.join("small.safetensors"));
/// use mlx_rs::ops;
/// use tacit_arrays::format::{Nf4, Quantizer};
/// use tacit_io::{Resumable, Writing, load, read, save};
/// use tacit_nn::Parameters;
///
/// save(&input, &Parameters::from([("proj.weight".to_owned(), ops::ones::<f32>(&[64, 64])?.into())]))?;
///
/// let format = Nf4 { block: 64, double: false };
/// let mut work = Resumable::open(&output, [&input])?;
/// let mut made = Parameters::new();
/// for (path, value) in read(&input)? {
///     let (value, ()) = work.value(&path, "nf4:64", || Ok((format.quantize(&value.dense()?)?, ())))?;
///     made.insert(path, value);
/// }
/// work.finish(&made, Writing::default())?;
/// assert_eq!(load(&output)?["proj.weight"].to_string(), "Nf4(f32[64,64])");
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Resumable {
    output: PathBuf,
    /// Nothing where the output is a stream.
    kept: Option<Kept>,
    resumed: usize,
}

/// The folder of the values that were made.
#[derive(Debug)]
struct Kept {
    folder: PathBuf,
    /// Says what the values are made of, and is locked while somebody works here.
    source: File,
    /// The files of values, by path and recipe.
    made: BTreeMap<(String, String), PathBuf>,
}

const PATH: &str = "tacit.made.path";
const RECIPE: &str = "tacit.made.recipe";
const NOTE: &str = "tacit.made.note";

impl Resumable {
    /// Begins the work on a checkpoint, or goes on with what is beside it.
    ///
    /// What was made is taken only if `inputs`, files or folders of which the values are made, have the same names, sizes
    /// and times of their last change.
    ///
    /// # Errors
    ///
    /// An input cannot be read; the output is a folder, a link or a disk; the folder beside it cannot be written, or is a link;
    /// or another program works on this output.
    pub fn open<P: AsRef<Path>>(output: impl AsRef<Path>, inputs: impl IntoIterator<Item = P>) -> Result<Self> {
        let output = output.as_ref();
        let inputs = inputs.into_iter().map(|input| state(input.as_ref())).collect::<Result<Vec<_>>>()?.concat();
        let failed = |error| Error::file("write", output)(error);
        let kept = match Place::of(output)? {
            Place::Stream => None,
            Place::File => {
                let name = output.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
                let folder = output.with_file_name(format!(".{}.parts", name.to_string_lossy()));
                let source = lock_work(&folder, INPUTS, output)?.ok_or_else(|| {
                    let help = "let the other program come to its end, or write to another place";
                    Error::checkpoint(output, None, "it is being made already", help)
                })?;
                let mut kept = Kept { folder, source, made: BTreeMap::new() };
                kept.take_up(&inputs).map_err(failed)?;
                Some(kept)
            }
        };
        Ok(Self { output: output.to_owned(), kept, resumed: 0 })
    }

    /// The value of a path with what is noted of it: what was made by this recipe before, or what `make` makes now.
    ///
    /// A recipe is a text such as that of a format, and two that are the same make the same value.
    ///
    /// # Errors
    ///
    /// `make` fails, or the value cannot be saved: see [`save`](crate::save()).
    pub fn value<N: Serialize + DeserializeOwned>(
        &mut self,
        path: &str,
        recipe: &str,
        make: impl FnOnce() -> Result<(Value, N)>,
    ) -> Result<(Value, N)> {
        let Some(kept) = &mut self.kept else { return make() };
        let key = (path.to_owned(), recipe.to_owned());
        if let Some(found) = kept.made.get(&key).and_then(|file| read_part(file, path).ok()) {
            self.resumed += 1;
            return Ok(found);
        }
        let file = kept.made.get(&key).cloned().unwrap_or_else(|| kept.free());
        let (value, note) = make()?;
        let (structure, arrays) = take_apart(&Parameters::from([(path.to_owned(), value)]), None)?;
        let mut said = metadata(&structure);
        let note = serde_json::to_string(&note).map_err(|error| Error::file("write", &file)(error.into()))?;
        // JSON has no numbers that are not finite, so that a note of one would be lost.
        if let Err(error) = serde_json::from_str::<N>(&note) {
            let help = "make it a note that JSON has, of finite numbers";
            return Err(Error::invalid(format!("the note of {path} cannot be read again: {error}"), help));
        }
        said.extend(
            [(PATH, path.to_owned()), (RECIPE, recipe.to_owned()), (NOTE, note)].map(|(k, v)| (k.to_owned(), v)),
        );
        write(&file, arrays.into_iter().collect(), &said)?;
        // What a later call finds is what this one gives, and the memory is free again.
        let made = read_part(&file, path)?;
        kept.made.insert(key, file);
        Ok(made)
    }

    /// How many values were found on the disk and not made again.
    #[must_use]
    pub const fn resumed(&self) -> usize {
        self.resumed
    }

    /// The folder in which values are kept until the checkpoint is complete; `None` where the output is a device or a pipe.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.kept.as_ref().map(|kept| &*kept.folder)
    }

    /// Saves the checkpoint, whose values need not all be made here, and removes what was kept beside it.
    ///
    /// # Errors
    ///
    /// As for [`save`](crate::save()); what was made is then kept, and the old output untouched.
    pub fn finish(self, parameters: impl Borrow<Parameters>, writing: Writing<'_>) -> Result<()> {
        save_with(&self.output, parameters, writing)?;
        let Some(kept) = self.kept else { return Ok(()) };
        // The output is whole. What the values were made of goes last, with the folder: it is the lock.
        let parts = fs::read_dir(&kept.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        for file in parts.filter(|file| is_part(file)) {
            drop(fs::remove_file(file));
        }
        Ok(())
    }
}

impl Kept {
    /// Takes up the values of the same inputs, or removes those of others.
    fn take_up(&mut self, inputs: &str) -> io::Result<()> {
        let mut old = String::new();
        // What is no text is of no inputs.
        let same = self.source.read_to_string(&mut old).is_ok() && old == inputs;
        for entry in fs::read_dir(&self.folder)? {
            let file = entry?.path();
            if !is_part(&file) {
                continue;
            }
            let said = |tensors: &Tensors| {
                let said = |key: &str| tensors.metadata().get(key).cloned();
                Some((said(PATH)?, said(RECIPE)?))
            };
            match Tensors::open(&file).ok().as_ref().and_then(said).filter(|_| same) {
                Some(key) => drop(self.made.insert(key, file)),
                None if file.is_dir() => {}
                None => fs::remove_file(file)?,
            }
        }
        if !same {
            // What is of other inputs is gone for good before these are said to be the inputs.
            File::open(&self.folder)?.sync_all()?;
            self.source.set_len(0)?;
            self.source.rewind()?;
            self.source.write_all(inputs.as_bytes())?;
            self.source.sync_all()?;
        }
        Ok(())
    }

    /// A name that no value has.
    fn free(&self) -> PathBuf {
        let name = |number: usize| self.folder.join(format!("{number}{TENSORS}"));
        let mut number = self.made.len();
        while fs::symlink_metadata(name(number)).is_ok() {
            number += 1;
        }
        name(number)
    }
}

impl Drop for Kept {
    /// Removes the folder while it is locked, where it holds no value. It stays where somebody else has put something into it.
    fn drop(&mut self) {
        let is_inputs = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() == INPUTS);
        if fs::read_dir(&self.folder).is_ok_and(|mut entries| entries.all(is_inputs)) {
            drop(fs::remove_file(self.folder.join(INPUTS)));
            drop(fs::remove_dir(&self.folder));
        }
    }
}

/// What the values are made of.
const INPUTS: &str = "inputs";

/// Whether a file has the name of a value's.
fn is_part(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(TENSORS));
    name.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

fn read_part<N: DeserializeOwned>(file: &Path, path: &str) -> Result<(Value, N)> {
    let tensors = Tensors::open(file)?;
    let wrong = |reason: String| tensors.wrong(Some(path), reason, "remove the file, and it is made again");
    let value = values(&tensors)?.remove(path).ok_or_else(|| wrong("it is not there".to_owned()))?;
    let note = tensors.metadata().get(NOTE).map_or("", String::as_str);
    Ok((value, serde_json::from_str(note).map_err(|error| wrong(format!("its note cannot be read: {error}")))?))
}

/// The files that an input is read of, a line each: name, size and the time of the last change.
fn state(input: &Path) -> Result<String> {
    let line = |file: PathBuf| {
        let FileState { path, bytes, changed } = FileState::of(&file)?;
        Ok(format!("{} {bytes} {changed}\n", path.display()))
    };
    Ok(sources(input)?.into_iter().map(line).collect::<Result<Vec<_>>>()?.concat())
}
