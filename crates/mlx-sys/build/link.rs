//! Tells cargo how to link, and dependents where the headers are.
//!
//! A program must find MLX at run time wherever it is started from, and the link arguments of this crate do not reach
//! the programs that depend on it. So the linker is given a copy of the library whose own name is the absolute path of
//! the real one. The linker writes that name into every program, and the loader opens it without a search.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::compiler::Compiler;
use crate::failure::Failure;
use crate::locate::Mlx;
use crate::versions::{self, Version};
use crate::{elf, environment, mach_o};

/// Writes the copy for the linker and the instructions for cargo.
pub(crate) fn emit(mlx: &Mlx) -> Result<(), Failure> {
    let folder = environment::out_dir().join("link");
    fs::create_dir_all(&folder).map_err(|error| Failure::io("create", &folder, &error))?;
    if environment::is_apple() {
        rename_mach_o(&mlx.library, &folder.join("libmlx.dylib"))?;
    } else {
        rename_elf(&mlx.library, &folder.join("libmlx.so"))?;
    }
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=dylib=mlx");
    Ok(())
}

/// Publishes what dependents read as `DEP_MLX_*`.
pub(crate) fn publish(mlx: &Mlx, source: &Path, compiler: &Compiler) -> Result<(), Failure> {
    let folders = [Some(mlx.include.as_path()), Some(source), compiler.compat.as_deref()].into_iter().flatten();
    if let Some(folder) = folders.clone().find(|folder| env::join_paths([folder]).is_err()) {
        return Err(Failure::no_search_path(folder));
    }
    let include = env::join_paths(folders).unwrap_or_default();
    println!("cargo::metadata=include={}", include.display());
    publish_version(mlx.version);
    println!("cargo::metadata=lib_dir={}", directory(&mlx.library).display());
    Ok(())
}

/// Publishes `DEP_MLX_VERSION`, and as `DEP_MLX_DEFINES` what an MLX of this version has.
pub(crate) fn publish_version(version: Version) {
    println!("cargo::metadata=version={version}");
    let defines: Vec<&str> = versions::defines(version).collect();
    println!("cargo::metadata=defines={}", defines.join(","));
}

fn rename_elf(library: &Path, copy: &Path) -> Result<(), Failure> {
    let data = fs::read(library).map_err(|error| Failure::io("read", library, &error))?;
    // The linker looks for the library's own dependencies too, relative to the copy unless told otherwise.
    let out = elf::renamed(&data, &library.to_string_lossy(), |search| absolute(search, library))
        .ok_or_else(|| Failure::no_link(library, "it is not a shared library for 64-bit Linux"))?;
    fs::write(copy, out).map_err(|error| Failure::io("write", copy, &error))
}

fn rename_mach_o(library: &Path, copy: &Path) -> Result<(), Failure> {
    let data = fs::read(library).map_err(|error| Failure::io("read", library, &error))?;
    let out = mach_o::renamed(&data, &library.to_string_lossy()).ok_or_else(|| {
        Failure::no_link(library, "it is not a shared library for 64-bit Apple machines, or has no room for its path")
    })?;
    fs::write(copy, out).map_err(|error| Failure::io("write", copy, &error))
}

/// A search path of the library with `$ORIGIN` replaced by its folder.
fn absolute(search: &str, library: &Path) -> String {
    let origin = directory(library).display().to_string();
    search.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin)
}

fn directory(library: &Path) -> PathBuf {
    library.parent().map(Path::to_owned).unwrap_or_default()
}
