//! The thread of a watch: it says that this rank is alive, hears whether the others are, and concludes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::frame::{Doing, Frame};
use super::history::Tail;
use super::judge::{difference, disagreement};
use super::limits::Limits;
use super::link::Link;
use super::rank_info::RankInfo;
use super::shared::{Closing, LEFT, Shared};
use super::verdict::Verdict;
use crate::pauses::Pauses;

/// How long the others have to read that this rank leaves.
const FAREWELL: Duration = Duration::from_millis(250);

/// How late a round is, at the most, of a process that has run meanwhile.
const LATE: Duration = Duration::from_secs(1);

pub(super) struct Rounds {
    rank_info: RankInfo,
    limits: Limits,
    shared: Arc<Shared>,
    /// Rank 0's to all others, and those of each other to rank 0.
    links: BTreeMap<usize, Link>,
    /// What each rank said that it is in, and when.
    heard: Vec<(Option<Doing>, Instant)>,
    /// What ranks are about to run, while not all have said it.
    plans: BTreeMap<u64, BTreeMap<usize, Vec<String>>>,
    /// What ranks have begun that were ahead of this one, by the part.
    ahead: BTreeMap<(usize, String), Tail>,
    beaten: Instant,
    pauses: Pauses,
}

impl Rounds {
    pub(super) fn new(
        rank_info: RankInfo,
        limits: Limits,
        shared: Arc<Shared>,
        mut links: BTreeMap<usize, Link>,
    ) -> Self {
        let now = Instant::now();
        // Ranks have nothing to say while they wait for a late one.
        for link in links.values_mut() {
            link.heard = now;
        }
        let heard = vec![(None, now); rank_info.size];
        Self {
            rank_info,
            limits,
            shared,
            links,
            heard,
            plans: BTreeMap::new(),
            ahead: BTreeMap::new(),
            beaten: now,
            pauses: Pauses::longer_than(LATE.min(limits.silence / 2)),
        }
    }

    /// Until the watch is dropped.
    pub(super) fn run(mut self) {
        loop {
            self.look();
            let mut state = self.shared.lock();
            if state.closing.is_none() {
                state = self.shared.wait(state, self.limits.round());
            }
            let over = state.verdict.is_some();
            match state.closing {
                None => {}
                Some(Closing::Orderly) => {
                    drop(state);
                    return self.leave(over);
                }
                Some(Closing::Panic) => {
                    drop(state);
                    return thread::sleep(FAREWELL);
                }
            }
        }
    }

    fn look(&mut self) {
        self.excuse_own_pause();
        self.receive();
        self.find_silence();
        self.ask();
        self.beat();
        self.find_disagreement();
    }

    /// Nobody is silent, or waits, while this process does not run: it is stopped, or the machine sleeps.
    fn excuse_own_pause(&mut self) {
        let pause = self.pauses.look();
        self.links.values_mut().for_each(|link| link.heard += pause);
        self.heard.iter_mut().for_each(|(_, when)| *when += pause);
    }

    fn receive(&mut self) {
        let ranks: Vec<usize> = self.links.keys().copied().collect();
        for rank in ranks {
            let mut frames = Vec::new();
            let Some(link) = self.links.get_mut(&rank) else { continue };
            let open = link.receive(&mut frames);
            for frame in frames {
                self.take(rank, frame);
            }
            if open.is_err() && self.links.remove(&rank).is_some() {
                self.lose(rank, "its connection closed without a goodbye, as that of a process that ended".to_owned());
            }
        }
    }

