//! Whether all ranks of a group are alive and wait for the same collective.
//!
//! MLX's engine notices a rank that is gone late or never, so ranks hold side connections beside it: a star around rank 0,
//! over which each says several times a second that it is alive and which collective it is in. Rank 0 tells all of a rank
//! that is lost: its connection closed without a goodbye, or nothing came for [`Limits::silence`]. The same holds for a
//! collective that takes longer than [`Limits::wait`] while all are alive, since ranks wait for different ones. Whoever
//! waits in a collective then asks [`Watch::check`] and gives it up. Groups that were split off have no watch of their own: what
//! their ranks run is compared by the first of these, to which rank 0 passes it on.
//!
//! The ranks meet before the engine begins where they can, so that one that never comes is found without it. Ranks of
//! another job that come to the same place are told apart by the name of the job, which `tacit launch` hands out. All of it
//! is plain text, as what engines send is: it is made for a network whose machines are trusted.

mod frame;
mod history;
mod join;
mod judge;
mod limits;
mod link;
mod meet;
mod rank_info;
mod rounds;
mod shared;
mod verdict;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use tacit_core::{Error, Result};

use crate::pauses::{Deadline, LOOK};
pub(crate) use frame::{Doing, Extent, Part};
use frame::{Failing, NotJoined};
use history::History;
use join::Joined;
pub(crate) use limits::Limits;
use meet::Announcement;
pub(crate) use meet::{ANNOUNCEMENT, Place, job, ranks_of_ring};
pub(crate) use rank_info::RankInfo;
use rounds::Rounds;
use shared::{Closing, LEFT, OfPart, Shared, group_error};

