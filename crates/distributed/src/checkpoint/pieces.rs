//! What a rank saves, array by array.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::path::Path;

use mlx_rs::Array;
use tacit_bridge::with_bytes;
use tacit_core::{Aval, Error, Result};
use tacit_io::{Metadata, Training, write as write_tensors};
use tacit_nn::LeafKinds;

use super::groups::Groups;
use super::index::{Entries, Entry, Index, LEAVES, RANDOM, file_of, tensor};
use super::taken::AllTaken;
use crate::layout::{Layout, Leaf, Place, StoredSplit};

/// An array that is saved.
pub(super) struct Piece {
    pub(super) state: String,
    /// Its name however the model is split.
    pub(super) key: String,
    /// How the ranks' parts make the whole; nothing where no split says so: the ranks have the same then, or they have not.
    pub(super) layout: Option<Layout>,
    /// The shape of the whole.
    pub(super) shape: Vec<i32>,
    pub(super) split: Option<StoredSplit>,
    /// The ranks that have the parts, where these are not all ranks in their order.
    pub(super) ranks: Option<Vec<usize>>,
    /// Whether it is a leaf, or was kept of one.
    pub(super) of_leaf: bool,
    pub(super) array: Array,
}

/// The leaves of a model and the states of a run, in one order on all ranks.
pub(super) fn from_run(
    run: &Training,
    known: &[Leaf],
    arrays: &BTreeMap<String, &Array>,
    ranks: usize,
) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let by_path = Named::new(known, |leaf| &leaf.path);
    for leaf in known {
        let array = arrays.get(&leaf.path).ok_or_else(|| {
            Error::invalid(format!("the model has no leaf {}", leaf.path), "save the model as it is trained")
        })?;
        pieces.push(Piece {
            split: leaf.split.clone(),
            ranks: leaf.ranks.clone(),
            ..piece(LEAVES, leaf.key.clone(), leaf.layout, &leaf.shape, array)
        });
    }
    for (state, arrays) in run.states.iter().filter(|(state, _)| *state != LEAVES) {
        for (path, array) in arrays {
            let found = if state == RANDOM { None } else { by_path.leaf_of(path) };
            let Some((leaf, slot)) = found else {
                let whole = piece(state, path.clone(), Layout::Whole, array.shape(), array);
                pieces.push(Piece { of_leaf: false, ..whole });
                continue;
            };
            // What an optimizer keeps of a part, element by element, is split as the part is.
            let key = format!("{}{slot}", leaf.key);
            pieces.push(if array.shape() == leaf.layout.shape(&leaf.shape, leaf.parts(ranks)) {
                Piece { ranks: leaf.ranks.clone(), ..piece(state, key, leaf.layout, &leaf.shape, array) }
            } else {
                piece(state, key, Layout::Whole, array.shape(), array)
            });
        }
    }
    Ok(pieces)
}

fn piece(state: &str, key: String, layout: Layout, shape: &[i32], array: &Array) -> Piece {
    let layout = Some(layout).filter(|layout| *layout != Layout::Whole);
    let (state, shape) = (state.to_owned(), shape.to_vec());
    Piece { state, key, layout, shape, split: None, ranks: None, of_leaf: true, array: array.clone() }
}

/// Leaves by a name that each has.
pub(super) struct Named<'l>(HashMap<&'l str, &'l Leaf>);

impl<'l> Named<'l> {
    pub(super) fn new(leaves: &'l [Leaf], name: fn(&Leaf) -> &String) -> Self {
        let mut named = HashMap::new();
        for leaf in leaves {
            named.entry(name(leaf).as_str()).or_insert(leaf);
        }
        Self(named)
    }

    /// The leaf that a state's array belongs to, and what is behind its name: nothing for a momentum, `.0` for the first of two.
    ///
    /// An optimizer's keys are the model's own paths, so the longest one that fits is the leaf, however many dots it has.
    pub(super) fn leaf_of<'k>(&self, key: &'k str) -> Option<(&'l Leaf, &'k str)> {
        let dots = key.rmatch_indices('.').map(|(at, _)| at);
        iter::once(key.len()).chain(dots).find_map(|at| Some((*self.0.get(&key[..at])?, &key[at..])))
    }
}

/// What is to be the same on all ranks that save a run, each with its fingerprint.
pub(super) fn fingerprints(
    run: &Training,
    kinds: &(LeafKinds, AllTaken, AllTaken),
    pieces: &[Piece],
) -> Result<[(Alike, u64); 5]> {
    let kinds = serde_json::to_string(kinds)
        .map_err(|error| Error::invalid(format!("the kinds of leaves: {error}"), "give them names of text"))?;
    Ok([
        (Alike::Arrays, of_arrays(pieces)),
        (Alike::Step, hash(&run.step)),
        (Alike::Optimizer, hash(&run.optimizer)),
        (Alike::Notes, hash(&run.notes)),
        (Alike::Kinds, hash(&kinds)),
    ])
}

