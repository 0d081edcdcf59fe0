//! What a command may overwrite: never its inputs, and other files only where it is told to.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use tacit_core::{Error, Result};
use tacit_files::{Place, Staged, folder_of};
use tacit_io::{replaced, sources};

#[derive(Args)]
pub(crate) struct Overwriting {
    /// Replace what is there already; what the command reads is never replaced
    #[arg(long)]
    force: bool,
}

impl Overwriting {
    /// Checks, before any work, that files can be written at these places, and that the inputs are others.
    pub(crate) fn check<O: AsRef<Path>, I: AsRef<Path>>(
        &self,
        outputs: impl IntoIterator<Item = O>,
        inputs: impl IntoIterator<Item = I>,
    ) -> Result<()> {
        let outputs: Vec<O> = outputs.into_iter().collect();
        spare(&outputs, inputs)?;
        for output in &outputs {
            self.check_free(output.as_ref())?;
            check_makes(output.as_ref())?;
        }
        Ok(())
    }

    /// Checks that nothing is there yet, or may go.
    pub(crate) fn check_free(&self, output: &Path) -> Result<()> {
        match overwritten(output)?.first() {
            Some(file) if !self.force => {
                let message = format!("{} is there already", file.display());
                Err(Error::invalid(message, "write to another place, or replace it with `--force`"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks that a file can be made at a place, by making one on its way there.
pub(crate) fn check_makes(output: &Path) -> Result<()> {
    match Place::at(output)? {
        Place::File => Staged::beside(output).map(drop),
        Place::Stream => Ok(()),
    }
}

/// The files that a write to this place would replace.
fn overwritten(output: &Path) -> Result<Vec<PathBuf>> {
    Ok(if Place::at(output)? == Place::Stream { Vec::new() } else { replaced(output) })
}

/// Checks that what is written is nothing that is read.
pub(crate) fn spare<O: AsRef<Path>, I: AsRef<Path>>(outputs: &[O], inputs: impl IntoIterator<Item = I>) -> Result<()> {
    let mut read = Vec::new();
    for input in inputs {
        let input = input.as_ref();
        // Whoever reads it says what is wrong with it.
        read.extend(sources(input).unwrap_or_else(|_| vec![input.to_owned()]).iter().filter_map(|file| identity(file)));
    }
    for output in outputs {
        for file in overwritten(output.as_ref())? {
            if identity(&file).is_some_and(|file| read.contains(&file)) {
                let message = format!("{} is what is read, and would be overwritten", file.display());
                return Err(Error::invalid(message, "write to another place"));
            }
        }
    }
    Ok(())
}

/// Whether two outputs are one file, or will be.
pub(crate) fn is_one_file(a: &Path, b: &Path) -> bool {
    match (identity(a), identity(b)) {
        (Some(a), Some(b)) => a == b,
        // A folder that is not there yet is made, and has one name as well.
        (None, None) => {
            let is_named_alike = a.file_name().is_some() && a.file_name() == b.file_name();
            is_named_alike && is_one_file(folder_of(a), folder_of(b))
        }
        _ => false,
    }
}

/// The device and the inode of a file, which are the same under any name, links followed.
fn identity(file: &Path) -> Option<(u64, u64)> {
    fs::metadata(file).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody makes a file among the processes, whatever they may.
    #[test]
    fn a_place_where_nothing_can_be_made_is_refused_before_any_work() {
        let overwriting = Overwriting { force: false };
        let check = |place: &Path| overwriting.check([place], None::<&Path>);
        let error = check(Path::new("/proc/far.svg")).expect_err("nobody does").to_string();
        assert!(error.starts_with("cannot write /proc/far.svg: "), "{error}");
        let place = std::env::temp_dir().join(format!("tacit-overwriting-{}", std::process::id()));
        check(&place).expect("is free");
        assert!(!place.exists());
    }

    #[test]
    fn one_name_in_a_folder_that_is_not_there_yet_is_one_file() {
        let place = std::env::temp_dir().join(format!("tacit-one-file-{}", std::process::id()));
        let [a, b, c] = ["new/a", "new/b", "other/a"].map(|name| place.join(name));
        assert!(is_one_file(&a, &a) && !is_one_file(&a, &b) && !is_one_file(&a, &c));
    }
}
