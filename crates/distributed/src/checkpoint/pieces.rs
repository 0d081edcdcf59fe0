//! What a rank saves, array by array.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use mlx_rs::Array;
use tacit_bridge::with_bytes;
use tacit_core::{Aval, Error, Result};
use tacit_io::{Metadata, Training, write as write_tensors};

use super::index::{Entries, Entry, Index, LEAVES, file_of, tensor};
use crate::layout::{Layout, Leaf, Place};

/// An array that is saved.
pub(super) struct Piece {
    pub(super) state: String,
    /// Its name however the model is split.
    pub(super) key: String,
    /// How the ranks' parts make the whole; nothing where no split says so: the ranks have the same then, or they have not.
    pub(super) layout: Option<Layout>,
    /// That of the whole.
    pub(super) shape: Vec<i32>,
    pub(super) array: Array,
}

impl Piece {
    /// A number that says whether another rank has the same, bit for bit. What is split is not asked.
    pub(super) fn digest(&self) -> Result<u64> {
        if self.layout.is_some() {
            return Ok(0);
        }
        let mut hasher = DefaultHasher::new();
        with_bytes(&self.array, |bytes| hasher.write(bytes))?;
        Ok(hasher.finish())
    }
}

/// The leaves of a model and the states of a run, in one order on all ranks.
pub(super) fn of(
    run: &Training,
    known: &[Leaf],
    arrays: &BTreeMap<String, &Array>,
    ranks: usize,
) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut put = |state: &str, key: String, layout: Layout, shape: &[i32], array: &Array| {
        let layout = Some(layout).filter(|layout| *layout != Layout::Whole);
        pieces.push(Piece { state: state.to_owned(), key, layout, shape: shape.to_vec(), array: array.clone() });
    };
    for leaf in known {
        let array = arrays.get(&leaf.path).ok_or_else(|| {
            Error::invalid(format!("the model has no leaf {}", leaf.path), "save the model as it is trained")
        })?;
        put(LEAVES, leaf.key.clone(), leaf.layout, &leaf.shape, array);
    }
    for (state, arrays) in run.states.iter().filter(|(state, _)| *state != LEAVES) {
        for (path, array) in arrays {
            let Some((leaf, slot)) = leaf_of(known, path, |leaf| &leaf.path) else {
                put(state, path.clone(), Layout::Whole, array.shape(), array);
                continue;
            };
            // What an optimizer keeps of a part, element by element, is split as the part is.
            let follows = array.shape() == leaf.layout.shape(&leaf.shape, ranks);
            let (layout, shape) = if follows { (leaf.layout, &leaf.shape[..]) } else { (Layout::Whole, array.shape()) };
            put(state, format!("{}{slot}", leaf.key), layout, shape, array);
        }
    }
    Ok(pieces)
}

/// The leaf that a state's array belongs to, and what is behind its name: nothing for a momentum, `.0` for the first of two.
///
/// An optimizer's keys are the model's own paths, so the longest one that fits is the leaf, however many dots it has.
pub(super) fn leaf_of<'l, 'k>(
    leaves: &'l [Leaf],
    key: &'k str,
    name: fn(&Leaf) -> &String,
) -> Option<(&'l Leaf, &'k str)> {
    let slot =
        |leaf: &Leaf| key.strip_prefix(name(leaf).as_str()).filter(|rest| rest.is_empty() || rest.starts_with('.'));
    let fitting = leaves.iter().filter_map(|leaf| Some((leaf, slot(leaf)?)));
    fitting.min_by_key(|(_, slot)| slot.len())
}

/// What is to be the same on all ranks of arrays that are saved.
pub(super) fn fingerprint(pieces: &[Piece]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for Piece { state, key, layout, shape, array } in pieces {
        (state, key, layout, shape, Aval::from(array)).hash(&mut hasher);
    }
    hasher.finish()
}

/// How the pieces lie in the files of so many ranks. Those that are `alike` on all ranks are shared out among them.
pub(super) fn entries(pieces: &[Piece], alike: &[bool], size: usize) -> Entries {
    let mut entries = Entries::new();
    let mut count = 0;
    for (piece, &alike) in pieces.iter().zip(alike) {
        let layout = piece.layout.unwrap_or(if alike { Layout::Whole } else { Layout::Own });
        let holder = if layout == Layout::Whole { count % size } else { 0 };
        count += usize::from(layout == Layout::Whole);
        let entry = Entry { layout, shape: piece.shape.clone(), holder };
        entries.entry(piece.state.clone()).or_default().insert(piece.key.clone(), entry);
    }
    entries
}

/// Writes what a rank has of a save.
pub(super) fn write(folder: &Path, index: &Index, pieces: Vec<Piece>, place: Place) -> Result<()> {
    let is_own = |piece: &Piece| index.states[&piece.state][&piece.key].is_held_by(place.rank);
    let tensors = pieces.into_iter().filter(is_own).map(|piece| (tensor(&piece.state, &piece.key), piece.array));
    write_tensors(file_of(folder, index.save, place), tensors.collect(), &Metadata::new())
}
