//! The index of a save: which files it has, and how the arrays lie in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tacit_core::{Error, Result};
use tacit_io::{Metadata, Tensors, Training, write};
use tacit_nn::LeafKinds;

use super::groups::Groups;
use super::taken::AllTaken;
use crate::layout::{Layout, Place, StoredSplit};

/// What the metadata of the index have it under.
const RANKS: &str = "tacit.ranks";
const VERSION: u32 = 4;
/// The version of saves whose arrays are split over all ranks, if at all, so that earlier versions read them.
const OF_ALL_RANKS: u32 = 3;

pub(super) const INDEX: &str = "run.safetensors";
pub(super) const LEAVES: &str = "leaves";
/// The state that [`Training::with_random`] adds. It goes with no leaf, whatever the names of both are.
pub(super) const RANDOM: &str = "random";

/// The state of the arrays that implicit moments are made of.
pub(super) const MOMENTS: &str = "moments";

/// The arrays by state and key.
pub(super) type Entries = BTreeMap<String, BTreeMap<String, Entry>>;

#[derive(Serialize, Deserialize)]
pub(super) struct Index {
    pub(super) version: u32,
    /// The number of this save in the folder, which the names of the files have.
    pub(super) save: u64,
    /// No other save has it.
    #[serde(default)]
    pub(super) id: u64,
    /// How many ranks there were.
    pub(super) size: usize,
    pub(super) step: u64,
    pub(super) notes: BTreeMap<String, String>,
    pub(super) optimizer: Option<String>,
    pub(super) states: Entries,
    /// What the leaves of the model mean, by their keys; nothing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) kinds: Option<LeafKinds>,
    /// The implicit arrays of the model; nothing in files of earlier versions.
    #[serde(default, skip_serializing_if = "AllTaken::is_empty")]
    pub(super) stored: AllTaken,
    /// The moments that are implicit; nothing in files of earlier versions.
    #[serde(default, skip_serializing_if = "AllTaken::is_empty")]
    pub(super) moments: AllTaken,
}

/// How an array lies in the files.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) layout: Layout,
    /// The whole array's.
    pub(super) shape: Vec<i32>,
    /// The rank whose file has it, where every rank has all of it.
    pub(super) holder: usize,
    /// How the stored array is split that it is a part of; nothing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) split: Option<StoredSplit>,
    /// Whether it is a leaf, or was kept of one and goes with its parts; in files of earlier versions names alone say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) of_leaf: Option<bool>,
    /// The ranks that have its parts, where these are not all ranks in their order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) groups: Option<Groups>,
}

impl Index {
    pub(super) fn new(save: u64, id: u64, size: usize, run: &Training, mut states: Entries) -> Self {
        // A state may have no arrays yet.
        for state in run.states.keys().filter(|state| *state != LEAVES) {
            states.entry(state.clone()).or_default();
        }
        let (step, notes, optimizer) = (run.step, run.notes.clone(), run.optimizer.clone());
        let (stored, moments) = (AllTaken::new(), AllTaken::new());
        let has_groups = states.values().flat_map(BTreeMap::values).any(|entry| entry.groups.is_some());
        let version = if has_groups { VERSION } else { OF_ALL_RANKS };
        Self { version, save, id, size, step, notes, optimizer, states, kinds: None, stored, moments }
    }

