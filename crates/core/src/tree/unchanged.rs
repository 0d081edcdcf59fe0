//! The parts of a state that a call leaves unchanged.

use super::TreeDef;
use super::entry::Entry;
use super::stamp::Part;

/// The entries and the leaves of a subtree.
type Extent = (usize, usize);

/// What a call that replays a trace leaves of its state as it was.
pub(crate) struct Unchanged {
    /// Whether the state has the form that it had: nodes and static fields, whatever the leaves are.
    pub(crate) keeps_form: bool,
    /// Whether the state takes its new value, whatever it counts by then.
    pub(crate) is_taken: bool,
    /// For each entry of what a call makes, the extent of the subtree that it begins, if that is what the state had there.
    /// A call does not walk it: the entries of a model are a thousand.
    subtrees: Box<[Option<Extent>]>,
    /// The entries of the results, which a call makes before its state.
    results: usize,
}

impl Unchanged {
    /// The subtree with which the last `left` entries begin.
    pub(super) fn subtree(&self, left: usize) -> Option<Extent> {
        let at = self.subtrees.len().checked_sub(left)?;
        self.subtrees.get(at).copied().flatten()
    }

    /// Whether a call leaves a part of what it is given alone.
    pub(crate) fn has(&self, part: &Part) -> bool {
        self.subtrees.get(self.results + part.entries.0).is_some_and(Option::is_some)
    }
}

impl TreeDef {
    /// What is in the second child of the root, which is the first child of the other root, and is what it is there; `same` tells it of
    /// two leaves by their numbers. Behind the first node with more or fewer children than in the other tree nothing is.
    pub(crate) fn unchanged(&self, other: &Self, same: impl Fn(usize, usize) -> bool) -> Unchanged {
        let entries = &self.entries;
        let mut unchanged = vec![false; entries.len()];
        let (Some(own), Some(other)) = (entries.get(1..), other.entries.get(1..)) else {
            return Unchanged { keeps_form: false, is_taken: false, subtrees: Box::default(), results: 0 };
        };
        let ((results, leaves_before), (len, _)) = (Entry::extent(own), Entry::extent(other));
        let (own, other) = (&own[results..], &other[..len]);
        let all_fit =
            |fits: &dyn Fn(&Entry, &Entry) -> bool| own.len() == len && own.iter().zip(other).all(|(a, b)| fits(a, b));
        let keeps_form = all_fit(&|a, b| a == b || a.is_leaf() && b.is_leaf());
        let is_taken = all_fit(&Entry::is_taken_for);
        let (mut leaf, mut leaf_before) = (0, 0);
        let pairs = own.iter().zip(other).take_while(|(a, b)| a.len() == b.len());
        for (unchanged, (a, b)) in unchanged[1 + results..].iter_mut().zip(pairs) {
            *unchanged = a == b;
            if a.is_leaf() {
                *unchanged &= same(leaves_before + leaf, leaf_before);
                leaf += 1;
            }
            leaf_before += usize::from(b.is_leaf());
        }
        Unchanged { keeps_form, is_taken, subtrees: subtrees(entries, &unchanged), results }
    }
}

/// The extent of the subtree that each entry begins, if all of it is unchanged.
fn subtrees(entries: &[Entry], unchanged: &[bool]) -> Box<[Option<Extent>]> {
    let mut found = vec![None; entries.len()];
    // What is behind an entry and has no parent yet, the nearest last.
    let mut behind: Vec<(Extent, bool)> = Vec::new();
    for (at, entry) in entries.iter().enumerate().rev() {
        let (mut extent, mut all) = ((1, usize::from(entry.is_leaf())), unchanged[at]);
        for ((entries, leaves), unchanged) in behind.drain(behind.len().saturating_sub(entry.len())..) {
            extent = (extent.0 + entries, extent.1 + leaves);
            all &= unchanged;
        }
        found[at] = all.then_some(extent);
        behind.push((extent, all));
    }
    found.into()
}
