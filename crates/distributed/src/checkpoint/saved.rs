//! What a rank reads of a save.

mod moments;
mod stored;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

use mlx_rs::{Array, random};
use tacit_bridge::with_bytes;
use tacit_core::store::Arrays;
use tacit_core::{Aval, Error, Result, Value};
use tacit_io::{Tensors, Training};

use super::index::{Entry, Index, LEAVES, MOMENTS, RANDOM, file_of, tensor};
use super::pieces::Named;
use crate::layout::{Layout, Leaf, Place, StoredSplit};
use crate::random::of_rank;

/// The state that [`Training::with_optimizer`] adds.
const OPTIMIZER: &str = "optimizer";

const SAME_MODEL: &str = "load it into a model of the same formats";
const SAME_RANKS: &str = "load it on as many ranks as saved it, split alike";

/// The run that a rank has of the save in a folder, and the number of the save that no other has.
pub(super) fn read(folder: &Path, known: &[Leaf], place: Place) -> Result<(Training, u64)> {
    let (tensors, index) = Index::read(folder)?;
    let files =
        (0..index.size).map(|rank| Tensors::open(file_of(folder, index.save, Place { rank, size: index.size })));
    let files = files.collect::<Result<_>>()?;
    let Index { id, step, notes, optimizer, .. } = &index;
    let (id, step, notes, optimizer) = (*id, *step, notes.clone(), optimizer.clone());
    let saved = Saved { tensors, files, index, whole: RefCell::default() };
    let mut run = Training { step, notes, optimizer, ..Training::default() };
    let leaves = known.iter().map(|leaf| Ok((leaf.path.clone(), saved.leaf(leaf, place)?)));
    let leaves = leaves.collect::<Result<Arrays>>()?;
    let paths: BTreeMap<&str, &str> = known.iter().map(|leaf| (&*leaf.key, &*leaf.path)).collect();
    let known = &Known {
        leaves: known,
        by_path: Named::new(known, |leaf| &leaf.path),
        by_key: Named::new(known, |leaf| &leaf.key),
    };
    let kinds = saved.index.kinds.clone();
    run.kinds = kinds.map(|kinds| kinds.renamed(|key| paths.get(key).map(|&path| path.to_owned())));
    run.states.insert(LEAVES.to_owned(), leaves);
    for (state, entries) in saved.index.states.iter().filter(|(state, _)| ![LEAVES, MOMENTS].contains(&state.as_str()))
    {
        let arrays = entries.iter().map(|(key, entry)| saved.kept(state, key, entry, known, place));
        run.states.insert(state.clone(), arrays.collect::<Result<Arrays>>()?);
    }
    for (key, moment) in &saved.index.moments {
        match saved.moment(key, moment, known, place)? {
            (path, Value::Dense(array)) => {
                run.states.entry(OPTIMIZER.to_owned()).or_default().insert(path, array);
            }
            (path, moment) => drop(run.moments.insert(path, moment)),
        }
    }
    Ok((run, id))
}

/// The leaves of the model that a save is read into.
struct Known<'l> {
    leaves: &'l [Leaf],
    by_path: Named<'l>,
    by_key: Named<'l>,
}

impl Known<'_> {
    /// The first of the ranks that compute one result with this one, since they have parts of the same layers.
    fn first_beside(&self, place: Place) -> usize {
        let split = self.leaves.iter().filter(|leaf| !matches!(leaf.layout, Layout::Whole | Layout::Flat));
        let first = |leaf: &Leaf| leaf.ranks.iter().flatten().copied().min().unwrap_or(0);
        split.map(first).min().unwrap_or(place.rank)
    }
}

struct Saved {
    /// The index as a file.
    tensors: Tensors,
    files: Vec<Tensors>,
    index: Index,
    /// The stored array that was made last of all ranks' parts, by its key: its leaves are asked for one after the other.
    whole: RefCell<Option<(String, Value)>>,
}

