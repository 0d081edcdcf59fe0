//! Reads safetensors: one file, several under an index, or a folder with either.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlx_rs::{Array, Dtype};
use tacit_bridge::MappedFile;
use tacit_core::{Aval, Error, Result};
use tacit_files::{Steady, folder_of};

use crate::header::{Stored, header};
use crate::index::Files;
use crate::mapped::{Part, mapped};

/// The tensors of a checkpoint in safetensors files, by name.
///
/// The files are memory-mapped: an array is a part of the file, and is read from the disk when it is used. Everything that
/// a file says is checked before it is believed; what is wrong is an [`Error::Checkpoint`] that names the file and the
/// tensor. See [`MappedFile`] for what must not be done to a file while its arrays are in use.
///
/// ```
/// use mlx_rs::Array;
/// use tacit_io::{Metadata, Tensors, write};
///
/// # fn main() -> tacit_core::Result<()> {
/// # let path = std::env::temp_dir().join(format!("tacit-tensors-{}.safetensors", std::process::id()));
/// write(&path, vec![("weight".to_owned(), Array::from_slice(&[1f32, 2.0], &[1, 2]))], &Metadata::new())?;
/// let tensors = Tensors::open(&path)?;
/// assert_eq!(tensors.names().collect::<Vec<_>>(), ["weight"]);
/// assert_eq!(tensors.aval("weight")?.to_string(), "f32[1,2]");
/// assert_eq!(tensors.get("weight")?.as_slice::<f32>(), [1.0, 2.0]);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tensors {
    path: PathBuf,
    files: Vec<(PathBuf, Arc<MappedFile>)>,
    places: BTreeMap<String, Place>,
    metadata: BTreeMap<String, String>,
}

/// Where a tensor is: in which of the files, and what its header says.
#[derive(Debug)]
struct Place {
    file: usize,
    stored: Stored,
}

