//! Writes the Rust bindings of `mlx-c`.

use std::fs;
use std::path::Path;

use crate::failure::Failure;
use crate::{environment, header, mlx_c};

/// Writes `bindings.rs` into the output folder.
pub(crate) fn write(source: &Path) -> Result<(), Failure> {
    let mut bindings = String::new();
    for file in mlx_c::files(source, "h")? {
        let text = fs::read_to_string(&file).map_err(|error| Failure::io("read", &file, &error))?;
        bindings += &header::rust(&text).map_err(|declaration| Failure::no_bindings(&file, &declaration))?;
    }
    let file = environment::out_dir().join("bindings.rs");
    fs::write(&file, bindings).map_err(|error| Failure::io("write", &file, &error))
}