/// The watch of one rank, until it is dropped.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    limits: Limits,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// Waits until all ranks of the job have come to `place`, which is rank 0's.
    pub(crate) fn at(place: &str, job: u64, rank_info: RankInfo, limits: Limits) -> Result<Self> {
        let mut deadline = Deadline::after(limits.join);
        let unknown = |error: io::Error| {
            let help = "set TACIT_WATCH to a host and a free port of rank 0, as in `10.0.0.1:7300`";
            refused(&NotJoined { reason: format!("{place}: {error}"), kind: Failing::System }, Some(help))
        };
        let joined = if rank_info.rank == 0 {
            let listener = meet::listen(place).map_err(unknown)?;
            join::host(&listener, rank_info, job, &mut deadline)
        } else {
            join::come(&meet::resolve(place).map_err(unknown)?, rank_info, job, &mut deadline)
        };
        Self::start(joined, rank_info, limits)
    }

    /// Waits until all ranks have come to where rank 0 announces, which `announce` brings from it to the others.
    pub(crate) fn announced(
        announce: impl FnOnce([u8; ANNOUNCEMENT]) -> Result<[u8; ANNOUNCEMENT]>,
        rank_info: RankInfo,
        limits: Limits,
    ) -> Result<Self> {
        let joined = if rank_info.rank == 0 {
            // The others wait for the announcement, of whatever kind.
            let listening = Announcement::listen();
            announce(listening.as_ref().map_or([0; ANNOUNCEMENT], |(announced, _)| announced.bytes()))?;
            let mut deadline = Deadline::after(limits.join);
            match listening {
                Ok((announced, listener)) => join::host(&listener, rank_info, announced.token, &mut deadline),
                Err(error) => Err(NotJoined { reason: error.to_string(), kind: Failing::System }),
            }
        } else {
            let announced = Announcement::read(&announce([0; ANNOUNCEMENT])?);
            let mut deadline = Deadline::after(limits.join);
            match announced {
                Some(announced) => join::come(&announced.addresses(), rank_info, announced.token, &mut deadline),
                None => Err(NotJoined { reason: "rank 0 could not listen".to_owned(), kind: Failing::System }),
            }
        };
        Self::start(joined, rank_info, limits)
    }

    fn start(joined: Result<Joined, NotJoined>, rank_info: RankInfo, limits: Limits) -> Result<Self> {
        let joined = joined.map_err(|failed| refused(&failed, None))?;
        let shared = Arc::new(Shared::new(joined.addresses));
        let rounds = Rounds::new(rank_info, limits, Arc::clone(&shared), joined.links);
        let thread = thread::Builder::new().name("tacit-watch".to_owned()).spawn(|| rounds.run());
        let thread =
            thread.map_err(|error| refused(&NotJoined { reason: error.to_string(), kind: Failing::System }, None))?;
        Ok(Self { shared, limits, thread: Mutex::new(Some(thread)) })
    }

    /// An error once a rank is lost or ranks disagree.
    pub(crate) fn check(&self) -> Result<()> {
        self.shared.lock().verdict.as_ref().map_or(Ok(()), |ended| Err(ended.error()))
    }

    /// Why the engine failed in a collective, once it is known or `limit` is over: it may notice sooner than the watch that a rank
    /// is gone.
    pub(crate) fn why(&self, limit: Duration, of: Option<&Extent>) -> Option<Error> {
        let until = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            if let Some(ended) = &state.verdict {
                return Some(ended.error());
            }
            if let Some(&rank) = state.left.keys().find(|&&rank| of.is_none_or(|of| of.needs(rank))) {
                let address = self.shared.address(rank);
                return Some(Error::PeerLost { rank, address, during: None, reason: LEFT.to_owned() });
            }
            let remaining = until.checked_duration_since(Instant::now())?;
            state = self.shared.wait(state, remaining);
        }
    }

    /// An error where a rank has said goodbye so long ago.
    pub(crate) fn check_nobody_left(&self, before: Duration) -> Result<()> {
        let state = self.shared.lock();
        let gone = state.left.iter().find(|(_, when)| when.elapsed() > before).map(|(&rank, _)| rank);
        gone.map_or(Ok(()), |rank| {
            let help = "see what that rank says about it, and start all ranks anew";
            Err(group_error(format!("rank {rank} has left the group before it began"), help))
        })
    }

    /// Says goodbye to the other ranks, and watches no more.
    pub(crate) fn leave(&self) {
        self.close(Closing::Orderly);
    }

    fn close(&self, how: Closing) {
        self.shared.lock().closing.get_or_insert(how);
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }

    /// Says that this rank begins a collective, and gives the number of it among those that its ranks run together.
    pub(crate) fn begin(&self, label: &str, extent: &Extent) -> u64 {
        let mut state = self.shared.lock();
        let history = match extent {
            Extent::All => &mut state.history,
            Extent::Part(part) => {
                let new = || OfPart { first: part.first(), history: History::default() };
                &mut state.parts.entry(part.name.clone()).or_insert_with(new).history
            }
            Extent::Two(_) => return state.history.begun,
        };
        history.begin(label);
        history.begun
    }

    /// Says that this rank has done with a part.
    pub(crate) fn forget(&self, part: &Part) {
        self.shared.lock().parts.remove(&part.name);
    }

    /// Says that this rank is in a collective, which holds for a moment: whoever waits in one says it again and again.
    pub(crate) fn doing(&self, doing: Doing) {
        self.shared.lock().doing = Some((doing, Instant::now()));
    }

    /// Waits until every rank has said what it is about to run, an error where that differs.
    ///
    /// Every rank calls it as often as any other, in the same order.
    pub(crate) fn agree(&self, collectives: Vec<String>) -> Result<()> {
        let mut deadline = Deadline::after(self.limits.wait);
        let mut state = self.shared.lock();
        let number = state.plans;
        state.plans += 1;
        state.asked.push((number, collectives));
        loop {
            let disagree = |reason: String| {
                group_error(reason, "call the same functions with arguments of the same shapes on every rank")
            };
            if let Some(difference) = state.compared.remove(&number) {
                return difference.map_or(Ok(()), |difference| Err(disagree(difference)));
            }
            if let Some(ended) = &state.verdict {
                return Err(ended.error());
            }
            if let Some(rank) = state.left.keys().next() {
                return Err(disagree(format!(
                    "rank {rank} has left the group, and others are about to run collectives"
                )));
            }
            let remaining = deadline.remaining();
            if remaining.is_zero() {
                let waited = self.limits.wait.as_secs_f64();
                return Err(disagree(format!(
                    "not every rank has said within {waited:.1} s which collectives it is about to run"
                )));
            }
            state = self.shared.wait(state, remaining.min(LOOK));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if thread::panicking() {
            // What starts the ranks should see this process end before it sees what comes of that, so nobody waits here.
            self.shared.lock().closing.get_or_insert(Closing::Panic);
        } else {
            self.leave();
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

fn refused(failed: &NotJoined, help: Option<&'static str>) -> Error {
    let help = help.unwrap_or(
        match failed.kind {
            Failing::Late => {
                "see whether every rank was started and reaches rank 0; `TACIT_WATCH_LIMITS=join=300` waits longer, in seconds"
            }
            Failing::Unfit | Failing::Elsewhere => "start every rank of the group by one `tacit launch`, or with the same host file",
            Failing::System => "let ranks reach each other by TCP, or leave the watch out with `TACIT_WATCH=off`",
        },
    );
    group_error(format!("the group cannot begin: {}", failed.reason), help)
}

#[cfg(test)]
mod tests;