impl Tensors {
    /// Opens a `.safetensors` file, a `.safetensors.index.json` or a folder, and checks what the headers say.
    ///
    /// Of a folder it takes `model.safetensors`, `model.safetensors.index.json`, the only index, or the only file, in this
    /// order.
    ///
    /// # Errors
    ///
    /// A file cannot be read ([`Error::File`]), or is not as the format demands ([`Error::Checkpoint`]): a header is too long or no
    /// JSON; a name is there twice; MLX does not have a dtype; a shape is too large; the bytes of a tensor do not fit its shape,
    /// overlap others, leave a gap or are not in the file; or an index names a file outside its folder, or other tensors than its files
    /// have.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let _steady = Steady::at(if path.is_dir() { path } else { folder_of(path) });
        let Files { path, parts, index, metadata, current } = Files::find(path)?;
        let mut this = Self { path, files: Vec::new(), places: BTreeMap::new(), metadata };
        for file in parts {
            let mapped = Arc::new(mapped(&file, &current.path(&file))?);
            let bytes = 0..mapped.bytes().len();
            this.add(file, mapped, bytes, index.as_ref())?;
        }
        let absent = index.iter().flatten().find(|(key, _)| !this.places.contains_key(*key));
        if let Some((key, file)) = absent {
            let reason = format!("the index {} names it, and it is not there", this.path.display());
            return Err(Error::checkpoint(file, Some(key), reason, "fetch the index and its files again, together"));
        }
        Ok(this)
    }

    /// The tensors of safetensors that are these bytes of a file.
    pub(crate) fn within(path: PathBuf, mapped: Arc<MappedFile>, bytes: Range<usize>) -> Result<Self> {
        let mut this =
            Self { path: path.clone(), files: Vec::new(), places: BTreeMap::new(), metadata: BTreeMap::new() };
        this.add(path, mapped, bytes, None)?;
        Ok(this)
    }

    /// Adds the tensors that these bytes of a file are.
    fn add(
        &mut self,
        path: PathBuf,
        mapped: Arc<MappedFile>,
        bytes: Range<usize>,
        index: Option<&BTreeMap<String, PathBuf>>,
    ) -> Result<()> {
        let header = header(&path, mapped.bytes().get(bytes.clone()).unwrap_or_default())?;
        for (name, mut stored) in header.tensors {
            stored.bytes = bytes.start + stored.bytes.start..bytes.start + stored.bytes.end;
            if index.is_some_and(|index| index.get(&name) != Some(&path)) {
                let reason = format!("the index {} does not say that it is there", self.path.display());
                return Err(Error::checkpoint(
                    &path,
                    Some(&name),
                    reason,
                    "fetch the index and its files again, together",
                ));
            }
            self.places.insert(name, Place { file: self.files.len(), stored });
        }
        for (key, value) in header.metadata {
            self.metadata.entry(key).or_insert(value);
        }
        self.files.push((path, mapped));
        Ok(())
    }

    /// The file or the index itself, which may be in the folder that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that holds it, in which there may be a `config.json`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// The names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The shape, and the dtype that the elements are read as.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name.
    pub fn aval(&self, name: &str) -> Result<&Aval> {
        Ok(&self.place(name)?.stored.aval)
    }

    /// The dtype as the file spells it: `F8_E4M3`, whose elements are read as `u8`.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name.
    pub fn stored_dtype(&self, name: &str) -> Result<&str> {
        Ok(&self.place(name)?.stored.dtype)
    }

    /// The tensor itself, a part of the file.
    ///
    /// It is copied only if its elements are not aligned in the file.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name, or it is a `BOOL` with other bytes than 0 and 1.
    pub fn get(&self, name: &str) -> Result<Array> {
        let Place { file, stored } = self.place(name)?;
        if stored.aval.dtype == Dtype::Bool
            && let Some(byte) = self.bytes(name)?.iter().find(|&&byte| byte > 1)
        {
            let help = "the file is not as it was written: fetch or write it again";
            return Err(self.wrong(Some(name), format!("a BOOL is 0 or 1, and one of it is {byte}"), help));
        }
        Ok(self.files[*file].1.array(stored.bytes.start, &stored.aval)?)
    }

    /// The bytes of a tensor's elements, row by row and little-endian.
    ///
    /// # Errors
    ///
    /// There is no tensor of this name.
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        let Place { file, stored } = self.place(name)?;
        let Range { start, end } = stored.bytes;
        Ok(&self.files[*file].1.bytes()[start..end])
    }

    /// The bytes of a tensor's elements, to be read when an array is evaluated.
    pub(crate) fn part(&self, name: &str) -> Result<Part> {
        let Place { file, stored } = self.place(name)?;
        Ok(Part { file: Arc::clone(&self.files[*file].1), place: stored.bytes.clone() })
    }

    /// The metadata, which files have under `__metadata__`.
    ///
    /// Of a key that several have, the value of the index counts, and then that of the first file.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The bytes of all files.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.files.iter().map(|(_, mapped)| mapped.bytes().len()).sum()
    }

    /// The error that something is wrong with what is read, or with one tensor of it; names the file.
    pub fn wrong(&self, name: Option<&str>, reason: impl Into<String>, help: impl Into<String>) -> Error {
        let place = name.and_then(|name| self.places.get(name));
        let file = place.map_or(&self.path, |place| &self.files[place.file].0);
        Error::checkpoint(file, name, reason, help)
    }

    fn place(&self, name: &str) -> Result<&Place> {
        self.places.get(name).ok_or_else(|| self.wrong(Some(name), "there is no such tensor", self.listed()))
    }

    fn listed(&self) -> String {
        const SHOWN: usize = 8;
        let shown: Vec<&str> = self.names().take(SHOWN).collect();
        match (shown.is_empty(), self.places.len().saturating_sub(SHOWN)) {
            (true, _) => "there is none at all".to_owned(),
            (_, 0) => format!("there are {}", shown.join(", ")),
            (_, left) => format!("there are {} and {left} more", shown.join(", ")),
        }
    }
}