    fn take(&mut self, from: usize, frame: Frame) {
        match frame {
            Frame::Beat { doing, begun } => {
                self.heard[from] = (doing, Instant::now());
                self.compare(from, String::new(), begun);
            }
            Frame::Begun { part, first, rank, begun } => self.bring(part, first, rank, begun),
            Frame::Plan { number, collectives } => self.collect(from, number, collectives),
            Frame::Compared { number, difference } => self.answer(number, difference),
            Frame::Ended(verdict) => self.conclude(verdict),
            Frame::Left { rank } => {
                self.shared.lock().left.entry(rank).or_insert_with(Instant::now);
                self.shared.changed.notify_all();
                self.links.remove(&rank);
                self.tell(&Frame::Left { rank });
            }
            // Only before the group begins.
            Frame::Hello { .. } | Frame::Refused(_) | Frame::Missing { .. } | Frame::Begin { .. } => {}
        }
    }

    /// Rank 0 to all others.
    fn tell(&mut self, frame: &Frame) {
        if self.rank_info.rank == 0 {
            self.send(frame);
        }
    }

    fn send(&mut self, frame: &Frame) {
        self.links.values_mut().for_each(|link| link.send(frame));
    }

    fn find_silence(&mut self) {
        let silent = self.links.iter().find(|(_, link)| link.heard.elapsed() > self.limits.silence);
        if let Some((&rank, link)) = silent {
            let silence = link.heard.elapsed().as_secs_f64();
            self.lose(rank, format!("it has not been heard of for {silence:.1} s"));
        }
    }

    fn lose(&mut self, rank: usize, reason: String) {
        let address = self.shared.address(rank);
        self.conclude(Verdict::Lost { rank, address, reason });
    }

    /// The first conclusion stands: what comes after it follows from it. Rank 0 tells all of it, and hears from the first rank of
    /// a part what only that one compares.
    fn conclude(&mut self, verdict: Verdict) {
        if self.shared.lock().verdict.is_some() {
            return;
        }
        // The others are told before this rank knows, which may be its end.
        if self.rank_info.rank == 0 || matches!(verdict, Verdict::Disagreement { .. }) {
            self.send(&Frame::Ended(verdict.clone()));
        }
        self.shared.conclude(verdict);
    }

    /// Passes on what this rank is about to run.
    fn ask(&mut self) {
        let asked = std::mem::take(&mut self.shared.lock().asked);
        for (number, collectives) in asked {
            if self.rank_info.rank == 0 {
                self.collect(0, number, collectives);
            } else {
                self.send(&Frame::Plan { number, collectives });
            }
        }
    }

    /// Compares what all ranks are about to run, once rank 0 knows it.
    fn collect(&mut self, rank: usize, number: u64, collectives: Vec<String>) {
        let plans = self.plans.entry(number).or_default();
        plans.insert(rank, collectives);
        if plans.len() == self.rank_info.size {
            let plans: Vec<Vec<String>> =
                self.plans.remove(&number).into_iter().flatten().map(|(_, plan)| plan).collect();
            let difference = difference(&plans);
            self.tell(&Frame::Compared { number, difference: difference.clone() });
            self.answer(number, difference);
        }
    }

    fn answer(&self, number: u64, difference: Option<String>) {
        self.shared.lock().compared.insert(number, difference);
        self.shared.changed.notify_all();
    }

    fn beat(&mut self) {
        if self.beaten.elapsed() < self.limits.beat() {
            return;
        }
        self.beaten = Instant::now();
        let state = self.shared.lock();
        let (doing, begun) = (state.doing(), state.history.tail());
        drop(state);
        self.heard[self.rank_info.rank] = (doing.clone(), Instant::now());
        self.send(&Frame::Beat { doing, begun });
        self.tell_of_parts();
        for ((rank, part), begun) in std::mem::take(&mut self.ahead) {
            self.compare(rank, part, begun);
        }
    }

    /// Says what this rank has begun of those of each part that it is in.
    fn tell_of_parts(&mut self) {
        let state = self.shared.lock();
        let told = state.parts.iter().map(|(name, part)| (name.clone(), part.first, part.history.tail()));
        let told: Vec<_> = told.collect();
        drop(state);
        for (part, first, begun) in told {
            self.bring(part, first, self.rank_info.rank, begun);
        }
    }

