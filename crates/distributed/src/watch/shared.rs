//! What the thread of a watch and whoever uses the group both know.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tacit_core::Error;

use super::frame::Doing;
use super::history::History;
use super::verdict::Verdict;

/// How long it holds that a rank said which collective it is in: several times as long as it takes to say it again.
const FRESH: Duration = Duration::from_millis(250);

pub(super) const LEFT: &str = "it has left the group";

/// What the thread and whoever uses the group both know.
#[derive(Default)]
pub(super) struct Shared {
    /// The addresses of the ranks.
    addresses: Vec<String>,
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) verdict: Option<Ended>,
    /// The collective that this rank was in, and when it said so.
    pub(super) doing: Option<(Doing, Instant)>,
    /// The collectives of all ranks that this rank has begun.
    pub(super) history: History,
    /// The collectives of each part of the group that it is in, by the part's name.
    pub(super) parts: BTreeMap<String, OfPart>,
    /// Ranks that said goodbye.
    pub(super) left: BTreeMap<usize, Instant>,
    /// How many plans this rank had.
    pub(super) plans: u64,
    /// Plans that the thread has not sent yet.
    pub(super) asked: Vec<(u64, Vec<String>)>,
    /// What came of plans: where they differ.
    pub(super) compared: BTreeMap<u64, Option<String>>,
    pub(super) closing: Option<Closing>,
}

/// The collectives of a part that a rank has begun.
pub(super) struct OfPart {
    /// The rank that compares them.
    pub(super) first: usize,
    pub(super) history: History,
}

/// How a rank stops watching.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// It leaves.
    Orderly,
    /// It is lost to the others, at the latest a moment from now: its process is about to end.
    Panic,
}

#[derive(Debug, Clone)]
pub(super) struct Ended {
    verdict: Verdict,
    /// The collective that this rank was in.
    during: Option<Doing>,
}

impl Shared {
    pub(super) fn new(addresses: Vec<String>) -> Self {
        Self { addresses, ..Self::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn address(&self, rank: usize) -> String {
        self.addresses.get(rank).cloned().unwrap_or_default()
    }

    pub(super) fn wait<'s>(&self, state: MutexGuard<'s, State>, limit: Duration) -> MutexGuard<'s, State> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Tells whoever uses the group; the thread of the watch concludes once.
    pub(super) fn conclude(&self, verdict: Verdict) {
        let mut state = self.lock();
        let during = state.doing();
        state.verdict = Some(Ended { verdict, during });
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// The collectives of a part that this rank has begun, or of all ranks, which have no name.
    pub(super) fn history(&self, part: &str) -> Option<&History> {
        if part.is_empty() { Some(&self.history) } else { self.parts.get(part).map(|part| &part.history) }
    }

    /// The collective that this rank is in.
    pub(super) fn doing(&self) -> Option<Doing> {
        let (doing, when) = self.doing.as_ref().filter(|(_, when)| when.elapsed() < FRESH)?;
        Some(Doing { age: doing.age + when.elapsed().as_millis() as u64, ..doing.clone() })
    }
}

impl Ended {
    pub(super) fn error(&self) -> Error {
        match &self.verdict {
            Verdict::Lost { rank, address, reason } => Error::PeerLost {
                rank: *rank,
                address: address.clone(),
                during: self.during.as_ref().map(ToString::to_string),
                reason: reason.clone(),
            },
            Verdict::Disagreement { reason } => {
                group_error(reason.clone(), "run the same collectives in the same order on every rank")
            }
        }
    }
}

pub(super) fn group_error(message: String, help: &'static str) -> Error {
    Error::Group { message, help }
}
