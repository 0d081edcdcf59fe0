//! Sets of files that appear at once, whenever the program ends.
//!
//! A checkpoint is several files: tensors, an index, a configuration. No system renames several files at once, so a save goes
//! like this:
//!
//! 1. Each file is written whole into the folder under a name that nobody can guess ([`Staged`]), and nothing is there yet
//!    but hidden files, which go when the program fails or is interrupted.
//! 2. [`Commit`] puts them on the disk, and then one small file, `.tacit-save.json`, that says which hidden file gets which
//!    name, and which old files are removed. From the moment that this file is there the save is made.
//! 3. The files get their names, these old files are removed, and `.tacit-save.json` is removed last.
//!
//! Where the program is killed before the second step has ended, the folder holds the old files. After it, whoever reads
//! through [`Current`] sees the new ones under their names, wherever they are, and the next save in the folder finishes what
//! was begun. A single file needs no such record: it is renamed.
//!
//! Other programs know nothing of the record, and would decode new tensors by an old configuration where a program is killed
//! between two renames. So the files without which nothing is read ([`Commit::place_last`]) are away while the others
//! change: what another program finds then is an incomplete folder, and never a mixed one.
//!
//! A save removes only what the caller names and the hidden files of saves whose program has ended. It replaces only regular
//! files: no folder, no device, no link. [`Output`] writes through devices and pipes.
//!
//! What is made piece by piece over hours is kept by a [`Journal`] until all of it is there.

mod commit;
mod current;
mod disk;
#[cfg(feature = "faults")]
pub mod faults;
mod folders;
mod journal;
mod leftovers;
mod lock;
mod output;
mod place;
mod record;
mod room;
mod staged;
mod work;

pub use commit::Commit;
pub use current::{Current, current, current_if_there};
pub use disk::is_file_at;
pub use folders::{NewFolders, make_folder};
pub use journal::{Journal, NamedParts, Part};
pub use lock::Steady;
pub use output::{Output, replace};
pub use place::{Place, folder_of, is_stdout};
pub use room::Room;
pub use staged::{Staged, abandon};
pub use work::lock_work;