impl Saved {
    /// What a rank has of a leaf of the model.
    fn leaf(&self, leaf: &Leaf, place: Place) -> Result<Array> {
        let wrong = |reason: String| self.tensors.wrong(Some(&leaf.key), reason, SAME_MODEL);
        let entry = self.entry(leaf).ok_or_else(|| wrong("the leaf was not saved".to_owned()))?;
        let ranks = leaf.ranks.as_deref();
        if entry.groups.as_ref().is_some_and(|groups| groups.is_foreign(ranks)) {
            tracing::warn!(
                target: "tacit",
                "{} was another in each group of ranks; every group has that of the first one now",
                leaf.key
            );
        }
        if let Some(array) = self.of_stored(leaf, entry, place)? {
            return Ok(array);
        }
        if entry.shape != leaf.shape {
            let reason = format!("the leaf has the shape {:?}, and that of the model {:?}", entry.shape, leaf.shape);
            return Err(wrong(reason));
        }
        // Files of earlier versions do not say how a stored array was split.
        if entry.layout == Layout::Own && entry.split.is_some() && entry.split != leaf.split {
            return Err(self.split_otherwise(leaf, entry, None));
        }
        let name = tensor(LEAVES, &leaf.key);
        if entry.layout == Layout::Own && leaf.layout == Layout::Whole {
            let file = if place.size == self.index.size {
                place.rank
            } else {
                let (size, key) = (self.index.size, &leaf.key);
                tracing::warn!(
                    target: "tacit",
                    "{key} was another on each of {size} ranks; every rank has that of the first one now"
                );
                0
            };
            return self.get(file, &name, &entry.shape);
        }
        self.part(&name, entry, leaf.layout, Some(leaf), place)
    }

    /// The error of a leaf of a stored array that is not split as in the model, and why that is not changed.
    fn split_otherwise(&self, leaf: &Leaf, entry: &Entry, why: Option<&Error>) -> Error {
        let shown = |split: &Option<StoredSplit>| match split {
            Some(StoredSplit { axis, shape }) => format!("a part of {shape:?} along axis {axis}"),
            None => "no part of a stored array".to_owned(),
        };
        let why = why.map_or_else(String::new, |why| format!(": {}", why.clause()));
        let reason = format!("the leaf is {}, and in the model {}{why}", shown(&entry.split), shown(&leaf.split));
        self.tensors.wrong(Some(&leaf.key), reason, SAME_RANKS)
    }

    fn entry(&self, leaf: &Leaf) -> Option<&Entry> {
        self.index.states.get(LEAVES)?.get(&leaf.key)
    }

    /// What a rank has of another array, with its name there.
    fn kept(&self, state: &str, key: &str, entry: &Entry, known: &Known<'_>, place: Place) -> Result<(String, Array)> {
        let name = tensor(state, key);
        // An array of the run's own may have the name that a leaf has as its key.
        let belongs = state != RANDOM && entry.of_leaf != Some(false);
        if let Some(leaf) = self.of_one_rank(key, entry, known).filter(|_| belongs) {
            let reason = format!("an earlier Tacit saved it of one rank alone, and {} is split", leaf.key);
            return Err(self.tensors.wrong(Some(key), reason, "begin with a new state, or load it with that one"));
        }
        let Some((leaf, slot)) = known.by_key.leaf_of(key).filter(|_| belongs) else {
            if state == RANDOM {
                return Ok((key.to_owned(), self.random(&name, entry, known, place)?));
            }
            let layout = if entry.layout == Layout::Own { Layout::Own } else { Layout::Whole };
            return Ok((key.to_owned(), self.part(&name, entry, layout, None, place)?));
        };
        if state == OPTIMIZER && self.is_factored(leaf) {
            let reason = format!("Adafactor keeps rows and columns of {}, but none of a flat part", leaf.key);
            return Err(self.tensors.wrong(
                Some(key),
                reason,
                "split it as it was split then, or begin with a new state",
            ));
        }
        let part = |layout| self.part(&name, entry, layout, Some(leaf), place);
        let array = match entry.layout {
            Layout::Flat | Layout::Axis(_) => part(leaf.layout)?,
            // As large as the leaf, and so split with it; what is stored on parts has no whole.
            Layout::Whole if self.follows(&name, entry, leaf) && leaf.layout != Layout::Own => part(leaf.layout)?,
            Layout::Whole if self.lies_alike(leaf, place) || entry.shape.iter().all(|&extent| extent == 1) => {
                part(Layout::Whole)?
            }
            Layout::Own if self.lies_alike(leaf, place) => part(Layout::Own)?,
            Layout::Whole | Layout::Own => {
                let reason = format!("it was kept of {} as that lay on {} ranks", leaf.key, self.index.size);
                return Err(self.tensors.wrong(Some(key), reason, SAME_RANKS));
            }
        };
        Ok((format!("{}{slot}", leaf.path), array))
    }