    /// The index of a folder, checked.
    pub(super) fn read(folder: &Path) -> Result<(Tensors, Self)> {
        let tensors = Tensors::open(folder.join(INDEX))?;
        let help = "give the folder of a run that `save_run` saved";
        let text = tensors.metadata().get(RANKS).ok_or_else(|| tensors.wrong(None, "it is no index of ranks", help))?;
        let index: Self = serde_json::from_str(text)
            .map_err(|error| tensors.wrong(None, format!("its index of ranks cannot be read: {error}"), help))?;
        if !(1..=VERSION).contains(&index.version) || index.size == 0 {
            let reason = format!("it has version {} of {} ranks", index.version, index.size);
            return Err(tensors.wrong(None, reason, "use a newer Tacit"));
        }
        for (state, entries) in &index.states {
            if let Some((key, entry)) = entries.iter().find(|(_, entry)| !entry.is_possible(index.size)) {
                let Entry { layout, shape, holder, .. } = entry;
                let size = index.size;
                let reason =
                    format!("no {size} ranks hold the shape {shape:?} as {layout:?}, nor rank {holder} of them");
                let help = "the file is not as it was written: fetch or write it again";
                return Err(tensors.wrong(Some(&tensor(state, key)), reason, help));
            }
        }
        Ok((tensors, index))
    }

    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(INDEX);
        let text = serde_json::to_string(self).map_err(|error| Error::file("write", &path)(error.into()))?;
        write(&path, Vec::new(), &Metadata::from([(RANKS.to_owned(), text)]))
    }

    /// Checks that the file of every rank is in the folder and has what this says of it.
    ///
    /// A rank may be on another machine, so that only the file itself says that it is there.
    pub(super) fn check_files(&self, folder: &Path) -> Result<()> {
        for rank in 0..self.size {
            let path = file_of(folder, self.save, Place { rank, size: self.size });
            if !path.is_file() {
                let reason = format!("the file of rank {rank} is not there");
                return Err(Error::checkpoint(&path, None, reason, "save to a file system that all ranks share"));
            }
            let tensors = Tensors::open(&path)?;
            for (state, entries) in &self.states {
                for (key, entry) in entries.iter().filter(|(_, entry)| entry.is_held_by(rank)) {
                    let name = tensor(state, key);
                    let expected = entry.layout.shape(&entry.shape, entry.parts(self.size));
                    let found = &tensors.aval(&name)?.shape;
                    if *found != expected {
                        let reason = format!("it has the shape {found:?}, and the index {expected:?}");
                        return Err(tensors.wrong(Some(&name), reason, "save the same model on every rank"));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Entry {
    /// Whether an array of these extents lies so on so many ranks: a file may say anything.
    fn is_possible(&self, size: usize) -> bool {
        let elements = self
            .shape
            .iter()
            .try_fold(1_usize, |elements, &extent| elements.checked_mul(usize::try_from(extent).ok()?.max(1)));
        let parts = self.parts(size);
        let lies = |elements: usize| match self.layout {
            Layout::Whole | Layout::Own => true,
            Layout::Flat => i32::try_from(elements.div_ceil(parts)).is_ok(),
            Layout::Axis(axis) => self.shape.get(axis).is_some_and(|&extent| (extent as usize).is_multiple_of(parts)),
        };
        let is_among = self.groups.as_ref().is_none_or(|groups| groups.is_possible(size));
        is_among && self.holder < size && elements.is_some_and(lies)
    }

    /// How many parts make the whole, or how many ranks have one of their own.
    pub(super) fn parts(&self, size: usize) -> usize {
        self.groups.as_ref().map_or(size, Groups::parts)
    }

    /// Whether the file of a rank has it, or its part.
    pub(super) fn is_held_by(&self, rank: usize) -> bool {
        match &self.groups {
            _ if self.layout == Layout::Whole => self.holder == rank,
            Some(groups) => groups.is_held_by(rank),
            None => true,
        }
    }
}

/// The tensor of a state's array.
pub(super) fn tensor(state: &str, key: &str) -> String {
    format!("{state}.{key}")
}

pub(super) fn file_of(folder: &Path, save: u64, Place { rank, size }: Place) -> PathBuf {
    folder.join(format!("run.{save}-{:05}-of-{size:05}.safetensors", rank + 1))
}

/// The save whose file of a rank has exactly this name, and the number of ranks there. A copy beside it is somebody else's.
pub(super) fn save_of(name: &str) -> Option<(u64, usize)> {
    let (save, ranks) = name.strip_prefix("run.")?.strip_suffix(".safetensors")?.split_once('-')?;
    let (number, size) = ranks.split_once("-of-")?;
    let (save, size) = (save.parse().ok()?, size.parse().ok()?);
    let rank = number.parse::<usize>().ok()?.checked_sub(1)?;
    let written = file_of(Path::new(""), save, Place { rank, size });
    (written == Path::new(name)).then_some((save, size))
}