    /// Brings what a rank has begun of a part to its first rank.
    fn bring(&mut self, part: String, first: usize, rank: usize, begun: Tail) {
        if first == self.rank_info.rank {
            return self.compare(rank, part, begun);
        }
        let next = if self.rank_info.rank == 0 { first } else { 0 };
        if let Some(link) = self.links.get_mut(&next) {
            link.send(&Frame::Begun { part, first, rank, begun });
        }
    }

    /// Compares what this rank and another have begun of a part, as soon as this rank has come so far.
    fn compare(&mut self, rank: usize, part: String, begun: Tail) {
        let state = self.shared.lock();
        // Here it has begun nothing yet, or is gone.
        let Some(history) = state.history(&part) else { return };
        let differs = history.differs(self.rank_info.rank, rank, &begun);
        let ahead = begun.begun > history.begun;
        drop(state);
        if let Some(reason) = differs {
            self.conclude(Verdict::Disagreement { reason });
        } else if ahead {
            self.ahead.insert((rank, part), begun);
        }
    }

    fn find_disagreement(&mut self) {
        let state = self.shared.lock();
        if state.verdict.is_some() {
            return;
        }
        if !state.left.is_empty() {
            let Some(doing) = state.doing() else { return };
            let needed = state.left.iter().filter(|(rank, _)| doing.extent.needs(**rank));
            let gone = needed.min_by_key(|(_, when)| **when).map(|(&rank, &when)| (rank, when));
            drop(state);
            // What was begun before that may still end.
            let since = |when: Instant| when.elapsed().min(Duration::from_millis(doing.age));
            if let Some((rank, _)) = gone.filter(|(_, when)| since(*when) > self.limits.silence) {
                self.lose(rank, LEFT.to_owned());
            }
            return;
        }
        drop(state);
        if self.rank_info.rank == 0 && self.links.values().all(|link| link.heard.elapsed() < self.limits.silence / 2) {
            // Whoever is silent already may be lost rather than wait for something else.
            let with_age = |(doing, when): &(Option<Doing>, Instant)| {
                let doing = doing.clone()?;
                Some(Doing { age: doing.age + when.elapsed().as_millis() as u64, ..doing })
            };
            let doing: Vec<Option<Doing>> = self.heard.iter().map(with_age).collect();
            if let Some(reason) = disagreement(&doing, self.limits.wait) {
                self.conclude(Verdict::Disagreement { reason });
            }
        }
    }

    /// Says goodbye, where that is news, and waits until it is read: a connection with unread data that is closed may lose
    /// what was said.
    fn leave(mut self, over: bool) {
        let rank = self.rank_info.rank;
        if !over {
            let begun = self.shared.lock().history.tail();
            self.send(&Frame::Beat { doing: None, begun });
            self.tell_of_parts();
            self.send(&Frame::Left { rank });
        }
        self.links.values_mut().for_each(Link::say_no_more);
        let until = Instant::now() + FAREWELL;
        while !self.links.is_empty() && Instant::now() < until {
            self.links.retain(|_, link| link.receive(&mut Vec::new()).is_ok());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Extent;
    use super::*;

    #[test]
    fn nobody_waits_while_this_process_is_stopped() {
        let minute = Duration::from_mins(1);
        let limits = Limits { join: minute, silence: minute, wait: minute };
        let shared = Arc::new(Shared::new(Vec::new()));
        let mut rounds = Rounds::new(RankInfo { rank: 0, size: 2 }, limits, Arc::clone(&shared), BTreeMap::new());
        let before = Instant::now().checked_sub(2 * minute).expect("a time");
        let doing = Doing { number: 1, extent: Extent::All, label: "all_sum f32[8]".to_owned(), age: 100 };
        (rounds.heard[1], rounds.pauses.looked) = ((Some(doing), before), before);
        rounds.look();
        assert!(shared.lock().verdict.is_none(), "rank 1 has not waited since");
    }
}
