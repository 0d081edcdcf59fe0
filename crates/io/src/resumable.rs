//! Values that are made one by one; an interruption loses only the one in progress.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tacit_bridge::MappedFile;
use tacit_core::{Error, Result, Value};
use tacit_files::{Journal, Part, Place};
use tacit_nn::Parameters;

use crate::checkpoint::{metadata, values};
use crate::mapped::mapped;
use crate::sources::{FileState, sources};
use crate::structure::take_apart;
use crate::writer::Writer;
use crate::{Tensors, Writing, save_with};

/// A checkpoint whose values take long to make, such as those that a calibration quantizes.
///
/// Each value is kept on the disk when it is made, in a folder beside the output: `.model.safetensors.parts` for
/// `model.safetensors`. A program that was killed and is called again with the same inputs finds what was made, and what it
/// writes in the end is the same, byte by byte, as without the interruption. The output itself is the old one until
/// [`finish`](Self::finish) has put the new one in its place; the folder is then gone, as it is where no value could be made. So
/// the disk needs room for the output twice, and the memory for one value: those that were made are parts of files, as
/// [`load`](crate::load()) has them. Where the output is a device or a pipe, nothing is kept on the disk.
///
/// Let go of each value, and take all of them from [`values`](Self::values) in the end: those are parts of a few files. A value that is
/// held until then is a mapping of its own, and Linux lets a process have some 32,000, half of what `vm.max_map_count` says.
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
/// for (path, value) in read(&input)? {
///     work.value(&path, "nf4:64", || Ok((format.quantize(&value.dense()?)?, ())))?;
/// }
/// let values = work.values()?;
/// work.finish(values, Writing::default())?;
/// assert_eq!(load(&output)?["proj.weight"].to_string(), "Nf4(f32[64,64])");
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Resumable {
    output: PathBuf,
    values: Values,
    resumed: usize,
}

/// The values that were made.
#[derive(Debug)]
enum Values {
    /// The values that were asked for, where the output is a stream.
    Held(Parameters),
    Kept(Kept),
}

/// Values in a folder beside the output.
#[derive(Debug)]
struct Kept {
    journal: Journal,
    /// Where the values are, with what is noted of them, by path and recipe.
    by_recipe: BTreeMap<(String, String), (Part, String)>,
    /// Where those are that were asked for, by path.
    asked: BTreeMap<String, Part>,
    /// The segments of the journal that were read, by their numbers.
    mapped: BTreeMap<u64, Arc<MappedFile>>,
}

impl Resumable {
    /// Begins the work on a checkpoint, or goes on with what is beside it.
    ///
    /// What was made is taken only if `inputs`, files or folders of which the values are made, have the same names, sizes
    /// and times of their last change.
    ///
    /// # Errors
    ///
    /// An input cannot be read; the output is a folder, a link or a disk; the folder beside it cannot be written, is a link,
    /// or was begun by another version of Tacit; or another program works on this output.
    pub fn open<P: AsRef<Path>>(output: impl AsRef<Path>, inputs: impl IntoIterator<Item = P>) -> Result<Self> {
        let output = output.as_ref();
        let inputs = inputs.into_iter().map(|input| state(input.as_ref())).collect::<Result<Vec<_>>>()?.concat();
        let values = match Place::at(output)? {
            Place::Stream => Values::Held(Parameters::new()),
            Place::File => Values::Kept(Kept::open(output, &inputs)?),
        };
        Ok(Self { output: output.to_owned(), values, resumed: 0 })
    }

