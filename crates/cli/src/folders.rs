//! The folders for what outlives a program, and whether Tacit can use them.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io, process};

/// Where builds unpack MLX; nothing where no variable names an absolute path.
pub(crate) fn cache() -> Option<PathBuf> {
    if let Some(folder) = absolute("TACIT_CACHE_DIR") {
        return Some(folder);
    }
    if cfg!(target_vendor = "apple") {
        return Some(absolute("HOME")?.join("Library/Caches/tacit"));
    }
    Some(absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?.join("tacit"))
}

/// What `TACIT_CACHE_DIR` names where that is a relative path: builds refuse it, and programs pass over it.
pub(crate) fn relative_cache() -> Option<PathBuf> {
    let folder = env::var_os("TACIT_CACHE_DIR").filter(|value| !value.is_empty());
    folder.map(PathBuf::from).filter(|path| path.is_relative())
}

/// Where MLX keeps the loops that it compiles, for the programs to come; nothing where each makes its own.
pub(crate) fn loops() -> Option<PathBuf> {
    if loops_as_mlx() {
        return Some(env::temp_dir());
    }
    absolute("TACIT_MLX_TMPDIR").or_else(|| Some(cache()?.join("jit")))
}

/// Whether MLX chooses the folder of loops by itself.
fn loops_as_mlx() -> bool {
    cfg!(target_vendor = "apple") || env::var_os("TACIT_MLX_TMPDIR").is_some_and(|value| value == "keep")
}

fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Writes a file into the folder, or where it would be made.
pub(crate) fn write_into(folder: &Path) -> io::Result<()> {
    probed(folder, |_| Ok(()))
}

/// Writes such a file, a script that does nothing, and looks at it.
fn probed<T>(folder: &Path, look: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(folder);
    let probe = there.join(format!(".tacit-doctor-{}", process::id()));
    let looked = fs::write(&probe, b"#!/bin/sh\n").and_then(|()| look(&probe));
    // On a full disk there is one too, an empty one.
    let removed = fs::remove_file(&probe);
    looked.and_then(|looked| removed.map(|()| looked))
}

/// Writes into the folder of loops, which programs pass over where somebody else may have put a loop there, or none can be compiled
/// or loaded.
pub(crate) fn write_loops(folder: &Path) -> io::Result<()> {
    if folder.to_string_lossy().contains(['"', '$', '`', '\\']) {
        return Err(io::Error::other("MLX gives the path to a shell, to which one of its characters is special"));
    }
    let user = probed(folder, |probe| {
        fs::set_permissions(probe, Permissions::from_mode(0o700))?;
        match Command::new(probe).status() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(io::Error::other("nothing that lies there can be run, as where it is mounted noexec"))
            }
            _ => Ok(fs::metadata(probe)?.uid()),
        }
    })?;
    if loops_as_mlx() {
        return Ok(());
    }
    // One that is not there is made, and closed to others.
    match fs::symlink_metadata(folder) {
        Ok(own) if !own.is_dir() || own.permissions().mode() & 0o022 != 0 => {
            Err(io::Error::other("it is a link, or others may write to it"))
        }
        Ok(own) if own.uid() != user => Err(io::Error::other("it belongs to another user")),
        _ => Ok(()),
    }
}
