//! The files that a checkpoint is read from.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tacit_core::{Error, Result};

use crate::Gguf;
use crate::index::Files;

/// The files that a checkpoint is read from: tensors, their index, and what beside them says how they are to be read; or all parts
/// of a GGUF file.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("tacit-sources-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).ok();
/// let file = folder.join("model.safetensors");
/// tacit_io::save(&file, &tacit_nn::Parameters::new())?;
/// assert_eq!(tacit_io::sources(&folder)?, [file]);
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// There is no such checkpoint, or an index that cannot be read.
pub fn sources(path: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    /// What says how tensors beside it are to be read, and where the texts of a decoder end.
    const BESIDE: [&str; 4] = ["config.json", "generation_config.json", "quantize_config.json", "quant_config.json"];
    if let Some(file) = Gguf::find(&path)? {
        return Gguf::files(&file);
    }
    let Files { path, mut parts, current, .. } = Files::find(path.as_ref())?;
    if !parts.contains(&path) {
        parts.push(path.clone());
    }
    parts.extend(BESIDE.map(|name| path.with_file_name(name)));
    let files = parts.iter().map(|file| current.path(file));
    Ok(files.filter(|file| file.is_file()).collect())
}

/// Name, size and time of a file, by which it is known again without being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileState {
    /// Its absolute path, without links.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was changed last, in nanoseconds since 1970; 0 where that is not known.
    pub changed: u128,
}

impl FileState {
    /// The state of a file as it is now.
    ///
    /// # Errors
    ///
    /// There is no such file, or the system does not tell its size.
    pub fn at(file: &Path) -> Result<Self> {
        let metadata = fs::metadata(file).map_err(Error::file("open", file))?;
        let changed = metadata.modified().ok().and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_nanos()));
        let path = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        Ok(Self { path, bytes: metadata.len(), changed: changed.unwrap_or_default() })
    }
}
