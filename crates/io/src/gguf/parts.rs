//! Which files a model is: one, the only one of a folder, or all parts of one that was split.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use tacit_bridge::MappedFile;
use tacit_core::{Error, Result};
use tacit_files::{Current, current};

use super::cursor::Cursor;
use super::header::{self, Header};
use super::metadata::{self, GgufValue};
use crate::index::{INDEX, TENSORS};
use crate::mapped::mapped;

/// The key that says of how many files a model is.
const COUNT: &str = "split.count";

/// The files of a model, and what their headers say together. The first one has the metadata.
pub(super) struct Parts {
    pub(super) path: PathBuf,
    pub(super) files: Vec<MappedFile>,
    pub(super) header: Header,
}

impl Parts {
    /// The model that a file is, or a part of.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let (file, header) = opened(&path)?;
        let count = number(&header, &file, COUNT);
        let Some(count) = count.filter(|&count| count > 1) else {
            return Ok(Self { path, files: vec![file], header });
        };
        let name = path.file_name().and_then(|name| name.to_str()).and_then(Name::parse);
        let Some(name) = name.filter(|name| name.count as u64 == count) else {
            let reason = format!("it is {count}, and the name of the file does not say which of them it is");
            let help = format!("call the files NAME-00001-of-{count:05}.gguf and so on, as llama.cpp does");
            return Err(Error::checkpoint(&path, Some(COUNT), reason, help));
        };
        let part = |at: usize| Self::part(path.with_file_name(name.part(at)), at, count);
        let mut parts = part(0)?;
        for at in 1..name.count {
            parts.add(part(at)?)?;
        }
        let tensors = number(&parts.header, &parts.files[0], TENSOR_COUNT);
        if let Some(expected) = tensors.filter(|&tensors| tensors != parts.header.tensors.len() as u64) {
            let reason = format!("it is {expected}, and the parts have {}", parts.header.tensors.len());
            return Err(Error::checkpoint(&parts.path, Some(TENSOR_COUNT), reason, FETCH));
        }
        Ok(parts)
    }

    /// The part of this number, counted from 0, by itself.
    fn part(path: PathBuf, at: usize, count: u64) -> Result<Self> {
        let (file, header) = opened(&path)?;
        let found = ["split.no", COUNT].map(|key| number(&header, &file, key));
        if found != [Some(at as u64), Some(count)] {
            let reason = format!("it is not part {} of {count}", at + 1);
            return Err(Error::checkpoint(&path, Some("split.no"), reason, FETCH));
        }
        Ok(Self { path, files: vec![file], header })
    }

    fn add(&mut self, other: Self) -> Result<()> {
        let part = self.files.len();
        self.files.extend(other.files);
        for (name, mut stored) in other.header.tensors {
            stored.part = part;
            if self.header.tensors.contains_key(&name) {
                let reason = "an earlier part has a tensor of this name";
                return Err(Error::checkpoint(&other.path, Some(&name), reason, FETCH));
            }
            self.header.tensors.insert(name, stored);
        }
        Ok(())
    }
}

const FETCH: &str = "fetch all parts of the model again";

/// The key that says how many tensors all parts have.
const TENSOR_COUNT: &str = "split.tensors.count";

fn opened(path: &Path) -> Result<(MappedFile, Header)> {
    let file = mapped(path, &current(path)?)?;
    let header = header::header(path, file.bytes())?;
    Ok((file, header))
}

fn number(header: &Header, file: &MappedFile, key: &str) -> Option<u64> {
    let &(kind, at) = header.metadata.get(key)?;
    match metadata::value(&mut Cursor::new(file.bytes(), at), kind) {
        Ok(GgufValue::Unsigned(number)) => Some(number),
        Ok(GgufValue::Signed(number)) => u64::try_from(number).ok(),
        _ => None,
    }
}

/// The name of a part, `STEM-00002-of-00003.gguf`.
struct Name<'n> {
    stem: &'n str,
    /// From 0.
    number: usize,
    count: usize,
}

impl<'n> Name<'n> {
    fn parse(name: &'n str) -> Option<Self> {
        let digits = |text: &str| text.parse::<usize>().ok().filter(|_| text.len() == 5);
        let (rest, count) = name.strip_suffix(ENDING)?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let (number, count) = (digits(number)?.checked_sub(1)?, digits(count)?);
        (number < count).then_some(Self { stem, number, count })
    }

    fn part(&self, number: usize) -> String {
        format!("{}-{:05}-of-{:05}{ENDING}", self.stem, number + 1, self.count)
    }
}

const ENDING: &str = ".gguf";

/// The model in a folder, if there is one and no other tensors are there; of one that was split, its first part.
pub(super) fn in_folder(folder: &Path) -> Result<Option<PathBuf>> {
    let names = Current::read(folder)?.names()?;
    if names.iter().any(|name| name.ends_with(TENSORS) || name.ends_with(INDEX)) {
        return Ok(None);
    }
    let first = |name: &String| name.ends_with(ENDING) && Name::parse(name).is_none_or(|name| name.number == 0);
    let models: Vec<String> = names.into_iter().filter(first).collect();
    match &models[..] {
        [] => Ok(None),
        [model] => Ok(Some(folder.join(model))),
        [first, second, ..] => {
            let reason = format!("it holds {} models, among them {first} and {second}", models.len());
            Err(Error::checkpoint(folder, None, reason, "name the file of one of them"))
        }
    }
}

/// The file, or as many files as its name says that there are parts, those that are there.
pub(super) fn files(file: &Path) -> Result<Vec<PathBuf>> {
    let name = file.file_name().and_then(|name| name.to_str()).and_then(Name::parse);
    let parts = name.map_or_else(
        || vec![file.to_owned()],
        |name| (0..name.count).map(|at| file.with_file_name(name.part(at))).collect(),
    );
    let current = parts.iter().map(|part| current(part)).collect::<Result<Vec<_>>>()?;
    Ok(current.into_iter().filter(|part| part.is_file()).collect())
}

/// Whether a file begins as GGUF files do.
pub(super) fn is_gguf(path: &Path) -> Result<bool> {
    let file = current(path)?;
    let mut magic = [0; 4];
    // A pipe to which nobody writes would be waited for.
    let is_read = file.is_file() && File::open(file).and_then(|mut file| file.read_exact(&mut magic)).is_ok();
    Ok(is_read && magic == header::MAGIC)
}
