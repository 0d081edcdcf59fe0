//! The structure of a tree, apart from its leaves.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use super::entry::Entry;
use super::places::Places;
use super::stamp::Part;
use super::{NodeKind, Path, print};

/// The structure of a tree: the kind, the labels and every static field of each node, and where its leaves are.
///
/// Two are equal if all of that is: `[[a], b]` and `[[a, b]]` differ, and so do two nf4 arrays of different block sizes.
/// It prints as the tree with a `*` for each leaf.
///
/// ```
/// # fn main() -> tacit_core::Result<()> {
/// use mlx_rs::Array;
/// use tacit_core::tree;
///
/// let a = || Array::from_f32(1.0);
/// let def = tree::structure(&(vec![a()], [a(), a()]))?;
/// assert_eq!(def.to_string(), "([*], [*, *])");
/// assert_ne!(def, tree::structure(&(vec![a(), a()], [a()]))?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TreeDef {
    /// Each node before its children.
    pub(super) entries: Rc<[Entry]>,
    leaves: usize,
}

/// Where two trees differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The first place.
    pub path: Path,
    /// What differs there, as in `static block_size 64 -> 32`.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.what, self.path.shown())
    }
}

impl TreeDef {
    pub(super) fn new(entries: Vec<Entry>, leaves: usize) -> Self {
        Self { entries: entries.into(), leaves }
    }

    /// The number of leaves.
    #[must_use]
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// The paths of the leaves, in order.
    #[must_use]
    pub fn paths(&self) -> Vec<Path> {
        let mut paths = Vec::with_capacity(self.leaves);
        self.walk(|entry, path| {
            if matches!(entry, Entry::Leaf { .. }) {
                paths.push(path.clone());
            }
        });
        paths
    }

    /// Whether each leaf is frozen: no gradient is taken of it, and no update changes it.
    #[must_use]
    pub fn frozen(&self) -> Vec<bool> {
        let frozen = |entry: &Entry| if let Entry::Leaf { frozen } = entry { Some(*frozen) } else { None };
        self.entries.iter().filter_map(frozen).collect()
    }

    /// The first place where `other` differs.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let differing = self.entries.iter().zip(&*other.entries).position(|(a, b)| a != b)?;
        let mut paths = Vec::with_capacity(self.len());
        self.walk(|_, path| paths.push(path.clone()));
        Some(Difference {
            path: paths.swap_remove(differing),
            what: print::difference(&self.entries[differing], &other.entries[differing]),
        })
    }

    /// The part of the first child of the root, if that is what begins here and the stamp is its own.
    pub(crate) fn part(&self, entry: usize, array: usize, stamp: u64) -> Option<Part> {
        let (state, _) = Entry::extent(self.entries.get(1..)?);
        let (entries, arrays) = Entry::extent(self.entries.get(entry..)?);
        let within = entry >= 1 && entry + entries <= 1 + state;
        within.then_some(Part { entries: (entry, entries), arrays: (array, arrays), stamp })
    }

    /// How many elements the tree has, if it is a tuple or a list.
    pub(crate) fn elements(&self) -> Option<usize> {
        match self.entries.first() {
            Some(Entry::Node(root)) if matches!(root.kind, NodeKind::Tuple | NodeKind::List | NodeKind::Array) => {
                Some(root.labels.len())
            }
            _ => None,
        }
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.entries, &other.entries)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn walk<'t>(&'t self, mut f: impl FnMut(&'t Entry, &Path)) {
        let mut places = Places::default();
        for (position, entry) in self.entries.iter().enumerate() {
            let path = places.next(&self.entries);
            f(entry, &path);
            places.enter(position, path);
        }
    }
}

impl PartialEq for TreeDef {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) || self.entries == other.entries
    }
}

impl Eq for TreeDef {}

impl Hash for TreeDef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries.hash(state);
    }
}

impl fmt::Display for TreeDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::write(f, &mut self.entries.iter())
    }
}

impl fmt::Debug for TreeDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TreeDef({self})")
    }
}