    /// Whether a whole array of a state has an element for each of the leaf's. That of a leaf of one number may be a count.
    fn follows(&self, tensor: &str, entry: &Entry, leaf: &Leaf) -> bool {
        let aval = || self.files.get(entry.holder)?.aval(tensor).ok();
        let is_count = || leaf.shape.is_empty() && aval().is_some_and(|aval| !aval.dtype.is_float());
        entry.shape == leaf.shape && !is_count()
    }

    /// Whether this rank has of a leaf what one rank had.
    fn lies_alike(&self, leaf: &Leaf, place: Place) -> bool {
        let Some(entry) = self.entry(leaf) else { return false };
        let Entry { layout, split, .. } = entry;
        let parts = entry.parts(self.index.size);
        let of_one = leaf.place(place).size == parts && (split.is_none() || *split == leaf.split);
        match leaf.layout {
            Layout::Whole => *layout == Layout::Whole || *layout == Layout::Own && of_one,
            own => *layout == own && of_one,
        }
    }

    /// Whether the states of a leaf have another form in the model: those of Adafactor, which has rows and columns of a matrix,
    /// and of a part that is flat what it has of a vector.
    fn is_factored(&self, leaf: &Leaf) -> bool {
        let was_flat = self.entry(leaf).is_some_and(|entry| entry.layout == Layout::Flat);
        let is_adafactor = self.index.optimizer.as_deref() == Some("Adafactor");
        is_adafactor && leaf.shape.len() >= 2 && was_flat != (leaf.layout == Layout::Flat)
    }

