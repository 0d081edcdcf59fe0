//! Models without a configuration.

use std::path::Path;

use tacit_core::Error;

/// The refusal to write `path` for a library that has to know the model: `folder` does not say which it is.
pub(crate) fn unconfigured(path: &Path, folder: &Path) -> Error {
    let reason = format!("nothing says of what model it would be: {} has no config.json", folder.display());
    Error::checkpoint(path, None, reason, "name a GGUF file, or the folder of a model with its config.json")
}