/// What the first rank says of a run for all of them.
#[derive(Clone, Copy)]
pub(super) enum Alike {
    Arrays,
    Step,
    Optimizer,
    Notes,
    Kinds,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn of_arrays(pieces: &[Piece]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for Piece { state, key, layout, shape, split, ranks, of_leaf, array } in pieces {
        let parts = ranks.as_ref().map(Vec::len);
        (state, key, layout, shape, split, parts, of_leaf, Aval::from(array)).hash(&mut hasher);
    }
    hasher.finish()
}

/// For each piece a number that says whether another rank has the same, bit for bit. What is split over all ranks is not compared,
/// and nothing is where there is one rank.
pub(super) fn digests(pieces: &[Piece], ranks: usize) -> Result<Vec<u64>> {
    let is_compared = |piece: &Piece| ranks > 1 && (piece.layout.is_none() || piece.ranks.is_some());
    let digest = |piece: &Piece| if is_compared(piece) { Ok(with_bytes(&piece.array, digest)?) } else { Ok(0) };
    pieces.iter().map(digest).collect()
}

/// The digest of the bytes of an array. Those of two arrays that differ are the same by chance alone, once in 2^64 times.
///
/// Two words at a time go into a product whose halves are combined, in four chains that a processor runs at once: the main loop
/// of wyhash, <https://github.com/wangyi-fudan/wyhash>, about as fast as the memory.
fn digest(bytes: &[u8]) -> u64 {
    const SECRETS: [u64; 2] = [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db];
    let mix = |digest: u64, pair: u128| {
        let product = u128::from(pair as u64 ^ SECRETS[0]) * u128::from((pair >> 64) as u64 ^ digest);
        (product >> 64) as u64 ^ product as u64
    };
    let (blocks, rest) = bytes.as_chunks::<64>();
    // Arrays that are compared are of one length, so that zeros behind the end are no difference.
    let mut last = [0; 64];
    last[..rest.len()].copy_from_slice(rest);
    let mut chains = [SECRETS[1]; 4];
    for block in blocks.iter().chain([&last]) {
        for (chain, pair) in chains.iter_mut().zip(block.as_chunks::<16>().0) {
            *chain = mix(*chain, u128::from_le_bytes(*pair));
        }
    }
    chains.into_iter().fold(SECRETS[1], |digest, chain| mix(digest, chain.into()))
}

/// How the pieces lie in the files of so many ranks. Those that are `alike` on all ranks are shared out among them. `groups` are of
/// the pieces, in order, that some ranks have the parts of.
pub(super) fn entries(pieces: &[Piece], alike: &[bool], groups: Vec<Groups>, size: usize) -> Entries {
    let mut entries = Entries::new();
    let (mut count, mut groups) = (0, groups.into_iter());
    for (piece, &alike) in pieces.iter().zip(alike) {
        let layout = piece.layout.unwrap_or(if alike { Layout::Whole } else { Layout::Own });
        let holder = if layout == Layout::Whole { count % size } else { 0 };
        count += usize::from(layout == Layout::Whole);
        let (shape, split, of_leaf) = (piece.shape.clone(), piece.split.clone(), Some(piece.of_leaf));
        let groups = if piece.ranks.is_some() { groups.next() } else { None };
        let entry = Entry { layout, shape, holder, split, of_leaf, groups };
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn arrays_that_differ_in_a_bit_have_other_digests() {
        for length in [1, 8, 15, 16, 17, 63, 64, 65, 150] {
            // Zeros and ones are what a sum of products could pass over.
            for byte in [0, 0xff, 0x5a] {
                let mut bytes = vec![byte; length];
                let mut found = BTreeSet::from([digest(&bytes)]);
                for bit in 0..8 * length {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    assert!(found.insert(digest(&bytes)), "bit {bit} of {length} bytes {byte:#x}");
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                assert!(!found.insert(digest(&bytes)));
            }
        }
    }

    #[test]
    fn only_what_several_ranks_may_have_alike_is_read() -> Result<()> {
        let piece = |layout, ranks| {
            let array = Array::from_slice(&[1.0_f32, 2.0], &[2]);
            let (state, key, shape) = (String::new(), String::new(), vec![2]);
            Piece { state, key, layout, shape, split: None, ranks, of_leaf: false, array }
        };
        let flat = Some(Layout::Flat);
        let pieces = [piece(None, None), piece(flat, None), piece(flat, Some(vec![1]))];
        assert_eq!(digests(&pieces, 1)?, [0; 3]);
        let found = digests(&pieces, 2)?;
        assert!(found[0] != 0 && found[1] == 0 && found[2] == found[0], "{found:?}");
        Ok(())
    }

    #[test]
    fn an_array_is_of_the_leaf_with_the_longest_name() {
        let leaf = |path: &str| Leaf {
            path: path.to_owned(),
            key: format!("model.{path}"),
            layout: Layout::Whole,
            shape: Vec::new(),
            split: None,
            over: None,
            ranks: None,
            stored: None,
            alike: true,
        };
        let leaves = ["a", "a.b", "a.b.c.d", "ab"].map(leaf);
        let of = |named: &Named<'_>, key: &str| {
            named.leaf_of(key).map(|(leaf, slot)| format!("{} and {slot:?}", leaf.path)).unwrap_or_default()
        };
        let by_path = Named::new(&leaves, |leaf| &leaf.path);
        for (key, found) in [
            ("a", r#"a and """#),
            ("a.0", r#"a and ".0""#),
            ("a.b", r#"a.b and """#),
            ("a.b.c", r#"a.b and ".c""#),
            ("a.b.c.d.0", r#"a.b.c.d and ".0""#),
            ("a.bc.1", r#"a and ".bc.1""#),
            ("ab.", r#"ab and ".""#),
            ("abc", ""),
            (".a", ""),
            ("", ""),
        ] {
            assert_eq!(of(&by_path, key), found, "{key}");
        }
        assert_eq!(of(&Named::new(&leaves, |leaf| &leaf.key), "model.a.b.v"), r#"a.b and ".v""#);
    }
}
