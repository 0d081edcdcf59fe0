//! Which ranks hold the parts of an array that is split over some of a save's ranks only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Groups of ranks, over each of which an array is split alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Groups {
    /// The ranks of each group, in the order of their parts.
    ranks: Vec<Vec<usize>>,
    /// The group whose files have the array, where all groups have the same; nothing where each has another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder: Option<usize>,
}

/// What a rank says of its part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// The rank that has the first part of the same array.
    pub(super) first: usize,
    pub(super) part: usize,
    /// The digest of its part: parts that differ have different ones.
    pub(super) digest: u64,
}

impl Held {
    /// What `rank` says, one of `ranks`, which have the parts in this order.
    pub(super) fn new(ranks: &[usize], rank: usize, digest: u64) -> Self {
        let part = ranks.iter().position(|&other| other == rank).unwrap_or(0);
        Self { first: ranks.first().copied().unwrap_or(rank), part, digest }
    }
}

/// The parts of a group by their numbers: the rank that has it, and its digest.
type Parts = BTreeMap<usize, (usize, u64)>;

impl Groups {
    /// The groups of all ranks, by what each says of its part, with so many parts in each group; nothing where the ranks disagree.
    /// Of groups that have the same, one keeps it: the `number` of the array says which, so that they take turns.
    pub(super) fn from_held(held: &[Held], parts: usize, number: usize) -> Option<Self> {
        let mut groups: BTreeMap<usize, Parts> = BTreeMap::new();
        for (rank, held) in held.iter().enumerate() {
            if groups.entry(held.first).or_default().insert(held.part, (rank, held.digest)).is_some() {
                return None;
            }
        }
        let is_whole = |(first, group): (&usize, &Parts)| {
            group.keys().copied().eq(0..parts) && group.get(&0).is_some_and(|(rank, _)| rank == first)
        };
        if groups.is_empty() || !groups.iter().all(is_whole) {
            return None;
        }
        let digests = |group: &Parts| group.values().map(|held| held.1).collect::<Vec<_>>();
        let mut by_group = groups.values().map(digests);
        let first = by_group.next();
        let alike = by_group.all(|other| Some(other) == first);
        let ranks: Vec<Vec<usize>> = groups.values().map(|group| group.values().map(|held| held.0).collect()).collect();
        Some(Self { holder: alike.then_some(number % ranks.len()), ranks })
    }

    /// Whether each of so many ranks is in one group: a file may say anything.
    pub(super) fn is_possible(&self, size: usize) -> bool {
        let parts = self.parts();
        let mut ranks = self.ranks.concat();
        ranks.sort_unstable();
        parts > 0
            && self.ranks.iter().all(|group| group.len() == parts)
            && ranks.into_iter().eq(0..size)
            && self.holder.is_none_or(|holder| holder < self.ranks.len())
    }

    /// How many parts make the whole.
    pub(super) fn parts(&self) -> usize {
        self.ranks.first().map_or(0, Vec::len)
    }

    /// The group whose files have what all groups have, if there is one.
    fn keeping(&self) -> Option<&[usize]> {
        self.ranks.get(self.holder?).map(Vec::as_slice)
    }

    /// Whether the file of a rank has its part: every rank is in a group.
    pub(super) fn is_held_by(&self, rank: usize) -> bool {
        self.keeping().is_none_or(|group| group.contains(&rank))
    }

    /// The group of these ranks, and otherwise the first.
    pub(super) fn nearest(&self, own: Option<&[usize]>) -> &[usize] {
        let of_these = self.ranks.iter().find(|group| Some(group.as_slice()) == own);
        of_these.or(self.ranks.first()).map_or(&[], Vec::as_slice)
    }

    /// The ranks whose files have what the group of these ranks had.
    pub(super) fn holders(&self, own: Option<&[usize]>) -> &[usize] {
        self.keeping().unwrap_or_else(|| self.nearest(own))
    }

    /// Whether others had something else, and these ranks are not one of the groups.
    pub(super) fn is_foreign(&self, own: Option<&[usize]>) -> bool {
        self.holder.is_none() && Some(self.nearest(own)) != own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four ranks, which have parts with those beside them or with those across.
    fn held(first: [usize; 4], part: [usize; 4], digest: [u64; 4]) -> Vec<Held> {
        (0..4).map(|rank| Held { first: first[rank], part: part[rank], digest: digest[rank] }).collect()
    }

    #[test]
    fn groups_that_have_the_same_take_turns_to_keep_it() {
        let across = held([0, 1, 0, 1], [0, 0, 1, 1], [5, 5, 6, 6]);
        for (number, holders) in [(0, [0, 2]), (1, [1, 3]), (2, [0, 2])] {
            let groups = Groups::from_held(&across, 2, number).expect("are whole");
            assert!(groups.is_possible(4) && !groups.is_possible(3));
            assert_eq!(
                (groups.parts(), groups.holders(Some(&[1, 3])), groups.nearest(Some(&[1, 3]))),
                (2, &holders[..], &[1, 3][..])
            );
            let keeping: Vec<usize> = (0..4).filter(|&rank| groups.is_held_by(rank)).collect();
            assert_eq!(keeping, holders);
            assert!(!groups.is_foreign(Some(&[3, 1])));
        }
    }

    #[test]
    fn groups_that_differ_each_keep_their_own() {
        // In either, the later rank has the first part.
        let groups = Groups::from_held(&held([1, 1, 3, 3], [1, 0, 1, 0], [5, 6, 5, 7]), 2, 0).expect("are whole");
        assert!((0..4).all(|rank| groups.is_held_by(rank)));
        assert_eq!((groups.holders(Some(&[3, 2])), groups.is_foreign(Some(&[3, 2]))), (&[3, 2][..], false));
        for own in [None, Some(&[2, 3][..])] {
            assert_eq!((groups.holders(own), groups.is_foreign(own)), (&[1, 0][..], true));
        }
    }

    #[test]
    fn ranks_that_disagree_are_no_groups() {
        let same = [0; 4];
        for (first, part, parts) in [
            // Two have one part, one is missing, there are too few, and the first one is another.
            ([0, 0, 2, 2], [0, 0, 0, 1], 2),
            ([0, 0, 0, 2], [0, 1, 2, 0], 2),
            ([0, 0, 2, 2], [0, 1, 0, 1], 3),
            ([1, 1, 2, 2], [0, 1, 0, 1], 2),
        ] {
            assert_eq!(Groups::from_held(&held(first, part, same), parts, 0), None);
        }
    }
}
