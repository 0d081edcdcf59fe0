//! The paths of entries that come one after the other, each before its children.

use super::Path;
use super::entry::Entry;

/// Where a walk over entries is.
#[derive(Default)]
pub(super) struct Places {
    /// The entries whose children come, by their indices, with their paths and how many children came.
    open: Vec<(usize, Path, usize)>,
}

impl Places {
    /// The path of the next entry, which comes after `entries`.
    pub(super) fn next(&mut self, entries: &[Entry]) -> Path {
        while self.open.pop_if(|(parent, _, came)| *came == entries[*parent].len()).is_some() {}
        match self.open.last_mut() {
            None => Path::default(),
            Some((parent, path, came)) => {
                *came += 1;
                entries[*parent].child(path, *came - 1)
            }
        }
    }

    /// Goes into the entry of this index and path.
    pub(super) fn enter(&mut self, entry: usize, path: Path) {
        self.open.push((entry, path, 0));
    }

    /// How many entries the walk is within.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }
}