    /// The split leaf whose state the first version saved of one rank, because it had no slot or another shape.
    fn of_one_rank<'l>(&self, key: &str, entry: &Entry, known: &Known<'l>) -> Option<&'l Leaf> {
        let (leaf, _) = known.by_path.leaf_of(key)?;
        let lost = self.index.version == 1 && self.index.size > 1 && leaf.layout != Layout::Whole;
        (lost && entry.layout == Layout::Whole && entry.shape.iter().any(|&extent| extent != 1)).then_some(leaf)
    }

    /// The random state of a rank. Where the model lies otherwise than it did, it is that of the first of the ranks that compute one
    /// result together, by the number of that one, and a new one where there was none.
    fn random(&self, tensor: &str, entry: &Entry, known: &Known<'_>, place: Place) -> Result<Array> {
        // Of one rank nobody can tell whether others would have drawn for themselves: they do unless they compute one result.
        if entry.layout != Layout::Own && self.index.size > 1 {
            return self.get(entry.holder, tensor, &entry.shape);
        }
        let lies_as_it_did = |leaf: &Leaf| {
            let (groups, ranks) = (self.entry(leaf).and_then(|entry| entry.groups.as_ref()), leaf.ranks.as_deref());
            self.lies_alike(leaf, place) && groups.map(|groups| groups.nearest(ranks)) == ranks
        };
        let is_as_saved = place.size == self.index.size && known.leaves.iter().all(lies_as_it_did);
        let rank = if is_as_saved { place.rank } else { known.first_beside(place) };
        if rank < self.index.size {
            return self.get(rank, tensor, &entry.shape);
        }
        let mut hasher = DefaultHasher::new();
        with_bytes(&self.get(0, tensor, &entry.shape)?, |bytes| hasher.write(bytes))?;
        Ok(random::key(of_rank(hasher.finish(), rank))?)
    }

    /// What a rank has of an array in a layout of its own, with a leaf where it is one or was kept of one.
    fn part(&self, tensor: &str, entry: &Entry, layout: Layout, leaf: Option<&Leaf>, place: Place) -> Result<Array> {
        let Entry { layout: saved, ref shape, .. } = *entry;
        let (holders, in_leaf) = (self.holders(entry, leaf), leaf.map_or(place, |leaf| leaf.place(place)));
        let of_part = saved.shape(shape, holders.len());
        let get = |&rank: &usize| self.get(rank, tensor, &of_part);
        let number = if saved == Layout::Whole { 0 } else { in_leaf.rank };
        let is_there = layout == saved && (saved == Layout::Whole || in_leaf.size == holders.len());
        if let Some(rank) = holders.get(number).filter(|_| is_there) {
            return get(rank);
        }
        if saved == Layout::Own {
            return Err(Error::invalid(format!("{tensor} was another on each of {} ranks", holders.len()), SAME_RANKS));
        }
        let parts = holders.iter().map(get).collect::<Result<Vec<_>>>()?;
        let dtype = parts.first().map_or(mlx_rs::Dtype::Float32, Array::dtype);
        layout.part(&saved.whole(&parts, &Aval::new(shape, dtype))?, in_leaf)
    }

    /// The ranks whose files have an array, in the order of its parts.
    fn holders(&self, entry: &Entry, leaf: Option<&Leaf>) -> Vec<usize> {
        let ranks = leaf.and_then(|leaf| leaf.ranks.as_deref());
        let every_rank = || (0..self.index.size).collect();
        match (&entry.groups, entry.layout) {
            (_, Layout::Whole) => vec![entry.holder],
            (Some(groups), _) => groups.holders(ranks).to_vec(),
            (None, Layout::Own) => {
                // What was kept of a part, and was another on each rank, is that of the rank that had the part.
                let groups = leaf.and_then(|leaf| self.entry(leaf)?.groups.as_ref());
                groups.map_or_else(every_rank, |groups| groups.nearest(ranks).to_vec())
            }
            (None, _) => every_rank(),
        }
    }

    /// The array of this number among those of all ranks that have one of their own, or the one that all have.
    fn one_of(&self, tensor: &str, entry: &Entry, leaf: Option<&Leaf>, number: usize) -> Result<Array> {
        let holders = self.holders(entry, leaf);
        let number = if entry.layout == Layout::Whole { 0 } else { number };
        let rank = holders.get(number).ok_or_else(|| {
            let reason = format!("it was another on each of {} ranks, and rank {number} has none", holders.len());
            self.tensors.wrong(Some(tensor), reason, SAME_RANKS)
        })?;
        self.get(*rank, tensor, &entry.shape)
    }

    fn get(&self, rank: usize, tensor: &str, shape: &[i32]) -> Result<Array> {
        let file = self.files.get(rank).ok_or_else(|| {
            let size = self.index.size;
            Error::invalid(format!("the index names the file of rank {rank} of {size}"), "save the run again")
        })?;
        let array = file.get(tensor)?;
        if array.shape() == shape {
            return Ok(array);
        }
        let reason = format!("it is {}, where the index has the shape {shape:?}", Aval::from(&array));
        Err(file.wrong(Some(tensor), reason, "the file is not as it was written: fetch or write it again"))
    }
}
