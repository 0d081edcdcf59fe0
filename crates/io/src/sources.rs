//! What a checkpoint is read of.

use std::path::{Path, PathBuf};

use tacit_core::Result;

use crate::index::Files;

/// The files that a checkpoint is read of: tensors, their index, and what beside them says how they are to be read.
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
    /// What says how tensors beside it are to be read.
    const BESIDE: [&str; 3] = ["config.json", "quantize_config.json", "quant_config.json"];
    let Files { path, mut parts, current, .. } = Files::find(path.as_ref())?;
    if !parts.contains(&path) {
        parts.push(path.clone());
    }
    parts.extend(BESIDE.map(|name| path.with_file_name(name)));
    let held = parts.iter().map(|file| current.path(file));
    Ok(held.filter(|file| file.is_file()).collect())
}
