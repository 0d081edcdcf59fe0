//! What ranks say to each other on the side connection: a line of JSON each.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::history::Tail;
use super::verdict::Verdict;

/// The longest line that is believed of whoever has not said who it is.
pub(super) const GREETING: usize = 1 << 10;

/// The longest line of a rank that is believed.
pub(super) const LONGEST: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Frame {
    /// A rank comes, and says what it takes the group for; the token is the job's number.
    Hello { version: u32, rank: usize, size: usize, token: u64, process: u32 },
    /// Rank 0 does not let the group begin.
    Refused(NotJoined),
    /// Who has not come yet.
    Missing { ranks: Vec<usize> },
    /// All have come; their addresses, in the order of the ranks.
    Begin { addresses: Vec<String> },
    /// A rank is alive, in this collective, and has begun those of all ranks.
    Beat { doing: Option<Doing>, begun: Tail },
    /// What a rank has begun of those of a part, on its way over rank 0 to the first rank of the part.
    Begun { part: String, first: usize, rank: usize, begun: Tail },
    /// What a rank is about to run.
    Plan { number: u64, collectives: Vec<String> },
    /// Whether all are about to run the same.
    Compared { number: u64, difference: Option<String> },
    /// Why the group is at its end.
    Ended(Verdict),
    /// A rank leaves in order.
    Left { rank: usize },
}

/// Why the group does not begin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NotJoined {
    pub(super) reason: String,
    pub(super) kind: Failing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Failing {
    /// Ranks did not come in time.
    Late,
    /// A rank does not belong to this group.
    Unfit,
    /// It is another job that meets here.
    Elsewhere,
    /// The system refused something.
    System,
}

/// The collective that a rank is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Doing {
    /// Which one it is, from 1, of those that its ranks run together.
    pub(crate) number: u64,
    pub(crate) extent: Extent,
    /// What it is, such as `all_sum f32[8]`.
    pub(crate) label: String,
    /// For how many milliseconds.
    pub(crate) age: u64,
}

/// Who takes part in a collective.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Extent {
    All,
    Part(Part),
    /// This rank and another.
    Two(usize),
}

/// The ranks of a group, of those that watch each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Which one it is, on all of its ranks; nothing where it is the group of all.
    pub(crate) name: String,
    /// Their numbers, in the order that they have in it.
    pub(crate) ranks: Vec<usize>,
}

impl Extent {
    /// The name of the part whose ranks count the collective, nothing for all; none where it is not counted.
    pub(super) fn counted(&self) -> Option<&str> {
        match self {
            Self::All => Some(""),
            Self::Part(part) => Some(&part.name),
            Self::Two(_) => None,
        }
    }

    /// Whether it may wait for a rank.
    pub(super) fn needs(&self, rank: usize) -> bool {
        match self {
            Self::All => true,
            Self::Part(part) => part.ranks.contains(&rank),
            Self::Two(other) => *other == rank,
        }
    }
}

impl Part {
    /// The group that has joined.
    pub(crate) fn all(size: usize) -> Self {
        Self { name: String::new(), ranks: (0..size).collect() }
    }

    /// Whether it is the group that has joined.
    pub(crate) fn is_all(&self) -> bool {
        self.name.is_empty()
    }

    /// Who compares what the others have begun.
    pub(super) fn first(&self) -> usize {
        self.ranks.first().copied().unwrap_or(0)
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.extent.counted(), self.label.split_once(' ')) {
            (Some(_), Some((kind, aval))) => write!(f, "{kind} #{} {aval}", self.number),
            _ => f.write_str(&self.label),
        }
    }
}

impl Frame {
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    pub(super) fn read(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}