    /// The value of a path with what is noted of it: the one that this recipe made before, or the one that `make` makes now.
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
        if let Some(found) = self.made(path, recipe) {
            return Ok(found);
        }
        let kept = match &mut self.values {
            Values::Kept(kept) => kept,
            Values::Held(values) => {
                let (value, note) = make()?;
                values.insert(path.to_owned(), value.clone());
                return Ok((value, note));
            }
        };
        let key = (path.to_owned(), recipe.to_owned());
        let (value, note) = make()?;
        let text = serde_json::to_string(&note).map_err(|error| Error::file("write", &self.output)(error.into()))?;
        // JSON has no numbers that are not finite, so that a note of one would be lost.
        let note = serde_json::from_str(&text).map_err(|error| {
            let help = "make it a note that JSON has, of finite numbers";
            Error::invalid(format!("the note of {path} cannot be read again: {error}"), help)
        })?;
        let part = kept.write(path, recipe, &text, value)?;
        // What a later call finds is what this one gives, and the memory is free again.
        let value = kept.read(path, &part)?;
        kept.by_recipe.insert(key, (part.clone(), text));
        kept.asked.insert(path.to_owned(), part);
        Ok((value, note))
    }

    /// All values that [`value`](Self::value) and [`made`](Self::made) gave, by path, each as it was given last. Those that are kept on
    /// the disk are parts of few files, and are read from there when they are used.
    ///
    /// # Errors
    ///
    /// What was kept is gone, or cannot be read.
    pub fn values(&mut self) -> Result<Parameters> {
        match &mut self.values {
            Values::Held(values) => Ok(values.clone()),
            Values::Kept(kept) => {
                let asked = kept.asked.clone().into_iter();
                asked.map(|(path, part)| kept.read(&path, &part).map(|value| (path, value))).collect()
            }
        }
    }

    /// The value of a path with what is noted of it, if this recipe made it before. Ask for all values first where those that are left
    /// need something that takes long, such as observing a model.
    pub fn made<N: DeserializeOwned>(&mut self, path: &str, recipe: &str) -> Option<(Value, N)> {
        let Values::Kept(kept) = &mut self.values else { return None };
        let (part, note) = kept.by_recipe.get(&(path.to_owned(), recipe.to_owned())).cloned()?;
        let found = (kept.read(path, &part).ok()?, serde_json::from_str(&note).ok()?);
        // Who asks again is given the same one.
        if kept.asked.insert(path.to_owned(), part.clone()) != Some(part) {
            self.resumed += 1;
        }
        Some(found)
    }

    /// How many values were found on the disk and not made again.
    #[must_use]
    pub const fn resumed(&self) -> usize {
        self.resumed
    }

    /// The folder in which values are kept until the checkpoint is complete; `None` where the output is a device or a pipe.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        match &self.values {
            Values::Kept(kept) => Some(kept.journal.folder()),
            Values::Held(_) => None,
        }
    }

    /// Saves the checkpoint, whose values need not all be made here, and removes what was kept beside it.
    ///
    /// # Errors
    ///
    /// As for [`save`](crate::save()); what was made is then kept, and the old output untouched.
    pub fn finish(self, parameters: impl Borrow<Parameters>, writing: Writing<'_>) -> Result<()> {
        let kept = match self.values {
            Values::Kept(kept) => Some(kept),
            // Each is to go when it is written.
            Values::Held(values) => {
                drop(values);
                None
            }
        };
        save_with(&self.output, parameters, writing)?;
        if let Some(kept) = kept {
            kept.journal.remove();
        }
        Ok(())
    }
}

impl Kept {
    /// Begins the work on an output of these inputs, or goes on with it.
    fn open(output: &Path, inputs: &str) -> Result<Self> {
        let name = output.file_name();
        let name = name.ok_or_else(|| Error::file("write", output)(io::ErrorKind::InvalidFilename.into()))?;
        let folder = output.with_file_name(format!(".{}.parts", name.to_string_lossy()));
        // In that version's layout each value was a file of its own.
        if folder.join("inputs").exists() {
            let help = "let that version finish it, or remove the folder to begin anew";
            return Err(Error::checkpoint(&folder, None, "an older version of Tacit began the work there", help));
        }
        let (journal, parts) = Journal::open(&folder, inputs, output)?.ok_or_else(|| {
            let help = "let the other program come to its end, or write to another place";
            Error::checkpoint(output, None, "it is being made already", help)
        })?;
        let said = parts.into_iter().filter_map(|(part, says)| {
            let (path, recipe, note) = serde_json::from_str::<(String, String, String)>(&says).ok()?;
            Some(((path, recipe), (part, note)))
        });
        Ok(Self { journal, by_recipe: said.collect(), asked: BTreeMap::new(), mapped: BTreeMap::new() })
    }

    /// Writes a value in the way of a checkpoint of its own.
    fn write(&mut self, path: &str, recipe: &str, note: &str, value: Value) -> Result<Part> {
        let folder = self.journal.folder().to_owned();
        let (structure, arrays) = take_apart(&Parameters::from([(path.to_owned(), value)]), None)?;
        let (said, tensors) = (metadata(&structure), arrays.into_iter().collect::<Vec<_>>());
        let mut writer = Writer::new(&folder, &tensors, &said, None)?;
        let says = serde_json::to_string(&(path, recipe, note));
        let says = says.map_err(|error| Error::file("write", &folder)(error.into()))?;
        self.journal.append(&says, |mut file| writer.write(&folder, &mut file, tensors))
    }

    fn read(&mut self, path: &str, part: &Part) -> Result<Value> {
        let file = self.journal.path(part.segment);
        let place = |at: u64| usize::try_from(at).map_err(io::Error::other).map_err(Error::file("map", &file));
        let bytes = place(part.bytes.start)?..place(part.bytes.end)?;
        let known = self.mapped.get(&part.segment);
        let mapped = match known.filter(|mapped| mapped.bytes().len() >= bytes.end) {
            Some(mapped) => Arc::clone(mapped),
            // It has grown since.
            None => Arc::new(mapped(&file, &file)?),
        };
        self.mapped.insert(part.segment, Arc::clone(&mapped));
        let tensors = Tensors::within(file, mapped, bytes)?;
        let gone = || tensors.wrong(Some(path), "it is not there", "remove the file, and its values are made again");
        values(&tensors)?.remove(path).ok_or_else(gone)
    }
}

/// The files that an input is read of, a line each: name, size and the time of the last change.
fn state(input: &Path) -> Result<String> {
    let line = |file: PathBuf| {
        let FileState { path, bytes, changed } = FileState::at(&file)?;
        Ok(format!("{} {bytes} {changed}\n", path.display()))
    };
    Ok(sources(input)?.into_iter().map(line).collect::<Result<Vec<_>>>()?.concat())
}
