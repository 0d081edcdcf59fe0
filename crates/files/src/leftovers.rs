//! Hidden files that killed saves left.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use crate::disk;
use crate::staged::{BEGIN, END, boot};

/// From when on a file on its way is taken for one that nobody writes, where its lock does not tell.
const OLD: Duration = Duration::from_hours(24);

/// Removes the files on their way whose programs are dead, and nothing else. Whoever calls it has the folder locked.
pub(crate) fn clear(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        // It stays locked until it is gone: whoever has made a file tries to lock it before writing.
        if let Some(_locked) = name.to_str().and_then(boot_of).and_then(|boot| dead(&entry.path(), boot)) {
            drop(disk::remove(&entry.path()));
        }
    }
}

/// The boot of the machine in which an unfinished file was made, from its name.
pub(crate) fn boot_of(name: &str) -> Option<&str> {
    let (boot, drawn) = name.strip_prefix(BEGIN)?.strip_suffix(END)?.split_once('-')?;
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (boot.len() == 8 && plain(boot) && drawn.len() == 14 && plain(drawn)).then_some(boot)
}

/// The file, locked, if nobody writes it any more.
fn dead(path: &Path, made: &str) -> Option<File> {
    // Neither a link nor a folder.
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
    // Some file systems lock only what is open to be written.
    let file = File::options().read(true).write(true).open(path).or_else(|_| File::open(path)).ok()?;
    if file.try_lock().is_err() || !disk::is_file_at(&file, path) {
        return None;
    }
    // On some file systems a lock is not seen from other machines.
    let age = file.metadata().and_then(|own| own.modified()).ok().and_then(|time| time.elapsed().ok());
    let dead = (made == boot() && made != "00000000") || age.is_some_and(|age| age > OLD);
    dead.then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_save_gives_are_its_own() {
        assert_eq!(boot_of(".tacit-0a1b2c3d-abcdefgh012345.partial"), Some("0a1b2c3d"));
        for other in [
            "model.safetensors",
            ".tacit-save.json",
            ".tacit-0a1b2c3d-abcdefgh012345",
            ".tacit-0a1b2c3d-abc.partial",
            ".tacit-0a1b2c3d-abcdefgh0123/5.partial",
            "tacit-0a1b2c3d-abcdefgh012345.partial",
        ] {
            assert_eq!(boot_of(other), None, "{other}");
        }
    }
}
