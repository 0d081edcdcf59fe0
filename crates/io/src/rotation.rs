//! The latest checkpoints of a run in one folder.

use std::path::{Path, PathBuf};
use std::{fs, io};

use tacit_core::{Error, Result};
use tacit_files::make_folder;

use crate::Training;

/// A folder with the latest checkpoints of a run, a file a step: each save removes the oldest beyond a number.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use tacit_io::{CheckpointRotation, Training};
///
/// # let folder = std::env::temp_dir().join(format!("tacit-rotation-{}", std::process::id()));
/// let rotation = CheckpointRotation::new(&folder, 2)?;
/// for step in [100, 200, 300] {
///     rotation.save(&Training::new(step))?;
/// }
/// let steps: Vec<u64> = rotation.checkpoints()?.into_iter().map(|(step, _)| step).collect();
/// assert_eq!(steps, [200, 300]);
/// // .. in another process ..
/// if let Some(run) = rotation.load_latest()? {
///     assert_eq!(run.step, 300);
/// }
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok(())
/// # }
/// ```
///
/// The files are `step-00000100.safetensors` and the like, in the order of names that of steps. Other files of the folder, links and
/// folders of such a name among them, are left alone.
#[derive(Clone, Debug)]
pub struct CheckpointRotation {
    folder: PathBuf,
    keep: usize,
}

const BEFORE: &str = "step-";
const AFTER: &str = ".safetensors";

impl CheckpointRotation {
    /// The checkpoints in a folder, of which the latest `keep` stay.
    ///
    /// # Errors
    ///
    /// `keep` is 0.
    pub fn new(folder: impl Into<PathBuf>, keep: usize) -> Result<Self> {
        if keep == 0 {
            return Err(Error::invalid("a rotation that keeps no checkpoint", "keep at least 1"));
        }
        let folder: PathBuf = folder.into();
        // The folder of a name alone, as `Path::parent` has it: files are written there, and no such folder is listed.
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        Ok(Self { folder, keep })
    }

    /// Saves a run as the checkpoint of its step, and then removes the oldest ones beyond those that stay.
    ///
    /// # Errors
    ///
    /// The folder has a checkpoint of a later step, or as for [`Training::save`]; nothing is removed then.
    pub fn save(&self, run: &Training) -> Result<PathBuf> {
        let created = make_folder(&self.folder)?;
        if let Some((later, _)) = self.checkpoints()?.pop().filter(|(step, _)| *step > run.step) {
            return Err(Error::invalid(
                format!("{} has a checkpoint of step {later}, which is after step {}", self.folder.display(), run.step),
                "go on from the latest checkpoint, or save this run in a folder of its own",
            ));
        }
        let path = self.folder.join(format!("{BEFORE}{:08}{AFTER}", run.step));
        run.save(&path)?;
        drop(created);
        let checkpoints = self.checkpoints()?;
        for (_, old) in &checkpoints[..checkpoints.len().saturating_sub(self.keep)] {
            match fs::remove_file(old) {
                // Another process was first.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(Error::file("remove", old))?,
            }
        }
        Ok(path)
    }

    /// The steps and files of the checkpoints, the latest last.
    ///
    /// # Errors
    ///
    /// The folder cannot be read; one that is not there has none.
    pub fn checkpoints(&self) -> Result<Vec<(u64, PathBuf)>> {
        let failed = || Error::file("read", &self.folder);
        let mut checkpoints = Vec::new();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(checkpoints),
            entries => entries.map_err(failed())?,
        };
        for entry in entries {
            let entry = entry.map_err(failed())?;
            if entry.file_type().is_ok_and(|kind| kind.is_file())
                && let Some(step) = step_of(&entry.path())
            {
                checkpoints.push((step, entry.path()));
            }
        }
        checkpoints.sort_unstable();
        Ok(checkpoints)
    }

    /// The run of the latest checkpoint, if there is one.
    ///
    /// # Errors
    ///
    /// As for [`Training::load`].
    pub fn load_latest(&self) -> Result<Option<Training>> {
        self.checkpoints()?.pop().map(|(_, path)| Training::load(path)).transpose()
    }
}

/// The step that a file's name says, where the name is one of a checkpoint.
fn step_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let step = name.strip_prefix(BEFORE)?.strip_suffix(AFTER)?.parse().ok()?;
    (name == format!("{BEFORE}{step:08}{AFTER}")).then_some(step)
}
