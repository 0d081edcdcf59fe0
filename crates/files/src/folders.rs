//! Folders that are made for an output.

use std::fs;
use std::path::{Path, PathBuf};

use tacit_core::{Error, Result};

use crate::disk;
use crate::place::folder_of;
use crate::staged::live;

/// Folders that were made, which are gone again if nothing is in them when this is dropped.
#[derive(Debug)]
#[must_use = "when it is dropped, a folder that is empty goes"]
pub struct NewFolders(Vec<PathBuf>);

impl Drop for NewFolders {
    fn drop(&mut self) {
        let mut live = live();
        // The innermost comes first. What holds something stays, which the system sees to.
        for folder in &self.0 {
            live.remove(folder);
            if !disk::ended() {
                drop(fs::remove_dir(folder));
            }
        }
    }
}

/// Makes a folder for what is to be written into it, and those that it is in.
///
/// # Errors
///
/// A link is in its place that leads nowhere, or the system refuses it.
pub fn make_folder(folder: &Path) -> Result<NewFolders> {
    if let Some(link) = folder.ancestors().find(|folder| folder.is_symlink() && !folder.exists()) {
        let to = fs::read_link(link).unwrap_or_default();
        return Err(Error::invalid(
            format!("{} is a link to {}, where nothing is", link.display(), to.display()),
            "name another folder, or remove the link",
        ));
    }
    // The names of new folders must be on the disk before what they hold can be said to be.
    let new: Vec<PathBuf> = folder
        .ancestors()
        .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        .map(Path::to_owned)
        .collect();
    live().extend(new.iter().cloned());
    let new = NewFolders(new);
    disk::step().and_then(|()| fs::create_dir_all(folder)).map_err(Error::file("make", folder))?;
    for folder in &new.0 {
        let parent = folder_of(folder);
        fs::File::open(parent).and_then(|parent| disk::sync(&parent)).map_err(Error::file("make", folder))?;
    }
    Ok(new)
}
