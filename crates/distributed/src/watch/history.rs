//! The collectives that a rank has begun, so that rank 0 can compare them with its own.
//!
//! An engine does not look at what it is given: ranks that sum arrays of different shapes get numbers that mean nothing.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// How many collectives back a rank may be that is compared.
const KEPT: usize = 1024;

/// How many are told at once, so that a message can say where ranks part.
const TOLD: usize = 16;

/// Of FNV-1a with 64 bits, which gives the same on every machine: <http://www.isthe.com/chongo/tech/comp/fnv/>.
pub(super) const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// The checksum of bytes that follow the ones of which `before` is the checksum.
pub(super) fn checksum(before: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(before, |checksum, byte| (checksum ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// The collectives of all ranks, which have the same numbers on each.
#[derive(Debug, Default)]
pub(super) struct History {
    /// How many there were.
    pub(super) begun: u64,
    /// The last of them, each with a checksum of all up to it.
    last: VecDeque<(u64, String)>,
}

/// The end of a history, as a beat tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tail {
    pub(super) begun: u64,
    checksum: u64,
    last: Vec<String>,
}

impl History {
    pub(super) fn begin(&mut self, label: &str) {
        let before = self.last.back().map_or(OFFSET, |(checksum, _)| *checksum);
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        // A byte that no text has ends each.
        let checksum = checksum(before, label.bytes().chain([0xff]));
        self.last.push_back((checksum, label.to_owned()));
        self.begun += 1;
    }

    pub(super) fn tail(&self) -> Tail {
        let last = self.last.iter().skip(self.last.len().saturating_sub(TOLD)).map(|(_, label)| label.clone());
        let checksum = self.last.back().map_or(0, |(checksum, _)| *checksum);
        Tail { begun: self.begun, checksum, last: last.collect() }
    }

    /// Where another rank's parts from this one; none where it does not, or this one has not come so far or is far ahead.
    pub(super) fn differs(&self, own: usize, rank: usize, theirs: &Tail) -> Option<String> {
        let (checksum, _) = self.at(theirs.begun)?;
        if *checksum == theirs.checksum {
            return None;
        }
        let first = theirs.begun.saturating_sub(theirs.last.len() as u64) + 1;
        let pairs = (first..).zip(&theirs.last);
        let parted = pairs.filter_map(|(number, their)| Some((number, &self.at(number)?.1, their)));
        let parted = parted.into_iter().find(|(_, ours, their)| ours != their);
        Some(match parted {
            Some((number, ours, their)) => {
                let mut two = [(own, ours), (rank, their)];
                two.sort_unstable();
                let [(first, one), (second, other)] = two;
                format!(
                    "ranks ran different collectives: no. {number} of rank {first} was {one}, of rank {second} {other}"
                )
            }
            None => format!(
                "ranks ran different collectives: among the first {} of ranks {} and {}",
                theirs.begun,
                own.min(rank),
                own.max(rank)
            ),
        })
    }

    fn at(&self, number: u64) -> Option<&(u64, String)> {
        let before = self.begun - self.last.len() as u64 + 1;
        self.last.get(usize::try_from(number.checked_sub(before)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(labels: impl IntoIterator<Item = String>) -> History {
        let mut history = History::default();
        labels.into_iter().for_each(|label| history.begin(&label));
        history
    }

    fn sums(extents: &[usize]) -> History {
        history(extents.iter().map(|extent| format!("all_sum f32[{extent}]")))
    }

    #[test]
    fn a_rank_that_is_behind_or_ahead_is_no_other() {
        let ours = sums(&[8, 9, 10]);
        for theirs in [&[][..], &[8], &[8, 9], &[8, 9, 10], &[8, 9, 10, 11]] {
            assert_eq!(ours.differs(0, 1, &sums(theirs).tail()), None, "{theirs:?}");
        }
    }

    #[test]
    fn what_differs_is_named_or_bounded() {
        let ours = sums(&[8, 9, 10]);
        let found = ours.differs(0, 2, &sums(&[8, 7]).tail()).expect("different");
        assert_eq!(
            found,
            "ranks ran different collectives: no. 2 of rank 0 was all_sum f32[9], of rank 2 all_sum f32[7]"
        );
        let long = |first: usize| sums(&[&[first][..], &[3; 30]].concat());
        let found = long(1).differs(2, 0, &long(2).tail()).expect("different");
        assert_eq!(found, "ranks ran different collectives: among the first 31 of ranks 0 and 2");
        // What is forgotten is not compared.
        let many = sums(&[4; 2 * KEPT]);
        assert_eq!(many.differs(0, 2, &sums(&[5]).tail()), None);
        assert!(many.differs(0, 2, &sums(&[5; 2 * KEPT - 1]).tail()).is_some());
    }
}
